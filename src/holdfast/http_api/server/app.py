"""The application: finds the endpoint of a request, checks who asks, calls the handler, sends the answer.

It is an ASGI application. What is not under its own paths is offered to `extra_routes`: other fronts' endpoints that
share the port, such as MQTT over WebSocket.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from itertools import chain, count
from typing import Any, TypeVar

import structlog
from starlette.routing import BaseRoute, Match
from starlette.routing import Router as StarletteRouter
from starlette.types import Receive, Scope, Send

from holdfast.auth.gate import Gate
from holdfast.auth.principal import Principal
from holdfast.broker.dispatch.members import GroupName
from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.errors import HoldfastError, MethodNotAllowed, Overloaded, RouteNotFound, ShuttingDown
from holdfast.http_api.dialects import lockd, mqueue
from holdfast.http_api.endpoints import audited_redrives as audits
from holdfast.http_api.endpoints import dead_letters as deadletters
from holdfast.http_api.endpoints import (
    groups,
    health,
    leases,
    messages,
    metrics,
    partitions,
    queues,
    requests,
    snapshots,
    streams,
    transactions,
)
from holdfast.http_api.endpoints import workflow_state as states
from holdfast.http_api.openapi import document as openapi
from holdfast.http_api.openapi.routes import Endpoint, Right, Router, Routes, decoded
from holdfast.http_api.server.access import authorize, identify
from holdfast.http_api.server.batcher import EnqueueBatcher
from holdfast.http_api.server.long_calls import LongCalls, expired
from holdfast.http_api.server.request import Call, ClientDisconnected, connection_extension, read_headers
from holdfast.http_api.server.response import Header, Response, error_response
from holdfast.units import SECOND

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

ROUTES: tuple[Routes, ...] = (
    messages.ROUTES,
    partitions.ROUTES,
    leases.ROUTES,
    states.ROUTES,
    streams.ROUTES,
    queues.ROUTES,
    groups.ROUTES,
    deadletters.ROUTES,
    audits.ROUTES,
    mqueue.ROUTES,
    lockd.ROUTES,
    requests.ROUTES,
    transactions.ROUTES,
    health.ROUTES,
    metrics.ROUTES,
    snapshots.ROUTES,
    openapi.ROUTES,
)

ANONYMOUS = Principal(name="", namespace="", method="anonymous")
"""Who asks for what needs no credential. It may do nothing else."""

CORRELATION_BYTES_MAX = 255
CORRELATION = b"x-correlation-id"

THREADS = 4
"""For long bodies and answers. They compute and wait for nothing; more of them would only take turns on the GIL."""

_Result = TypeVar("_Result")


class Api:
    """See the module."""

    def __init__(
        self,
        config: Config,
        node: Node,
        gate: Gate,
        extra_routes: Sequence[BaseRoute] = (),
        routes: Iterable[Routes] = ROUTES,
    ) -> None:
        self.config = config
        self.node = node
        self.gate = gate
        self.router = Router(chain.from_iterable(part.endpoints for part in routes))
        self.closing = False
        self.working = 0  # requests under way that are not just waiting
        self.idle = asyncio.Event()  # there is none
        self.idle.set()
        self.buffered_bytes = 0
        self._extra = StarletteRouter(list(extra_routes), redirect_slashes=False) if extra_routes else None
        self.streams: dict[tuple[GroupName, str], streams.Stream] = {}
        self.answered: dict[tuple[str, str, int], int] = {}  # by method, route and status
        self.long_calls = LongCalls(gate)
        self.batcher = EnqueueBatcher(node)
        node.cell.participants.append(self.batcher)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-http")
        self._process = secrets.token_hex(4)
        self._requests = count(1)

    # --- life -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Refuse new requests and end those that wait."""
        self.closing = True
        self.long_calls.close()

    def closed(self) -> None:
        """Nothing is under way any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def on_thread(self, make: Callable[[], _Result]) -> _Result:
        """What `make` computes, on a thread. Nothing that may hang belongs here."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, make)

    async def until_disconnect(
        self,
        call: Call,
        work: Coroutine[Any, Any, _Result],
        undo: Callable[[_Result], Awaitable[object]] | None = None,
    ) -> _Result:
        """Wait for something that may take long, but not longer than the client does, than its credential holds, or
        than the server runs.

        `undo` is called with a result that nobody is to have any more.
        """
        if self.closing:
            work.close()
            raise ShuttingDown
        task = asyncio.create_task(work)
        gone = asyncio.create_task(call.gone())
        reason: Exception = ClientDisconnected()

        def end(why: HoldfastError) -> None:
            nonlocal reason
            reason = why
            task.cancel()

        try:
            with self.long_calls.until(call.principal, end):
                await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
            if task.cancelled():
                raise reason
            if task.exception() is None and not gone.done() and not self.long_calls.is_valid(call.principal):
                end(expired())
            elif undo is None or not gone.done() or task.exception() is not None:
                return task.result()
            if undo is not None:
                await undo(task.result())
            raise reason
        finally:
            task.cancel()
            gone.cancel()

    # --- a request --------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if self._extra is not None:
                await self._extra(scope, receive, send)
            return
        found = self.router.find(scope["raw_path"].decode("ascii"))
        if found is None and self._extra is not None and _has_route(self._extra, scope):
            await self._extra(scope, receive, send)
            return
        correlation_id = self.new_correlation_id()
        call: Call | None = None
        endpoint: Endpoint | None = None
        try:
            headers = read_headers(scope["headers"])
            correlation_id = _given_correlation_id(headers) or correlation_id
            endpoint, parameters = _endpoint(scope, found)
            principal = ANONYMOUS if endpoint.right is Right.ANONYMOUS else await identify(self.gate, scope, headers)
            call = Call(self, scope, receive, endpoint, parameters, headers, correlation_id, principal)
            result = await self._answer(call)
        except ClientDisconnected:
            return
        except Exception as error:  # noqa: BLE001 - it is answered
            result = error_response(error, endpoint, call, correlation_id)
        finally:
            if call is not None:
                call.close()
        self.count(scope["method"], call.endpoint.path if call is not None else "", result.status)
        await self._send(result, scope, send, correlation_id)

    def new_correlation_id(self) -> str:
        """For a request that brings none: unique among processes, and without a call of the system."""
        return f"{self._process}-{next(self._requests):x}"

    def count(self, method: str, path: str, status: int) -> None:
        """An answer goes out."""
        place = (method, path, status)
        self.answered[place] = self.answered.get(place, 0) + 1

    async def _answer(self, call: Call) -> Response:
        """Let the caller in, and do what it asks; for an act of administration, with an entry in the audit log."""
        endpoint = call.endpoint
        name = call.parameters[0] if call.parameters else ""
        if not endpoint.act:
            authorize(endpoint, call.principal, name)
            return await self._work(call)
        with self.gate.audit.act(call.principal, endpoint.act, name, front="http", peer=call.peer) as noted:
            call.noted = noted
            authorize(endpoint, call.principal, name)
            response = await self._work(call)
        await self.gate.audit.synced()
        return response

    async def _work(self, call: Call) -> Response:
        self.check(call.endpoint)
        if call.endpoint.waits:
            return await call.endpoint.handler(call)
        self.enter()
        try:
            return await call.endpoint.handler(call)
        finally:
            self.leave()

    def check(self, endpoint: Endpoint) -> None:
        """Whether one more request can be taken."""
        if self.closing and not endpoint.always_served:
            raise ShuttingDown
        if not endpoint.waits and self.working >= self.config.http.max_concurrency:
            raise Overloaded(waiting=self.working)

    def enter(self) -> None:
        """A request is under way, until it leaves."""
        if not self.working:
            self.idle.clear()
        self.working += 1

    def leave(self) -> None:
        self.working -= 1
        if not self.working:
            self.idle.set()

    async def _send(self, result: Response, scope: Scope, send: Send, correlation_id: str) -> None:
        headers: list[Header] = [
            (b"content-type", result.content_type),
            *result.headers,
        ]
        if not any(name == CORRELATION for name, _ in result.headers):
            headers.append((CORRELATION, correlation_id.encode()))
        if self.closing:
            headers.append((b"connection", b"close"))
        body = result.body
        timeout = self.config.http.write_timeout / SECOND
        try:
            if isinstance(body, bytes):
                headers.append((b"content-length", b"%d" % len(body)))
                extension = connection_extension(scope)
                if extension is not None and extension["answer"](result.status, headers, body):
                    return
                async with asyncio.timeout(timeout):
                    await send({"type": "http.response.start", "status": result.status, "headers": headers})
                    await send({"type": "http.response.body", "body": body})
            else:
                await send({"type": "http.response.start", "status": result.status, "headers": headers})
                await _send_parts(body, send, timeout)
        except TimeoutError:
            log.warning("a client does not read its answer; closing", correlation_id=correlation_id)
            extension = connection_extension(scope)
            if extension is None:
                raise
            extension["abort"]()
        finally:
            if result.close is not None:
                result.close()


def _has_route(extra: StarletteRouter, scope: Scope) -> bool:
    return any(route.matches(scope)[0] is not Match.NONE for route in extra.routes)


def _endpoint(scope: Scope, found: tuple[dict[str, Endpoint], list[str]] | None) -> tuple[Endpoint, list[str]]:
    path = scope["raw_path"].decode("ascii")
    if found is None:
        raise RouteNotFound(path=path)
    methods, parameters = found
    method = scope["method"]
    endpoint = methods.get("GET" if method == "HEAD" else method)
    if endpoint is None or (method == "HEAD" and endpoint.waits):
        raise MethodNotAllowed(path=path, method=method, allowed=", ".join(methods))
    return endpoint, [decoded(value) for value in parameters]


async def _send_parts(parts: AsyncIterator[bytes], send: Send, timeout: float) -> None:  # noqa: ASYNC109
    async with aclosing(parts) as open_parts:  # type: ignore[type-var]
        async for part in open_parts:
            async with asyncio.timeout(timeout):
                await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": True})  # waits for the client
    await send({"type": "http.response.body", "body": b""})


def _given_correlation_id(headers: dict[bytes, bytes]) -> str:
    """The caller's, or none. One that is too long or not printable counts as none: it goes into headers and logs."""
    given = headers.get(CORRELATION)
    if given is not None:
        text = given.decode("latin-1")
        if 0 < len(given) <= CORRELATION_BYTES_MAX and text.isascii() and text.isprintable():
            return text
        del headers[CORRELATION]
    return ""
