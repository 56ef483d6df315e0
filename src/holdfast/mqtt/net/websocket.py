"""MQTT over WebSocket: takes over a connection of the HTTP server at `/mqtt`.

Packets may be cut and joined in messages at will [MQTT-6.0.0-2], text messages are refused [MQTT-6.0.0-1], the
subprotocol is `mqtt` [MQTT-6.0.0-3]. Frames and handshakes are read and written by `websockets`, without its I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, cast

import structlog
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from holdfast.auth import tls
from holdfast.errors import HoldfastError
from holdfast.mqtt.net.link import LINGER_SECONDS, Link
from holdfast.patient_timer import PatientTimer

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

SUBPROTOCOL: Final = Subprotocol("mqtt")

PING_SECONDS: Final = 20.0
"""How often a client is asked whether it is there, and within which it has to answer: MQTT 3.1.1 clients need not keep
alive, and proxies close what is silent."""


class WebSocketEndpoint:
    """Makes what takes over a connection."""

    def __init__(
        self,
        make_link: Callable[[str], Link],
        check: Callable[[str, str | None], None],
        *,
        buffer_bytes: int,
        connect_bytes_max: int,
        message_bytes_max: int,
    ) -> None:
        """`check` is given the headers host and origin, and raises if a page of another site opens the WebSocket."""
        self.make_link = make_link
        self.check = check
        self.buffer_bytes = buffer_bytes
        self.connect_bytes_max = connect_bytes_max  # of a message before the client is connected
        self.message_bytes_max = message_bytes_max

    def __call__(self, on_lost: Callable[[WebSocketConnection], None], peer: str) -> WebSocketConnection:
        return WebSocketConnection(self, on_lost, peer)


class WebSocketConnection(asyncio.Protocol):
    """One WebSocket: to asyncio a protocol, to its link a transport."""

    def __init__(self, endpoint: WebSocketEndpoint, on_lost: Callable[[WebSocketConnection], None], peer: str) -> None:
        self._endpoint = endpoint
        self._peer = peer
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._socket = ServerProtocol(subprotocols=[SUBPROTOCOL], max_size=endpoint.connect_bytes_max)
        self._transport: asyncio.Transport
        self._link: Link | None = None
        self._reading = True
        self.pinged = False  # and not answered
        self._ping_timer: PatientTimer | None = None
        self._linger_timer: asyncio.TimerHandle | None = None

    # --- from asyncio -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are, in all but the name
        self._transport.set_write_buffer_limits(high=self._endpoint.buffer_bytes)

    def data_received(self, data: bytes) -> None:
        self._socket.receive_data(data)
        for event in self._socket.events_received():
            if isinstance(event, Request):
                self._open(event)
            elif isinstance(event, Frame):
                self._read(event)
        self._flush()

    def eof_received(self) -> None:
        self._socket.receive_eof()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        for timer in (self._ping_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        self._end_link()
        self._on_lost(self)

    def pause_writing(self) -> None:
        if self._link is not None:
            self._link.pause_writing()

    def resume_writing(self) -> None:
        if self._link is not None:
            self._link.resume_writing()

    # --- the WebSocket ----------------------------------------------------------------------------------------------

    def _open(self, request: Request) -> None:
        host, origin = _first(request, "Host") or "", _first(request, "Origin")
        offered = [
            name.strip() for line in request.headers.get_all("Sec-WebSocket-Protocol") for name in line.split(",")
        ]
        try:
            self._endpoint.check(host, origin)
        except HoldfastError as error:
            log.warning("WebSocket refused", code=error.code, origin=origin)
            self._socket.send_response(self._socket.reject(HTTPStatus.FORBIDDEN, error.code))
            return
        if SUBPROTOCOL not in offered:
            self._socket.send_response(self._socket.reject(HTTPStatus.FORBIDDEN, "subprotocol mqtt is needed"))
            return
        self._socket.send_response(self._socket.accept(request))
        if self._socket.state is not State.OPEN:
            return
        self._flush()
        link = self._link = self._endpoint.make_link(self._peer)
        link.subject = tls.peer_subject(self._transport.get_extra_info("ssl_object"))
        link.host, link.origin = host, origin
        link.open(self)
        self._ping_timer = PatientTimer(self._loop, PING_SECONDS, self.ping)

    def _read(self, frame: Frame) -> None:
        self.pinged = False
        match frame.opcode:
            case Opcode.TEXT:
                self._socket.fail(CloseCode.UNSUPPORTED_DATA, "MQTT is binary")
                self._end_link()
            case Opcode.BINARY | Opcode.CONT:
                if self._link is not None:  # not only when its message is complete: that may never be
                    self._link.data_received(bytes(frame.data))
            case Opcode.CLOSE:
                self._end_link()

    def _flush(self) -> None:
        """Send what `websockets` has to say."""
        if self._transport.is_closing():
            return
        for data in self._socket.data_to_send():
            if data:
                self._transport.write(data)
            else:
                self._end()
        if self._socket.parser_exc is not None:
            self._end_link()

    def _end(self) -> None:
        """All has been said. What the client still sends is read and thrown away, for a while: the system resets a
        connection that is closed with input unread, and the client may then never see why it was closed."""
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self.resume_reading()
            if self._linger_timer is None:
                self._linger_timer = self._loop.call_later(LINGER_SECONDS, self._transport.abort)
        else:
            self._transport.close()

    def _end_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.connection_lost(None)

    def ping(self) -> None:
        """Ask whether the client is there; close if it has not answered since the last time."""
        if self.pinged and self._reading:
            self._transport.abort()
            return
        self.pinged = True
        if self._socket.state is State.OPEN:
            self._socket.send_ping(b"")
            self._flush()
        self._ping_timer = PatientTimer(self._loop, PING_SECONDS, self.ping)

    # --- from the link ----------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._socket.state is State.OPEN:
            self._socket.send_binary(data)
            self._flush()

    def can_write_eof(self) -> bool:
        return False  # a WebSocket has a close of its own

    def write_eof(self) -> None:
        raise NotImplementedError("see can_write_eof")

    def close(self) -> None:
        if self._socket.state is State.OPEN:
            self._socket.send_close(CloseCode.NORMAL_CLOSURE)
            self._flush()
            self.resume_reading()

    def abort(self) -> None:
        self._transport.abort()

    def pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._link is not None and self._link.principal is not None:
            self._socket.max_message_size = self._endpoint.message_bytes_max
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()

    # --- from the HTTP server ---------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """The server stops."""
        if self._socket.state is State.OPEN:
            self._socket.send_close(CloseCode.SERVICE_RESTART)
            self._flush()
        else:
            self._transport.close()


def _first(request: Request, name: str) -> str | None:
    values = request.headers.get_all(name)
    return values[0] if values else None
