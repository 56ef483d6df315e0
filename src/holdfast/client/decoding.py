"""Decodes payloads as text or JSON, with an error that says which payload is wrong and why."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import InvalidArgument


def as_text(body: bytes, field: str, whose: str = "") -> str:
    """As UTF-8 text."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(field=field, problem=f"{whose}is not UTF-8: {error}") from None


def as_json(body: bytes, kind: Any, field: str, whose: str = "") -> Any:
    """As JSON, checked and converted to a type by msgspec."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(field=field, problem=f"{whose}is wrong: {error}") from None
