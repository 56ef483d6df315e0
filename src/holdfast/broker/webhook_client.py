"""One call of a webhook: HTTP, and who may be connected to.

Apart from webhooks.py, because most servers never call one: HTTP's client and the certificates of the authorities are
8 MiB of memory.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from http import HTTPStatus

import httpcore
import httpx
import msgspec

from holdfast import __version__, threads
from holdfast.broker.webhook_receivers import ReceiverNotAllowed, ReceiverPolicy, Resolve
from holdfast.config import WebhookSettings
from holdfast.units import SECOND

ANSWER_BYTES_MAX = 1 << 16  # more of a response is not read; the connection is closed instead

# Refusals that are worth a retry: everything else below 500 says that the call itself is wrong.
_TEMPORARY = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
_HEADERS = [(b"content-type", b"application/json"), (b"user-agent", f"holdfast/{__version__}".encode())]


class CallOutcome(msgspec.Struct, frozen=True):
    """How one call ended. `problem` is empty when the receiver accepted it."""

    problem: str = ""
    final: bool = False
    retry_after: float = 0.0


@cache
def _trusted() -> ssl.SSLContext:
    """Shared: reading the certificates of the authorities takes 25 ms."""
    return httpx.create_ssl_context()


class WebhookClient:
    """Connections to receivers. To be created on a thread: it reads the certificates."""

    def __init__(
        self, settings: WebhookSettings, resolve: Resolve, trusted: Callable[[], ssl.SSLContext] | None
    ) -> None:
        self._timeout_seconds = settings.timeout / SECOND
        self._connections = httpcore.AsyncConnectionPool(
            (trusted or _trusted)(),
            max_connections=settings.concurrency,
            network_backend=CheckedNetwork(ReceiverPolicy(settings.allow), resolve),
        )

    @staticmethod
    def receiver(url: str) -> str:
        """The receiver, for the log: without path, query and password, which may be secrets."""
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL:
            return "(invalid URL)"
        return f"{parsed.scheme}://{parsed.netloc.decode()}"

    async def close(self) -> None:
        await self._connections.aclose()

    async def post(self, url: str, body: bytes) -> CallOutcome:
        """Call a receiver once."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._post(httpx.URL(url), body)
        except (httpx.InvalidURL, httpcore.UnsupportedProtocol, httpcore.LocalProtocolError) as error:
            return CallOutcome(f"cannot be called: {error}", final=True)
        except ReceiverNotAllowed as error:
            return CallOutcome(str(error), final=True)
        except (TimeoutError, httpcore.TimeoutException):
            return CallOutcome("no answer in time")
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            return CallOutcome(str(error) or type(error).__name__)

    async def _post(self, url: httpx.URL, body: bytes) -> CallOutcome:
        if not url.host:
            raise httpx.InvalidURL("it names no host")
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        headers = [(b"host", url.netloc), *_HEADERS, *_authorization(url), (b"content-length", b"%d" % len(body))]
        async with self._connections.stream("POST", target, headers=headers, content=body) as response:
            status = response.status
            read = 0
            async for chunk in response.aiter_stream():  # to its end, so that the connection can be used again
                read += len(chunk)
                if read > ANSWER_BYTES_MAX:
                    break
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            return CallOutcome()
        final = status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _TEMPORARY
        after = next((value for name, value in response.headers if name.lower() == b"retry-after"), b"")
        return CallOutcome(f"answered {status}", final, _retry_after(after.decode("latin-1")))


def _authorization(url: httpx.URL) -> list[tuple[bytes, bytes]]:
    """The user and password of an address, as a caller sends them."""
    if not url.userinfo:
        return []
    return [(b"authorization", b"Basic " + b64encode(f"{url.username}:{url.password}".encode()))]


def _retry_after(value: str) -> float:
    """Seconds to wait, from a number of them or a date; 0 if it says neither."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    return max((moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds(), 0.0)


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to receivers that may be called, and to no others."""

    def __init__(self, policy: ReceiverPolicy, resolve: Resolve) -> None:
        self._policy = policy
        self._resolve = resolve
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            # A thread of its own, since a resolver may hang: how many there are is bounded by the calls under way.
            answer = threads.start_thread("webhook-resolver", self._resolve, host, port)
            addresses = await asyncio.wrap_future(answer)
        except OSError as error:
            raise httpcore.ConnectError(f"{host} cannot be resolved: {error}") from error
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in self._policy.allowed(host, addresses):
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore.ConnectError as error:
                failure = error
        raise failure

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
