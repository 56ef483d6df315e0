"""Calls of the API from inside the server, for somebody who is known: the console's pages use the API as any client
does, with the rights, the limits and the audit log of the person who looks at them."""

from __future__ import annotations

import asyncio

from holdfast.auth.principal import Principal
from holdfast.http_api.server.app import Api
from holdfast.http_api.server.head import Head
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response


class _Caller:
    """The other end of one call. See `Channel`."""

    def __init__(self, peer: str) -> None:
        self.subject: str | None = None
        self.response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._peer = peer

    @property
    def lost(self) -> bool:
        return self.response.cancelled()

    def client(self, head: Head) -> str:  # noqa: ARG002 - of a connection it depends on the head
        return self._peer

    def claim(self, principal: Principal) -> None:
        """The connection that the person uses counts already."""

    def want_body(self, head: Head) -> None:
        """It is here."""

    def send(self, request: Request, response: Response) -> bool:  # noqa: ARG002 - there is one request only
        if self.response.done():
            if response.close is not None:
                response.close()
            return False
        self.response.set_result(response)
        return True

    def abort(self) -> None:
        self.response.cancel()


async def call(
    api: Api, principal: Principal, method: str, target: str, body: bytes = b"", *, peer: str = ""
) -> Response:
    """The response to a request with a JSON body, made for `principal`. `target` is path and query, encoded. A caller
    that is cancelled counts as a client that has gone."""
    headers = [(b"content-type", b"application/json")] if body else []
    head = Head(method, target.encode("ascii"), headers, api.router, keep_alive=True)
    caller = _Caller(peer)
    request = Request(api, caller, head, body, None, len(body))
    api.serve_for(request, principal)
    try:
        return await caller.response
    finally:
        if not caller.response.done() or caller.response.cancelled():
            request.disconnect()
