"""Listening for connections, also behind proxies that begin each with a header of the PROXY protocol.

The header stands before everything else, a TLS handshake too, so it is read from the socket before there is a
transport. Connections from other addresses than those of trusted proxies have none, and begin immediately.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, Protocol

import structlog

from holdfast.auth.proxies import ProxyHeaderInvalid, TrustedProxies, read_header

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

BACKLOG: Final = 2_048
BEGINNING_MAX: Final = 1024
"""Connections whose header or handshake has not come yet; further ones are closed."""

ACCEPT_PAUSE_SECONDS: Final = 0.5
"""After a connection could not be accepted, as when there are too many open files."""

MakeProtocol = Callable[[str], asyncio.Protocol]
"""Makes the protocol of a connection, given the client's address; empty: that of the connection."""


class Listener(Protocol):
    """What accepts connections until it is closed."""

    @property
    def sockets(self) -> Sequence[socket.socket]: ...
    def close(self) -> None: ...


async def listen(
    make: MakeProtocol,
    where: tuple[str, int] | socket.socket,
    context: ssl.SSLContext | None,
    timeout_seconds: float,
    proxies: TrustedProxies | None,
) -> Listener:
    """Accept connections on a host and port, or on a socket that is bound, with TLS if there is a context. `proxies`
    begin connections with a header; None: nobody does. Header and handshake may take `timeout_seconds` together.
    Raises OSError."""
    if proxies is not None:
        listeners = [where] if isinstance(where, socket.socket) else _bind(*where)
        return ProxyListener(listeners, make, context, timeout_seconds, proxies)
    loop = asyncio.get_running_loop()
    handshake = timeout_seconds if context is not None else None

    def connect() -> asyncio.Protocol:
        return make("")

    if isinstance(where, socket.socket):
        return await loop.create_server(
            connect, sock=where, ssl=context, backlog=BACKLOG, ssl_handshake_timeout=handshake
        )
    return await loop.create_server(connect, *where, ssl=context, backlog=BACKLOG, ssl_handshake_timeout=handshake)


def _bind(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on the addresses that the host stands for."""
    bound: list[socket.socket] = []
    try:
        for family, kind, _, _, name in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            listener = socket.socket(family, kind)
            bound.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(name)
            listener.listen(BACKLOG)
            listener.setblocking(False)
    except OSError:
        for listener in bound:
            listener.close()
        raise
    return bound


class ProxyListener:
    """See the module."""

    def __init__(
        self,
        listeners: list[socket.socket],
        make: MakeProtocol,
        context: ssl.SSLContext | None,
        timeout_seconds: float,
        proxies: TrustedProxies,
    ) -> None:
        self.sockets = tuple(listeners)
        self._make = make
        self._context = context
        self._timeout_seconds = timeout_seconds
        self._proxies = proxies
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._accepting = [self._loop.create_task(self._accept(listener)) for listener in listeners]

    def close(self) -> None:
        """Accept no more, and drop connections that have not begun."""
        for task in (*self._accepting, *self._beginning):
            task.cancel()
        for listener in self.sockets:
            listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = await self._loop.sock_accept(listener)
            except OSError as error:
                log.warning("a connection could not be accepted", error=str(error))
                await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
                continue
            if len(self._beginning) >= BEGINNING_MAX:
                connection.close()
                continue
            self._spawn(self._begin(connection, str(address[0])))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, connection: socket.socket, peer: str) -> None:
        connection.setblocking(False)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                client = await self._client(connection) if peer in self._proxies else ""
                await self._loop.connect_accepted_socket(lambda: self._make(client), connection, ssl=self._context)
        except (OSError, TimeoutError, ProxyHeaderInvalid) as error:
            log.debug("a connection did not begin", peer=peer, error=str(error) or type(error).__name__)
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise

    async def _client(self, connection: socket.socket) -> str:
        async def read(size: int) -> bytes:
            found = b""
            while len(found) < size:
                data = await self._loop.sock_recv(connection, size - len(found))
                if not data:
                    raise ProxyHeaderInvalid("the connection ended before its header did")
                found += data
            return found

        return await read_header(read)
