"""What `holdfast worker` says of itself over HTTP: `/health` and `/metrics`, of one process or of several.

Each process of several answers on a socket of its own, in a directory of the supervisor's, which asks them all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import msgspec

from holdfast.errors import InvalidArgument

log = logging.getLogger("holdfast.worker")

REQUEST_BYTES = 8_192
ANSWER_SECONDS = 5.0  # for a process to say how it is; one that is later hangs


class Address(msgspec.Struct, frozen=True):
    """Where to listen, and the option that said so."""

    option: str
    host: str
    port: int


class Status(msgspec.Struct, frozen=True):
    """Of one process."""

    healthy: bool
    state: str
    metrics: str = ""
    """In Prometheus' text format; empty: nothing is measured."""


Statuses = Callable[[], Awaitable[dict[str, Status]]]
"""The statuses of all processes, by their numbers."""


def health_of(statuses: dict[str, Status]) -> tuple[int, bytes]:
    """Whether all processes work."""
    healthy = bool(statuses) and all(status.healthy for status in statuses.values())
    states = {number: status.state for number, status in statuses.items()}
    return 200 if healthy else 503, msgspec.json.encode({"healthy": healthy, "processes": states})


def metrics_of(statuses: dict[str, Status]) -> bytes:
    """The metrics of all processes; of several, each series has the number of its process."""
    if len(statuses) == 1:
        return next(iter(statuses.values())).metrics.encode()
    from prometheus_client import CollectorRegistry, Metric, generate_latest  # noqa: PLC0415
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415
    from prometheus_client.registry import Collector  # noqa: PLC0415

    families: dict[str, Metric] = {}
    for number, status in statuses.items():
        for family in text_string_to_metric_families(status.metrics):
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            merged.samples += [
                sample._replace(labels={**sample.labels, "process": number}) for sample in family.samples
            ]

    class Merged(Collector):
        def collect(self) -> Iterable[Metric]:
            return families.values()

    registry = CollectorRegistry()
    registry.register(Merged())
    return generate_latest(registry)


class StatusServer:
    """Answers GET requests on a port or a socket."""

    def __init__(self, statuses: Statuses) -> None:
        self._statuses = statuses
        self._servers: list[asyncio.Server] = []

    async def listen(self, addresses: Iterable[Address]) -> None:
        for at in addresses:
            try:
                server = await asyncio.start_server(self._serve, at.host, at.port, limit=REQUEST_BYTES)
            except OSError as error:
                problem = f"cannot listen on {at.host}:{at.port}: {error.strerror or error}"
                raise InvalidArgument(field=at.option, problem=problem) from None
            self._servers.append(server)
            port = server.sockets[0].getsockname()[1]
            log.info("%s is at http://%s:%d/%s", at.option, at.host, port, at.option.removeprefix("--"))

    async def listen_at(self, path: str) -> None:
        """For the supervisor, which gets the status itself."""
        self._servers.append(await asyncio.start_unix_server(self._serve_status, path))

    async def close(self) -> None:
        for server in self._servers:
            server.close()
            await server.wait_closed()

    async def _serve_status(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (status,) = (await self._statuses()).values()
        writer.write(msgspec.json.encode(status))
        await _end(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                code, kind, body = await self._answer(head)
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            writer.close()
            return
        reason = {200: "OK", 404: "Not Found", 405: "Method Not Allowed"}.get(code, "Service Unavailable")
        writer.write(
            f"HTTP/1.1 {code} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        if not head.startswith(b"HEAD "):
            writer.write(body)
        await _end(writer)

    async def _answer(self, head: bytes) -> tuple[int, str, bytes]:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in {b"GET", b"HEAD"}:
            return 405, "text/plain", b"Only GET.\n"
        if path in {b"/health", b"/healthz", b"/readyz", b"/livez"}:
            code, body = health_of(await self._statuses())
            return code, "application/json", body
        if path == b"/metrics":
            return 200, "text/plain; version=0.0.4; charset=utf-8", metrics_of(await self._statuses())
        return 404, "text/plain", b"There are /health and /metrics.\n"


async def _end(writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        await writer.drain()
        writer.close()
        await writer.wait_closed()


async def ask(path: str) -> Status:
    """The status of the process that listens there."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_unix_connection(path)
            answer = await reader.read()
            writer.close()
        return msgspec.json.decode(answer, type=Status)
    except (OSError, TimeoutError, msgspec.DecodeError):
        return Status(healthy=False, state="does not answer")
