"""multipart/form-data as it arrives: a `meta` part with JSON and a `payload` part, which may be large.

Bytes go to their part as they come; only the payload itself is ever held whole. By hand, because the usual library
buffers to temporary files and is one more dependency for eighty lines.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from email.message import Message as Headers
from email.parser import BytesParser

from holdfast.error_text import shown
from holdfast.errors import HoldfastError, MalformedRequest

HEAD_BYTES_MAX = 8 << 10  # of one part's headers
PARTS_MAX = 8


def boundary_of(content_type: str) -> bytes:
    """The boundary that a Content-Type header names."""
    headers = Headers()
    headers["content-type"] = content_type
    boundary = headers.get_param("boundary")
    if not isinstance(boundary, str) or not 1 <= len(boundary) <= 70 or not boundary.isascii():
        raise MalformedRequest(problem="the multipart body's boundary is missing or wrong")
    return boundary.encode()


class FormPart:
    """One field of a form."""

    __slots__ = ("content", "content_type", "limit_bytes", "name", "too_large")

    def __init__(self, name: str, content_type: str, limit_bytes: int, too_large: HoldfastError) -> None:
        self.name = name
        self.content_type = content_type
        self.content = bytearray()
        self.limit_bytes = limit_bytes
        self.too_large = too_large

    def add(self, data: bytes) -> None:
        if len(self.content) + len(data) > self.limit_bytes:
            raise self.too_large
        self.content += data


class Limits:
    """How large a part of which name may be, and what is said if it is larger."""

    def __init__(self, by_name: dict[str, tuple[int, HoldfastError]]) -> None:
        self._by_name = by_name

    def part(self, name: str, content_type: str) -> FormPart:
        known = self._by_name.get(name)
        if known is None:
            raise MalformedRequest(problem=f"the form has a part {shown(name)!r}; known are {', '.join(self._by_name)}")
        return FormPart(name, content_type, *known)


async def read_parts(chunks: AsyncIterator[bytes], boundary: bytes, limits: Limits) -> dict[str, FormPart]:
    """The parts of a form, by name."""
    parts: dict[str, FormPart] = {}
    delimiter = b"\r\n--" + boundary
    buffer = b"\r\n"  # the first delimiter has no line break before it
    current: FormPart | None = None
    inside_head = False
    async for chunk in chunks:
        buffer += chunk
        while True:
            if inside_head:
                end = buffer.find(b"\r\n\r\n")
                if end < 0:
                    if len(buffer) > HEAD_BYTES_MAX:
                        raise MalformedRequest(problem="a part's headers are too large")
                    break
                current = _open(buffer[2:end], limits, parts)
                buffer = buffer[end + 4 :]
                inside_head = False
            at = buffer.find(delimiter)
            if at < 0:
                keep = len(delimiter) - 1
                if current is not None and len(buffer) > keep:
                    current.add(buffer[:-keep])
                buffer = buffer[-keep:]
                break
            if len(buffer) < at + len(delimiter) + 2:
                break
            if current is not None:
                current.add(buffer[:at])
            after = buffer[at + len(delimiter) : at + len(delimiter) + 2]
            if after == b"--":
                return parts
            if after != b"\r\n":
                raise MalformedRequest(problem="the multipart body's delimiter is followed by something else")
            buffer = buffer[at + len(delimiter) :]  # with the line break: a part may have no headers at all
            inside_head = True
    raise MalformedRequest(problem="the multipart body ends before its last delimiter")


def _open(head: bytes, limits: Limits, parts: dict[str, FormPart]) -> FormPart:
    headers = BytesParser().parsebytes(head + b"\r\n\r\n", headersonly=True)
    name = headers.get_param("name", header="content-disposition")
    if not isinstance(name, str):
        raise MalformedRequest(problem="a part has no name (Content-Disposition: form-data; name=…)")
    if name in parts or len(parts) >= PARTS_MAX:
        raise MalformedRequest(problem=f"the form has part {shown(name)!r} twice, or too many parts")
    part = limits.part(name, headers.get_content_type() if "content-type" in headers else "")
    parts[name] = part
    return part
