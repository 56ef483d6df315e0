"""FastAPI (and Starlette): one client for the application's life, and a dependency.

    app = FastAPI(lifespan=holdfast_lifespan())            # of the server that HOLDFAST_URL names

    @app.post("/orders")
    async def place(order: Order, holdfast: HoldfastClient) -> str:
        return (await holdfast.send("orders", order)).id

Jobs (`send_email.send(…)`) that a request sends go by this client too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import HTTPConnection

from holdfast.client import Client, use_client

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def holdfast_lifespan(connect: Callable[[], Client] = Client, within: Lifespan | None = None) -> Lifespan:
    """A lifespan that opens the client `connect` makes, and closes it when the application ends. `within`: another
    lifespan to run inside."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with connect() as client:
            app.state.holdfast = client
            with use_client(client):
                if within is None:
                    yield
                else:
                    async with within(app) as state:
                        yield state

    return lifespan


async def holdfast_client(connection: HTTPConnection) -> AsyncIterator[Client]:
    """The application's client, for requests and WebSockets."""
    client = getattr(connection.app.state, "holdfast", None)
    if client is None:
        raise RuntimeError("the application has no Holdfast client: FastAPI(lifespan=holdfast_lifespan())")
    with use_client(client):
        yield client


HoldfastClient = Annotated[Client, Depends(holdfast_client)]
