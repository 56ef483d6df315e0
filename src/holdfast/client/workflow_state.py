"""Workflow state: bytes that a consumer stores beside a delivery and that survive its retries."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import msgspec

from holdfast.client.decoding import as_json, as_text
from holdfast.client.drafts import encode_json

Value = TypeVar("Value")


class State(msgspec.Struct, frozen=True):
    """A workflow state. If none was stored: no bytes, and `etag` 0. The ETag grows with every change."""

    data: bytes
    etag: int

    def text(self) -> str:
        """As UTF-8 text."""
        return as_text(self.data, "state")

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, kind: type[Value]) -> Value: ...
    def json(self, kind: Any = Any) -> Any:
        """As JSON; with a type, checked and converted to it by msgspec."""
        return as_json(self.data, kind, "state")


def as_bytes(data: object) -> bytes:
    """Bytes as they are, a str as UTF-8, anything else as JSON."""
    match data:
        case bytes() | bytearray() | memoryview():
            return bytes(data)
        case str():
            return data.encode()
        case _:
            return encode_json(data)
