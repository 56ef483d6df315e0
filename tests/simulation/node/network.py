"""A network without sockets: two transports that hand each other's bytes on after a while, cut at any place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.node.loop import SimulatedLoop

LATENCY_SECONDS = 0.02


class Listener:
    """What `create_server` returns: the server's end of the network."""

    def __init__(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> None:
        self.factory = factory
        self.port = port
        self.open = True
        self.sockets = [_Address(host, port)]

    def close(self) -> None:
        self.open = False

    async def wait_closed(self) -> None:
        """It is closed at once."""


class _Address:
    def __init__(self, host: str, port: int) -> None:
        self._name = (host, port)

    def getsockname(self) -> tuple[str, int]:
        return self._name


class SimulatedTransport(asyncio.Transport):
    """One end of a connection. What is written arrives in order, in one chunk or several."""

    def __init__(self, loop: SimulatedLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self.protocol = protocol
        self.peer: SimulatedTransport | None = None
        self._arrives_at = 0.0  # the last that was sent
        self._paused = False
        self._unread: list[Callable[[], None]] = []
        self._closing = False
        self._lost = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("simulated", 1) if name in ("peername", "sockname") else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Everything written is on its way at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._paused

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._loop.call_soon(self._read)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        sent = bytes(data)
        random = self._loop.random
        at = random.randrange(len(sent)) if random.random() < 0.2 else 0
        for chunk in (sent[:at], sent[at:]):
            if chunk:
                self._send(lambda peer, chunk=chunk: peer.protocol.data_received(chunk))  # type: ignore[misc]

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._send(_end_of_input)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._send(_closed)
            self._loop.call_soon(self.lose)

    def abort(self) -> None:
        """Close; what is on its way to this end is not read."""
        self._unread.clear()
        self.close()

    def lose(self) -> None:
        """The connection is over at this end."""
        self._closing = True
        if not self._lost:
            self._lost = True
            self.protocol.connection_lost(None)

    def _send(self, event: Callable[[SimulatedTransport], None]) -> None:
        peer = self.peer
        assert peer is not None
        delay = self._loop.random_delay(LATENCY_SECONDS)
        self._arrives_at = max(self._loop.time() + delay, self._arrives_at + 1e-8)
        self._loop.call_at(self._arrives_at, peer._arrive, lambda: event(peer))

    def _arrive(self, event: Callable[[], None]) -> None:
        self._unread.append(event)
        self._read()

    def _read(self) -> None:
        while self._unread and not self._paused and not self._lost:
            self._unread.pop(0)()


def _end_of_input(peer: SimulatedTransport) -> None:
    if not peer.protocol.eof_received():
        peer.close()


def _closed(peer: SimulatedTransport) -> None:
    peer.lose()


def connect(loop: SimulatedLoop, listener: Listener, protocol: asyncio.Protocol) -> None:
    """Connect `protocol` to a server, which gets a protocol of its own."""
    if not listener.open:
        raise ConnectionRefusedError
    ours = SimulatedTransport(loop, protocol)
    theirs = SimulatedTransport(loop, listener.factory())
    ours.peer, theirs.peer = theirs, ours
    theirs.protocol.connection_made(theirs)
    protocol.connection_made(ours)
