"""Protobuf messages as values that people read, by the descriptors that an operator has given (`console.descriptors`).

The file is what `protoc --include_imports --descriptor_set_out=FILE` writes. A change of it is seen without a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

KINDS: Final = frozenset(("application/protobuf", "application/x-protobuf", "application/vnd.google.protobuf"))
PARAMETERS: Final = ("proto", "messagetype", "message-type", "type")
"""Parameters of a content type that name the message: `application/x-protobuf; proto=shop.Order`."""

FILE_BYTES_MAX: Final = 16 << 20


class NoProtobuf(Exception):
    """A payload is not shown as protobuf; the text says why."""


class ProtobufTypes:
    """See the module. `path` is the file of descriptors, None: there is none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._read_at: tuple[int, int] | None = None  # the file's time and size
        self._pool: DescriptorPool | None = None
        self._names: list[str] = []

    @property
    def given(self) -> bool:
        return self._path is not None

    def names(self) -> list[str]:
        """The messages that are described. Raises NoProtobuf."""
        self._load()
        return self._names

    def values(self, payload: bytes, name: str) -> object:
        """The fields of a message of this type. Raises NoProtobuf."""
        self._load()
        if name not in self._names:
            raise NoProtobuf(f"console.descriptors describes no message {name!r}" if name else "choose the message")
        from google.protobuf.json_format import MessageToDict  # noqa: PLC0415 - see _load
        from google.protobuf.message import DecodeError  # noqa: PLC0415
        from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415

        assert self._pool is not None
        message = GetMessageClass(self._pool.FindMessageTypeByName(name))()
        try:
            message.ParseFromString(payload)
            return MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=self._pool)
        except (DecodeError, TypeError, ValueError, RecursionError) as error:
            raise NoProtobuf(f"it is no {name}: {error}") from None

    def _load(self) -> None:
        """Read the file, if it has changed. Raises NoProtobuf."""
        if self._path is None:
            raise NoProtobuf("no descriptors are given (console.descriptors)")
        try:
            from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: PLC0415 - 10 MiB, for who looks
            from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415
            from google.protobuf.message import DecodeError  # noqa: PLC0415
        except ImportError:
            raise NoProtobuf('protobuf is not installed: pip install "holdfast[grpc]"') from None
        try:
            facts = self._path.stat()
            if self._read_at == (facts.st_mtime_ns, facts.st_size):
                return
            if facts.st_size > FILE_BYTES_MAX:
                raise NoProtobuf(f"{self._path} is larger than {FILE_BYTES_MAX >> 20} MiB")
            found, pool = FileDescriptorSet(), DescriptorPool()
            found.ParseFromString(self._path.read_bytes())
            for file in found.file:
                pool.Add(file)
            names = sorted(name for file in found.file for name in _names(file.package, file.message_type))
            for name in names:  # what a message refers to is looked for now
                pool.FindMessageTypeByName(name)
        except (OSError, DecodeError, TypeError, KeyError) as error:
            log.warning("the console's protobuf descriptors cannot be read", path=str(self._path), error=str(error))
            raise NoProtobuf(f"{self._path} cannot be read: {error}") from None
        self._pool, self._names, self._read_at = pool, names, (facts.st_mtime_ns, facts.st_size)


def _names(prefix: str, messages: Iterable[DescriptorProto]) -> Iterator[str]:
    """The full names of messages, and of those inside them."""
    for message in messages:
        name = f"{prefix}.{message.name}" if prefix else message.name
        if not message.options.map_entry:
            yield name
        yield from _names(name, message.nested_type)


def named_by(content_type: str | None) -> str:
    """The message that a content type names; empty if it names none."""
    for part in (content_type or "").split(";")[1:]:
        field, _, value = part.partition("=")
        if field.strip().lower() in PARAMETERS:
            return value.strip().strip('"')
    return ""


def is_protobuf(content_type: str | None) -> bool:
    return (content_type or "").partition(";")[0].strip().lower() in KINDS
