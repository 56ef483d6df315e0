"""The HTTP front without a socket: requests of a client in the same process and on the same loop."""

from __future__ import annotations

from typing import Any

import httpx

from holdfast.http_api import HttpFront

_CONNECTION: dict[str, Any] = {
    "arrived": lambda: True,  # the whole request is here
    "body": lambda: None,  # it comes by ASGI
    "gather": lambda _hold: None,
    "answer": lambda *_: False,  # no wire to write to past ASGI
    "abort": lambda: None,
}
"""What the front is told by its own connections (see `holdfast.http_api.server.connection`)."""


def in_process(front: HttpFront) -> httpx.AsyncBaseTransport:
    """A transport for a client. Answers come whole: streams do not end, and so cannot be read through it."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        scope.setdefault("extensions", {})["holdfast"] = _CONNECTION
        await front.api(scope, receive, send)

    return httpx.ASGITransport(application)
