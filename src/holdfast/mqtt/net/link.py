"""One network connection, whatever it runs over: bytes in, packets to the front, bytes out.

A `Link` is the tag of the hub's connection. It is bounded on both sides: a client that does not read what it is sent
gets no more and is not read from either until it does, and is dropped if it never does.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final, Protocol, cast

from holdfast.auth import tls
from holdfast.auth.principal import Principal
from holdfast.mqtt.codec import Connect, Decoder, Packet, ProtocolError
from holdfast.mqtt.net.meter import Traffic
from holdfast.mqtt.sessions.connection import Connection
from holdfast.patient_timer import PatientTimer

LINGER_SECONDS: Final = 5.0
"""How long a closed connection may take to send what is left, and its client to close it too, before it is cut."""


KEEP_ALIVE_SECONDS: Final = 600
"""TCP probes a client that has been silent for so long: 3.1.1 clients need not keep alive, and the connection of one
that vanished must not stay open for ever."""


def _keep_alive(raw: socket.socket | None) -> None:
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):  # Linux
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_SECONDS)


class Transport(Protocol):
    """What a link needs of a transport; asyncio's have it."""

    def write(self, data: bytes) -> None: ...
    def can_write_eof(self) -> bool: ...
    def write_eof(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class LinkHandler(Protocol):
    """The front."""

    def made(self, link: Link) -> Connection | None: ...
    def connecting(self, link: Link, packet: Connect) -> None: ...
    def received(self, link: Link, packets: list[Packet]) -> None: ...
    def broken(self, link: Link, error: ProtocolError) -> None: ...
    def paused(self, link: Link) -> None: ...
    def resumed(self, link: Link) -> None: ...
    def lost(self, link: Link) -> None: ...


class Link(asyncio.Protocol):
    """See the module. asyncio calls the upper half, the front the lower."""

    def __init__(
        self,
        owner: LinkHandler,
        decoder: Decoder,
        traffic: Traffic,
        buffer_bytes: int,
        stall_seconds: float,
        peer: str = "",
    ) -> None:
        self._owner = owner
        self._traffic = traffic
        self._buffer_bytes = buffer_bytes
        self._stall_seconds = stall_seconds
        self._loop = asyncio.get_running_loop()
        self._transport: Transport | None = None
        self._stall: PatientTimer | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._waiting: list[Packet] | None = None  # what came after CONNECT, while that is being authenticated
        self._error: ProtocolError | None = None
        self._holds: set[str] = set()  # why nothing is read at the moment
        self._closed = False
        self.decoder = decoder
        self.connection: Connection | None = None
        self.principal: Principal | None = None
        self.peer = peer
        self.subject: str | None = None  # of the client's certificate
        self.host: str | None = None  # of a WebSocket: what it called us, and the page that opened it, if one did
        self.origin: str | None = None

    # --- from the network -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's are, in all but the name
        transport.set_write_buffer_limits(high=self._buffer_bytes)
        _keep_alive(transport.get_extra_info("socket"))
        peer = transport.get_extra_info("peername")
        self.subject = tls.peer_subject(transport.get_extra_info("ssl_object"))
        self.peer = self.peer or (str(peer[0]) if isinstance(peer, tuple) else "")
        self.open(transport)

    def open(self, transport: Transport) -> None:
        self._transport = transport
        self.connection = self._owner.made(self)
        if self.connection is None:
            self._closed = True
            transport.abort()

    def data_received(self, data: bytes) -> None:
        connection = self.connection
        if connection is None or connection.closing:
            return
        self._traffic.bytes_received += len(data)
        error: ProtocolError | None = None
        try:
            packets = self.decoder.feed(data)
        except ProtocolError as found:
            error = found
            packets = list(found.packets)  # type: ignore[arg-type]  # packets, though `rules` does not know the type
        if self._waiting is not None:
            self._waiting += packets
            self._error = self._error or error
            return
        if packets:
            if type(packets[0]) is Connect:
                self._waiting, self._error = packets[1:], error
                self.hold("connect")
                self._owner.connecting(self, packets[0])
                return
            self._owner.received(self, packets)
        if error is not None:
            self._owner.broken(self, error)

    def on_connack(self) -> None:
        """CONNECT was answered: go on with what came after it."""
        packets, self._waiting = self._waiting or [], None
        error, self._error = self._error, None
        self.unhold("connect")
        if packets:
            self._owner.received(self, packets)
        if error is not None:
            self._owner.broken(self, error)

    def pause_writing(self) -> None:
        self._stall = PatientTimer(self._loop, self._stall_seconds, self._give_up)
        self.hold("writing")  # its answers would accumulate here
        self._owner.paused(self)

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        self.unhold("writing")
        self._owner.resumed(self)

    def _give_up(self) -> None:
        """The client has read nothing for too long."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._closed = True
        for timer in (self._stall, self._linger):
            if timer is not None:
                timer.cancel()
        self._owner.lost(self)

    # --- from the front ---------------------------------------------------------------------------------------------

    def send(self, data: bytes, close: bool) -> None:
        transport = self._transport
        if transport is None or self._closed:
            return
        if data:
            self._traffic.bytes_sent += len(data)
            transport.write(data)
        if close:
            self._end(transport)

    def _end(self, transport: Transport) -> None:
        """Send what is left, and close when the client does. What it still sends is read and thrown away: the system
        resets a connection that is closed with input unread, and then the client may never see why it was closed."""
        self._closed = True
        if transport.can_write_eof():
            try:
                transport.write_eof()
            except OSError:  # the client has reset the connection, and the loop has yet to notice
                transport.abort()
                return
            if self._holds:
                transport.resume_reading()
        else:
            transport.close()
        self._linger = self._loop.call_later(LINGER_SECONDS, transport.abort)

    def cut(self) -> None:
        """End it immediately: nothing more is sent."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def hold(self, why: str) -> None:
        """Read nothing until the reason is gone. TCP makes the client wait."""
        if not self._holds and self._transport is not None and not self._closed:
            self._transport.pause_reading()
        self._holds.add(why)

    def unhold(self, why: str) -> None:
        self._holds.discard(why)
        if not self._holds and self._transport is not None and not self._closed:
            self._transport.resume_reading()
