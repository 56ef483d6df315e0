"""The places that the audit log can be sent to, and how each is spoken to.

    Webhook   a POST of lines of JSON (NDJSON); anything but a 2xx is sent again (audit_webhook.py)
    Syslog    one RFC 5424 message for each entry, over UDP, TCP (octet counting, RFC 6587) or a Unix socket

`send` returns when the place has taken the entries, as far as its protocol can tell: a webhook says so; over TCP the
other system has acknowledged all bytes and the connection is open; of datagrams nothing is known.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import socket
import struct
import termios
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from holdfast.config.kinds import split_address

ANSWER_BYTES_MAX: Final = 1 << 16  # more of a response is not read; the connection is closed instead
ACK_POLL_SECONDS: Final = 0.01
UDP_BYTES_MAX: Final = 65_000
"""A datagram holds 65,507 bytes. A longer message is cut, as RFC 5424 allows: its hash then shows that it was."""

LOG_AUDIT: Final = 13  # the facility
WARNING, INFORMATIONAL = 4, 6  # severities


class NotTaken(Exception):
    """The place is there, and did not take the entries."""


class Place(Protocol):
    """Where entries are sent."""

    async def send(self, lines: Sequence[bytes]) -> None:
        """Send them in this order. Raises OSError or NotTaken."""

    async def close(self) -> None:
        """Close the connection; the next `send` opens another."""


class Syslog:
    """A syslog server. A local one at a Unix socket takes datagrams, or else a stream."""

    def __init__(self, address: str) -> None:
        self._scheme, _, self._where = address.partition("://")
        self._header = f"{_field(socket.gethostname(), 255)} holdfast {os.getpid()}"
        self._socket: socket.socket | None = None

    async def send(self, lines: Sequence[bytes]) -> None:
        loop = asyncio.get_running_loop()
        opened = self._socket = self._socket or await self._open()
        messages = [syslog_message(line, self._header) for line in lines]
        if opened.type == socket.SOCK_STREAM:
            await loop.sock_sendall(opened, b"".join(b"%d %b" % (len(message), message) for message in messages))
            await _acknowledged(opened)
            return
        for message in messages:
            await loop.sock_sendall(opened, message[:UDP_BYTES_MAX] if self._scheme == "udp" else message)

    async def _open(self) -> socket.socket:
        if self._scheme == "unix":
            try:
                return await _connected(socket.AF_UNIX, socket.SOCK_DGRAM, self._where)
            except OSError as error:
                if error.errno != errno.EPROTOTYPE:
                    raise
                return await _connected(socket.AF_UNIX, socket.SOCK_STREAM, self._where)
        host, port = split_address(self._where)
        kind = socket.SOCK_STREAM if self._scheme == "tcp" else socket.SOCK_DGRAM
        problem = OSError(f"{host} has no address")
        for family, _, _, _, address in await asyncio.get_running_loop().getaddrinfo(host, port, type=kind):
            try:
                return await _connected(family, kind, address)
            except OSError as error:
                problem = error
        raise problem

    async def close(self) -> None:
        opened, self._socket = self._socket, None
        if opened is not None:
            opened.close()


async def _connected(family: int, kind: int, address: str | tuple[object, ...]) -> socket.socket:
    opened = socket.socket(family, kind)
    opened.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(opened, address)
    except BaseException:
        opened.close()
        raise
    return opened


async def _acknowledged(stream: socket.socket) -> None:
    """Wait until the other side has all that was sent. Raises ConnectionError if it has closed the connection."""
    while _unacknowledged_bytes(stream):
        _check_open(stream)
        await asyncio.sleep(ACK_POLL_SECONDS)
    _check_open(stream)


def _unacknowledged_bytes(stream: socket.socket) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(stream, termios.TIOCOUTQ, b"\0" * 4))
    return int(count)


def _check_open(stream: socket.socket) -> None:
    """A syslog server answers nothing; if one does, that is dropped."""
    try:
        answer = stream.recv(ANSWER_BYTES_MAX)
    except BlockingIOError:
        return
    if not answer:
        raise ConnectionResetError("the connection was closed")


class _Shown(msgspec.Struct):
    """What a syslog server files an entry by."""

    at: str
    act: str
    result: str


_shown = msgspec.json.Decoder(_Shown)


def syslog_message(line: bytes, header: str) -> bytes:
    """An entry as RFC 5424 has it; `header` is host, program and process. Facility `log audit`; severity `warning`
    where the act failed or was refused, else `informational`."""
    try:
        entry = _shown.decode(line)
    except msgspec.MsgspecError:  # written by somebody else: passed on as it is
        entry = _Shown("-", "-", "")
    priority = LOG_AUDIT * 8 + (INFORMATIONAL if entry.result == "ok" else WARNING)
    return f"<{priority}>1 {_field(entry.at, 32)} {header} {_field(entry.act, 32)} - ".encode() + line


def _field(text: str, length_max: int) -> str:
    """A field of a header: printable ASCII without spaces."""
    return re.sub(r"[^!-~]", "?", text)[:length_max] or "-"
