"""An HTTP server that the audit log is sent to: a POST of lines of JSON (NDJSON); anything but a 2xx is sent again."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import httpcore
import httpx

from holdfast import __version__, threads
from holdfast.auth.audit_places import ANSWER_BYTES_MAX, NotTaken
from holdfast.config.secret import HIDDEN
from holdfast.errors import InvalidConfig

_HEADERS: Final = [(b"content-type", b"application/x-ndjson"), (b"user-agent", f"holdfast/{__version__}".encode())]


class Webhook:
    """An HTTP server that takes POSTs."""

    def __init__(self, address: str) -> None:
        try:
            self._url = httpx.URL(address)
        except httpx.InvalidURL as error:
            raise InvalidConfig(field="audit.webhook", value=HIDDEN, problem=f"it is no address: {error}") from None
        self._trusted: ssl.SSLContext | None = None
        self._connections: httpcore.AsyncConnectionPool | None = None

    async def send(self, lines: Sequence[bytes]) -> None:
        connections = self._connections or await self._open()
        url = self._url
        body = b"".join(line + b"\n" for line in lines)
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        headers = [(b"host", url.netloc), *_HEADERS, *_authorization(url), (b"content-length", b"%d" % len(body))]
        try:
            async with connections.stream("POST", target, headers=headers, content=body) as response:
                read = 0
                async for chunk in response.aiter_stream():  # to its end, so that the connection can be used again
                    read += len(chunk)
                    if read > ANSWER_BYTES_MAX:
                        break
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            raise NotTaken(str(error) or type(error).__name__) from error
        if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise NotTaken(f"answered {response.status}")

    async def _open(self) -> httpcore.AsyncConnectionPool:
        if self._trusted is None:  # reading the certificates of the authorities takes 25 ms
            self._trusted = await threads.run_in_thread("holdfast-audit-shipping", httpx.create_ssl_context)
        self._connections = httpcore.AsyncConnectionPool(self._trusted, max_connections=1)
        return self._connections

    async def close(self) -> None:
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.aclose()


def _authorization(url: httpx.URL) -> list[tuple[bytes, bytes]]:
    """The user and password of an address, as a caller sends them."""
    if not url.userinfo:
        return []
    return [(b"authorization", b"Basic " + b64encode(f"{url.username}:{url.password}".encode()))]
