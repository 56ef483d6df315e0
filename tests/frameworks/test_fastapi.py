"""An application of FastAPI with a client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from pydantic import BaseModel

from holdfast.client import Client, worker
from holdfast.frameworks.fastapi import HoldfastClient, holdfast_client, holdfast_lifespan
from holdfast.testing import Broker


class Order(BaseModel):
    item: str


@worker("emails")
async def send_email(to: str, text: str) -> None: ...


@worker("parcels")
def pack(item: str, place: int) -> None: ...


def application(url: str, within: Any = None) -> FastAPI:
    app = FastAPI(lifespan=holdfast_lifespan(lambda: Client(url), within))

    @app.post("/orders")
    async def place(order: Order, holdfast: HoldfastClient) -> str:
        await send_email.send(to="ann@example.com", text=order.item)
        return (await holdfast.send("orders", order)).id

    @app.post("/parcels", dependencies=[Depends(holdfast_client)])
    def pack_one(order: Order) -> str:
        return pack.send_sync(order.item, place=1).id

    return app


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Who asks an application that runs."""
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as web,
    ):
        yield web


async def test_requests_send_by_the_applications_client() -> None:
    async with Broker(http=True) as broker, Client(broker.url) as client:
        async with running(application(broker.url)) as web:
            assert (await web.post("/orders", json={"item": "tea"})).status_code == 200
            assert (await web.post("/parcels", json={"item": "cup"})).status_code == 200
        received = {queue: (await client.receive(queue))[0] for queue in ("orders", "emails", "parcels")}
        assert {queue: message.json() for queue, message in received.items()} == {
            "orders": {"item": "tea"},
            "emails": {"to": "ann@example.com", "text": "tea"},
            "parcels": {"item": "cup", "place": 1},
        }
        for message in received.values():
            await message.ack()


async def test_another_lifespan_runs_inside_and_the_client_ends_with_the_application() -> None:
    seen: list[Client] = []

    @asynccontextmanager
    async def within(app: FastAPI) -> AsyncIterator[None]:
        seen.append(app.state.holdfast)
        yield

    async with Broker(http=True) as broker, running(application(broker.url, within)) as web:
        assert (await web.post("/orders", json={"item": "tea"})).status_code == 200
        assert len(seen) == 1


async def test_without_a_lifespan_the_error_says_what_to_do() -> None:
    app = FastAPI()

    @app.get("/")
    async def nothing(holdfast: HoldfastClient) -> str:
        return holdfast.url

    async with running(app) as web:
        with pytest.raises(RuntimeError, match="lifespan=holdfast_lifespan"):
            await web.get("/")
