"""The HTTP server: listens, makes a connection of every client, and stops in order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping

import structlog

from holdfast.auth import exposure
from holdfast.auth.gate import Gate
from holdfast.auth.listening import BACKLOG, Listener, listen
from holdfast.auth.tls import server_context
from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.kinds import split_address
from holdfast.errors import AddressUnavailable
from holdfast.http_api.server.app import Api, Pages
from holdfast.http_api.server.connection import Connection, ConnectionPool, Upgrade
from holdfast.units import SECOND

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

DRAIN_SECONDS = 5.0
"""How long requests may take to end at a stop, and then connections to close, before they are cut off."""


class HttpFront:
    """See the module."""

    def __init__(
        self,
        config: Config,
        node: Node,
        gate: Gate,
        upgrades: Mapping[str, Upgrade] | None = None,
        pages: Pages | None = None,
    ) -> None:
        """`upgrades` are protocols of other fronts that share the port, by path: MQTT over WebSocket. `pages` are for
        people who come with a browser."""
        self.api = Api(config, node, gate, pages=pages)
        self.connections = ConnectionPool(self.api, config.http, upgrades or {})
        self._config = config
        self._tls = server_context(config.tls)
        self._server: Listener | None = None
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

    def connect(self, peer: str = "") -> Connection:
        """A new connection: the protocol of a transport. `peer` as in `Connection`."""
        return Connection(self.connections, peer)

    async def start(self) -> None:
        """Listen and serve."""
        settings = self._config.http
        exposure.check(self._config.auth, split_address(settings.listen)[0], front="HTTP", tls=self._tls is not None)
        self._socket = _listen(settings.listen)
        # A client that begins a handshake and does not go on is not counted as a connection.
        timeout_seconds = settings.header_timeout / SECOND
        proxies = self.api.gate.proxies if settings.proxy_protocol else None
        self._server = await listen(self.connect, self._socket, self._tls, timeout_seconds, proxies)
        log.info("HTTP API is listening", url=self.url)

    async def stop(self) -> None:
        """Refuse new requests, end long polls and streams, let the others finish, close."""
        self.api.close()
        # While requests are being worked on new ones are still answered, with 503: a load balancer then uses
        # another server immediately, instead of waiting for connections that are not accepted.
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self.api.idle.wait()
        except TimeoutError:
            log.warning("requests are cut off: they did not end in time", requests=self.api.working)
        if self._server is not None:
            self._server.close()
        await self._close_connections()
        self.api.closed()

    async def _close_connections(self) -> None:
        for connection in list(self.connections.open):
            connection.shutdown()
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self.connections.empty.wait()
        except TimeoutError:
            log.warning("connections are cut off: they did not close in time", connections=len(self.connections.open))
            for connection in list(self.connections.open):
                connection.abort()
        await self.api.cancel()


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
