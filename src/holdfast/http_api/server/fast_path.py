"""Requests served at once: without a task, a scope of their own or a future.

A request whose head was there before on its connection (heads.py), with its whole body at hand, for an endpoint that
has `begin`. It is let in, checked, counted and answered as any other, by the same functions; what is left out is only
what a coroutine of its own would cost, which is more than all the rest. What cannot be done at once goes the ordinary
way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import structlog
from starlette.types import Scope

from holdfast.broker.parts.messages import Receipt
from holdfast.core.commands import Draft
from holdfast.errors import HoldfastError
from holdfast.http_api.server.access import authorize, check_browser, recognize
from holdfast.http_api.server.head_cache import Head, parts
from holdfast.http_api.server.request import Call
from holdfast.http_api.server.response import DeferredEnqueue, DeferredResponse, Response, error_response

if TYPE_CHECKING:
    from holdfast.http_api.server.app import Api

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

SendResponse = Callable[[Response, str], bool]
"""Sends an answer with its correlation id; False: the client has gone."""


def read_head(api: Api, raw: bytes, url: bytes, headers: list[tuple[bytes, bytes]]) -> Head | None:
    """What is to be remembered of a request's head; None: nothing."""
    around = parts(raw, headers)
    if around is None or not url.isascii() or b"?" in url or b"#" in url:
        return None
    found = api.router.find(url.decode("ascii"))
    if found is None:
        return None
    methods, values = found
    endpoint = methods.get("POST")
    if endpoint is None or endpoint.begin is None or any("%" in value for value in values):
        return None
    known_headers = dict(headers)
    del known_headers[b"content-length"]
    return Head(*around, endpoint, values, known_headers)


def begin(api: Api, head: Head, body: bytes, scope: Scope, reply: SendResponse) -> bool:
    """Serve a request; `reply` is called when it may be answered, perhaps before this returns. False: nothing was done,
    and it must go the ordinary way."""
    endpoint = head.endpoint
    call: Call | None = None
    correlation_id = api.new_correlation_id()
    try:
        principal = recognize(api.gate, scope, head.headers)
        if principal is None or len(body) > api.config.http.max_request_bytes:
            return False
        call = Call(api, scope, _receive, endpoint, head.parameters, head.headers, correlation_id, principal)
        if principal is not head.admitted:
            check_browser(api.gate, principal, head.headers)
            authorize(endpoint, principal, head.parameters[0])
            head.admitted = principal
        api.check(endpoint)
        call.hold(len(body))
        assert endpoint.begin is not None, "only such heads are remembered"
        deferred = endpoint.begin(call, body)
        if deferred is None:
            call.close()
            return False
        begun = _FastRequest(call, reply)
        if isinstance(deferred, DeferredEnqueue):
            begun.enqueue(deferred)
        else:
            begun.wait(deferred)
    except Exception as error:  # noqa: BLE001 - it is answered
        result = error_response(error, endpoint, call, correlation_id)
        if call is not None:
            call.close()
        api.count("POST", endpoint.path, result.status)
        reply(result, correlation_id)
    else:
        if not endpoint.waits:
            api.enter()
    return True


class _FastRequest:
    """A request under way."""

    __slots__ = ("_answer", "_call", "_make", "_reply", "_undo", "drafts")

    def __init__(self, call: Call, reply: SendResponse) -> None:
        self._call = call
        self._reply = reply
        self._answer: Response | None = None
        self._make: Callable[[Receipt], Response] | None = None
        self._undo: Callable[[], None] | None = None
        self.drafts: list[Draft] = []

    def wait(self, deferred: DeferredResponse) -> None:
        """Answer when what was done is safe."""
        self._answer, self._undo = deferred.response, deferred.undo
        deferred.submission.on_done(self.on_done)

    def enqueue(self, request: DeferredEnqueue) -> None:
        """Have messages enqueued with others'."""
        self.drafts, self._make = request.drafts, request.response
        self._call.api.batcher.add(request.queue, self)

    def enqueued(self, receipt: Receipt) -> bool:
        """They are, and the receipt says how. False: it is answered already."""
        assert self._make is not None
        try:
            self._answer = self._make(receipt)
        except Exception as error:  # noqa: BLE001 - it is answered
            self._end(error_response(error, self._call.endpoint, self._call, self._call.correlation_id))
            return False
        return True

    def on_done(self, error: HoldfastError | None) -> None:
        """What was done is safe, or there was an error."""
        if error is not None:
            self._end(error_response(error, self._call.endpoint, self._call, self._call.correlation_id))
            return
        assert self._answer is not None
        if not self._end(self._answer) and self._undo is not None:
            self._undo()

    def _end(self, result: Response) -> bool:
        call = self._call
        api, endpoint = call.api, call.endpoint
        call.close()
        if not endpoint.waits:
            api.leave()
        api.count("POST", endpoint.path, result.status)
        return self._reply(result, call.correlation_id)


async def _receive() -> NoReturn:
    raise RuntimeError("what is served at once has its body")
