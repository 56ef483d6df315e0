"""The stream of a backup: a line of JSON before each file, and a last line without which it is cut short.

{"begin": …}                                          what is backed up (`Description`)
{"file": "store/db/000012.sst", "size_bytes": 71, …}  followed by so many bytes
{"same": "store/db/000011.sst", "size_bytes": 52, …}  a file that the client has
{"end": 2}                                            how many files there were
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from holdfast.backup.manifest import Description

LINE_BYTES_MAX = 1 << 16


class Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the stream; one of `begin`, `file`, `same` and `end` is set."""

    begin: Description | None = None
    file: str = ""
    same: str = ""
    size_bytes: int = 0
    fingerprint: str = ""
    end: int | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Frame).decode


def line(frame: Frame) -> bytes:
    return _encode(frame) + b"\n"


class FrameReader:
    """Reads a stream that arrives in parts of any size. ValueError: it is none, or it ends too early."""

    def __init__(self, parts: Iterable[bytes], advance: Callable[[int], None] = lambda _size_bytes: None) -> None:
        self._parts = iter(parts)
        self._advance = advance
        self._buffer = b""
        self._left = 0  # of the file under way

    def _more(self) -> bytes:
        part = next(self._parts, b"")
        while not part:  # an empty part is no end
            try:
                part = next(self._parts)
            except StopIteration:
                raise ValueError("it was cut short") from None
        self._advance(len(part))
        return part

    def frames(self) -> Iterator[Frame]:
        """The lines. The content of a file must be read before the next one."""
        while True:
            if self._left:
                raise ValueError("the content of a file was not read")
            while (end := self._buffer.find(b"\n")) < 0:
                if len(self._buffer) > LINE_BYTES_MAX:
                    raise ValueError("it is no backup")
                self._buffer += self._more()
            text, self._buffer = self._buffer[:end], self._buffer[end + 1 :]
            try:
                frame = _decode(text)
            except msgspec.DecodeError as error:
                raise ValueError(f"it is no backup: {error}") from error
            self._left = frame.size_bytes if frame.file else 0
            yield frame
            if frame.end is not None:
                return

    def content(self) -> Iterator[bytes]:
        """The content of the file that the last line began."""
        while self._left:
            if not self._buffer:
                self._buffer = self._more()
            part, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
            self._left -= len(part)
            yield part
