"""The application: authenticates and authorizes a request, calls its endpoint's handler, and responds.

It is called by a connection for every request, in the same way. A handler that is a plain function is called when the
whole body is here and gives a response, or what becomes one by a callback of the node: that needs no task and no
future. A handler that is a coroutine runs in a task and may read the body as it arrives.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count
from typing import Any, Protocol, TypeVar

from holdfast.auth.fronts.long_requests import LongRequests, expired
from holdfast.auth.gate import Gate
from holdfast.auth.principal import Principal
from holdfast.broker.dispatch.members import GroupName
from holdfast.broker.enqueue_batcher import EnqueueBatcher
from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.errors import HoldfastError, RateLimited, ShuttingDown
from holdfast.http_api.codecs.json_slices import Steps
from holdfast.http_api.dialects import lockd, mqueue, sqs
from holdfast.http_api.endpoints import (
    audited_redrives,
    backups,
    dead_letters,
    groups,
    health,
    leases,
    messages,
    metrics,
    moves,
    partitions,
    queues,
    quotas,
    requests,
    schedules,
    snapshots,
    streams,
    transactions,
    workers,
    workflow_state,
)
from holdfast.http_api.openapi import document, page
from holdfast.http_api.server.access import (
    authorize,
    check_browser,
    check_program,
    identify,
    identify_signed,
    is_signed,
    recognize,
)
from holdfast.http_api.server.body import ClientDisconnected
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response
from holdfast.http_api.server.routes import Endpoint, Right, Router, Routes

ROUTES: tuple[Routes, ...] = (
    messages.ROUTES,
    partitions.ROUTES,
    leases.ROUTES,
    workflow_state.ROUTES,
    streams.ROUTES,
    queues.ROUTES,
    quotas.ROUTES,
    schedules.ROUTES,
    workers.ROUTES,
    groups.ROUTES,
    dead_letters.ROUTES,
    moves.ROUTES,
    audited_redrives.ROUTES,
    mqueue.ROUTES,
    lockd.ROUTES,
    sqs.ROUTES,
    requests.ROUTES,
    transactions.ROUTES,
    health.ROUTES,
    metrics.ROUTES,
    snapshots.ROUTES,
    backups.ROUTES,
    document.ROUTES,
    page.ROUTES,
)

ANONYMOUS = Principal(name="", namespace="", method="anonymous")
"""The caller of what needs no credential. It may do nothing else."""

THREADS = 4
"""For long bodies and responses. They compute and wait for nothing; more of them would only take turns on the GIL."""

_Result = TypeVar("_Result")


class Pages(Protocol):
    """Pages for people, beside the API."""

    @property
    def routes(self) -> Routes: ...

    @property
    def head(self) -> str:
        """What a page of the API's has in its head to look like these: styles, as HTML."""

    def not_found(self, request: Request, error: HoldfastError) -> Response | None:
        """The page for an address that leads nowhere; None if the caller is none who reads pages."""


class Api:
    """See the module."""

    def __init__(
        self,
        config: Config,
        node: Node,
        gate: Gate,
        routes: Iterable[Routes] = ROUTES,
        pages: Pages | None = None,
    ) -> None:
        self.config = config
        self.node = node
        self.gate = gate
        self.pages = pages
        parts = [*routes, pages.routes] if pages is not None else routes
        self.router = Router(chain.from_iterable(part.endpoints for part in parts))
        self.closing = False
        self.working = 0  # requests in progress that do not just wait
        self.idle = asyncio.Event()  # there is none
        self.idle.set()
        self.buffered_bytes = 0
        self.receive_attempts = sqs.Attempts()
        self.streams: dict[tuple[GroupName, str], streams.Stream] = {}
        self.answered: dict[tuple[str, str, int], int] = {}  # by method, route and status
        self.long_requests = LongRequests(gate, node.cell.quotas)
        self._rates = gate.request_rates(node.cell.quotas)
        self.batcher = EnqueueBatcher(node, messages.PROTOCOL)
        node.cell.participants.append(self.batcher)
        self._slice = asyncio.Lock()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-http")
        self._process = secrets.token_hex(4)
        self._requests = count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    # --- life -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Refuse new requests and end those that wait."""
        self.closing = True
        self.long_requests.close()

    def closed(self) -> None:
        """No request is in progress any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a part of a request in a task of its own."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel(self) -> None:
        """End what did not end by itself."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def on_thread(self, make: Callable[[], _Result]) -> _Result:
        """What `make` computes, on a thread. Nothing that may hang belongs here."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, make)

    async def in_slices(self, work: Steps[_Result]) -> _Result:
        """What `work` computes, a step in each pass of the loop, and one step only however many such requests there
        are: others wait for no more than that."""
        while True:
            async with self._slice:
                try:
                    next(work)
                except StopIteration as end:
                    result: _Result = end.value
                    return result
                await asyncio.sleep(0)

    async def until_disconnect(
        self,
        request: Request,
        work: Coroutine[Any, Any, _Result],
        undo: Callable[[_Result], Awaitable[object]] | None = None,
    ) -> _Result:
        """Wait for something that may take long, but not longer than the client does, than its credential holds, or
        than the server runs.

        `undo` is called with a result that is not sent any more.
        """
        try:
            if self.closing:
                raise ShuttingDown
            self.long_requests.check(request.principal)
        except HoldfastError:
            work.close()
            raise
        task = asyncio.create_task(work)
        gone = request.disconnected
        reason: Exception = ClientDisconnected()

        def end(why: HoldfastError) -> None:
            nonlocal reason
            reason = why
            task.cancel()

        try:
            with self.long_requests.until(request.principal, end):
                await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
            if task.cancelled():
                raise reason
            if task.exception() is None and not gone.done() and not self.long_requests.is_valid(request.principal):
                end(expired())
            elif undo is None or not gone.done() or task.exception() is not None:
                return task.result()
            if undo is not None:
                await undo(task.result())
            raise reason
        finally:
            task.cancel()

    # --- a request --------------------------------------------------------------------------------------------------

    def serve(self, request: Request) -> None:
        """Respond to a request, now or later. It is the only one of its connection that is being served."""
        if request.is_traced:
            with request.in_trace():
                self._serve(request)
        else:
            self._serve(request)

    def _serve(self, request: Request) -> None:
        head = request.head
        if head.refusal is not None:
            page = self.pages.not_found(request, head.refusal) if self.pages is not None else None
            if page is not None:
                request.respond(page)
            else:
                request.fail(head.refusal)
            return
        try:
            endpoint = request.endpoint
            if endpoint.right is Right.ANONYMOUS:
                principal: Principal | None = ANONYMOUS
            else:
                principal = recognize(self.gate, request.subject, head.headers)
            if principal is None:
                self.spawn(self._identify(request))
            else:
                self._serve_known(request, principal)
        except Exception as error:  # noqa: BLE001 - it is answered
            request.fail(error)

    async def _identify(self, request: Request) -> None:
        """For a credential that takes time to check."""
        try:
            if is_signed(request):
                principal = await identify_signed(self.gate, request)
                self.count_bytes(principal, len(request.content))
            else:
                principal = await identify(self.gate, request.headers[b"authorization"], request.peer)
            self._serve_known(request, principal)
        except Exception as error:  # noqa: BLE001 - it is answered
            request.fail(error)

    def serve_for(self, request: Request, principal: Principal) -> None:
        """Respond to a request of a caller that is known."""
        try:
            if request.head.refusal is not None:
                raise request.head.refusal
            self._serve_known(request, principal)
        except Exception as error:  # noqa: BLE001 - it is answered
            request.fail(error)

    def _serve_known(self, request: Request, principal: Principal) -> None:
        head, endpoint = request.head, request.endpoint
        if principal is not head.authorized and principal is not ANONYMOUS:
            check_browser(self.gate, principal, head.headers)
            request.claim(principal)
            if endpoint.changes:
                check_program(head.headers)
        request.principal = principal
        if principal is not ANONYMOUS and self._is_limited(principal):
            self._take_rate(principal)
        if endpoint.act:
            self.spawn(self._administer(request))
            return
        if principal is not head.authorized:
            authorize(endpoint, principal, head.parameters[0] if head.parameters else "")
            head.authorized = principal
        self._admit(request, endpoint)
        if endpoint.coroutine is not None or head.is_form or request.collect(self._collected):
            endpoint.call(request).deliver(request)

    def _is_limited(self, principal: Principal) -> bool:
        """Whether it may have a rate. Without credentials it has one only if that was set."""
        return not principal.unlimited or self.node.cell.quotas.any_own

    def _take_rate(self, principal: Principal) -> None:
        """Count a request. Raises RateLimited if the caller, or its namespace, has sent too many, or too much."""
        try:
            self._rates.take(principal.namespace, principal.owner, self.node.clock())
        except RateLimited:
            self.gate.counts.rate_limited += 1
            raise

    def count_bytes(self, principal: Principal, size_bytes: int) -> None:
        """Count bytes of a body that have arrived: the next request of the namespace may have to wait for them."""
        if self._is_limited(principal):
            self._rates.add_bytes(principal.namespace, principal.owner, size_bytes, self.node.clock())

    def _collected(self, request: Request, error: Exception | None) -> None:
        """The whole body has arrived, or it will not."""
        if error is not None:
            request.fail(error)
            return
        try:
            with request.in_trace():
                request.endpoint.call(request).deliver(request)
        except Exception as failure:  # noqa: BLE001 - it is answered
            request.fail(failure)

    async def _administer(self, request: Request) -> None:
        """Do an act of administration: the audit log has it before it is answered, also if it is refused."""
        endpoint = request.endpoint
        name = request.parameters[0] if request.parameters else ""
        try:
            act = self.gate.audit.act(request.principal, endpoint.act, name, front="http", peer=request.peer)
            with act as request.audit_details:
                authorize(endpoint, request.principal, name)
                self._admit(request, endpoint)
                assert endpoint.coroutine is not None, "see `Routes`"
                response = await endpoint.coroutine(request)
            await self.gate.audit.synced()
        except Exception as error:  # noqa: BLE001 - it is answered
            request.fail(error)
        else:
            request.respond(response)
        finally:
            request.end()

    def _admit(self, request: Request, endpoint: Endpoint) -> None:
        """Take on one more request, if that is possible."""
        if self.closing and not endpoint.always_served:
            raise ShuttingDown
        if not endpoint.waits:
            request.start_work()

    def enter(self) -> None:
        """A request is being worked on, until it leaves."""
        if not self.working:
            self.idle.clear()
        self.working += 1

    def leave(self) -> None:
        self.working -= 1
        if not self.working:
            self.idle.set()

    def new_correlation_id(self) -> str:
        """For a request that brings none: unique among processes, and without a system call."""
        return f"{self._process}-{next(self._requests):x}"

    def count(self, method: str, path: str, status: int) -> None:
        """A response is sent."""
        place = (method, path, status)
        self.answered[place] = self.answered.get(place, 0) + 1
