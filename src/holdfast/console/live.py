"""Updates of open pages, as server-sent events: parts of the page as HTML, when they have changed.

event: parts     data: {"id of an element": "its new content"}
event: sample    the plots have one more sample
event: end       the session has ended, or the server stops; data says which
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import msgspec

from holdfast.console.caller import SECURITY, ApiProblem, Caller, problem_of
from holdfast.console.refusals import LIVE_FULL
from holdfast.errors import HoldfastError
from holdfast.http_api.server.response import EVENTS, Response

EVERY_SECONDS: Final = 2.0
NO_BUFFERING: Final = (b"x-accel-buffering", b"no")

Parts = Callable[[], Awaitable[dict[str, str]]]
"""The content of elements, by their ids."""


def live(caller: Caller, parts: Parts) -> Response:
    """A response that lasts as long as the page is open."""
    console = caller.console
    if console.live >= console.settings.max_live:
        raise LIVE_FULL
    caller.request.api.long_requests.check(caller.principal)
    console.live += 1
    return Response(_events(caller, parts), 200, EVENTS, (*SECURITY, NO_BUFFERING), lambda: _closed(caller))


def _closed(caller: Caller) -> None:
    caller.console.live -= 1


async def _events(caller: Caller, parts: Parts) -> AsyncIterator[bytes]:
    console, request = caller.console, caller.request
    ended: asyncio.Future[HoldfastError] = asyncio.get_running_loop().create_future()

    def end(why: HoldfastError) -> None:
        if not ended.done():
            ended.set_result(why)

    shown: dict[str, str] = {}
    sampled_at = console.sampler.samples.taken_at
    with request.api.long_requests.until(caller.principal, end):
        while not request.disconnected.done():
            if not ended.done() and not console.is_signed_in(request):
                yield _event("end", "signed out")
                return
            if ended.done():
                yield _event("end", ended.result().code)
                return
            yield await _changed(parts, shown)
            if console.sampler.samples.taken_at != sampled_at:
                sampled_at = console.sampler.samples.taken_at
                yield _event("sample", sampled_at)
            waited: set[asyncio.Future[Any]] = {request.disconnected, ended}
            await asyncio.wait(waited, timeout=EVERY_SECONDS, return_when=asyncio.FIRST_COMPLETED)


async def _changed(parts: Parts, shown: dict[str, str]) -> bytes:
    """What is different from what the page shows. What cannot be read now is shown as a problem."""
    try:
        found = await parts()
    except (HoldfastError, ApiProblem) as error:
        return _event("problem", problem_of(error)[2])
    new = {name: text for name, text in found.items() if shown.get(name) != text}
    shown |= new
    return _event("parts", new) if new else b": nothing new\n\n"


def _event(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))
