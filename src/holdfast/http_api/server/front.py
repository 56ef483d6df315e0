"""The HTTP server: uvicorn on the broker's own loop, with limits on connections, headers and idle time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import structlog
import uvicorn
from starlette.routing import BaseRoute

from holdfast.auth import exposure
from holdfast.auth.gate import Gate
from holdfast.auth.tls import server_context
from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.kinds import split_address
from holdfast.errors import AddressUnavailable
from holdfast.http_api.server.app import Api
from holdfast.http_api.server.connection import Connection, WebSocketConnection
from holdfast.units import SECOND

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

DRAIN_SECONDS = 5.0  # how long requests under way may take to end at a stop, before they are cut off
BACKLOG = 2_048


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process belongs to the composition root; and without its patience for
    clients that begin a TLS handshake and do not go on, which it has for a minute each and does not count."""

    def __init__(self, config: uvicorn.Config, handshake_seconds: float) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._handshake_seconds = handshake_seconds

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        config = self.config

        def connection() -> asyncio.Protocol:
            make: Any = config.http_protocol_class
            protocol: asyncio.Protocol = make(
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return protocol

        self.servers = [
            await asyncio.get_running_loop().create_server(
                connection,
                sock=each,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=self._handshake_seconds if config.ssl is not None else None,
            )
            for each in sockets or ()
        ]
        self.started = True
        self.listening.set()


class HttpFront:
    """See the module."""

    def __init__(
        self,
        config: Config,
        node: Node,
        gate: Gate,
        extra_routes: Sequence[BaseRoute] = (),
    ) -> None:
        self.api = Api(config, node, gate, extra_routes)
        self._config = config
        self._tls = server_context(config.tls)
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._socket is not None, "the front has not been started"
        host, port = self._socket.getsockname()[:2]
        return host, port

    @property
    def url(self) -> str:
        host, port = self.address
        return f"{'https' if self._tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    async def start(self) -> None:
        """Listen and serve."""
        settings = self._config.http
        exposure.check(self._config.auth, split_address(settings.listen)[0], front="HTTP", tls=self._tls is not None)
        self._socket = _listen(settings.listen)
        tls = self._tls
        self._server = _Server(
            uvicorn.Config(
                self.api,
                http=_protocol(self._config, self.api),
                ws=WebSocketConnection,
                ws_max_size=self._config.mqtt.max_packet_bytes,  # a stranger can make us keep as much
                ws_per_message_deflate=False,  # it costs 300 KiB for each connection, and messages are small
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=max(settings.keep_alive // SECOND, 1),
                timeout_graceful_shutdown=int(DRAIN_SECONDS),
                ssl_context_factory=(lambda _config, _default: tls) if tls is not None else None,
            ),
            settings.header_timeout / SECOND,
        )
        listening = self._server.listening
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        self._task.add_done_callback(lambda _: listening.set())  # also if it failed
        await listening.wait()
        if self._task.done():
            await self._task
        log.info("HTTP API is listening", url=self.url)

    async def stop(self) -> None:
        """Refuse new requests, end long polls and streams, let the others finish, close."""
        self.api.close()
        if self._server is not None and self._task is not None:
            await self._end(self._server, self._task)
        self.api.closed()

    async def _end(self, server: _Server, task: asyncio.Task[None]) -> None:
        # While something is under way new requests are still answered, with 503: a load balancer then goes elsewhere
        # at once, instead of waiting for connections that nobody accepts.
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self.api.idle.wait()
        except TimeoutError:
            log.warning("requests are cut off: they did not end in time", requests=self.api.working)
        server.should_exit = True
        await asyncio.wait((task,))


def _protocol(config: Config, api: Api) -> type[asyncio.Protocol]:
    """uvicorn makes its protocols itself; what ours must know goes into the class."""
    return type("Connection", (Connection,), {"settings": config.http, "api": api})


def _listen(address: str) -> socket.socket:
    host, port = split_address(address)
    try:
        family, kind, _, _, name = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(name)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise AddressUnavailable(
            address=address, setting="http.listen", problem=error.strerror or str(error)
        ) from error
    listener.setblocking(False)
    return listener
