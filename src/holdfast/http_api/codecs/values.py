"""Values of requests: JSON bodies, ids, durations and instants, read or refused with an error that says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from holdfast.error_text import shown
from holdfast.errors import InvalidArgument, MalformedRequest
from holdfast.units import parse_duration, parse_instant

_Shape = TypeVar("_Shape")

ID_MAX = (1 << 63) - 1


def decode(decoder: Callable[[bytes], _Shape], raw: bytes) -> _Shape:
    """A struct from JSON, or an error that says where it is wrong."""
    try:
        if not raw.isascii():
            raw.decode()  # parts that are kept as they are must be UTF-8 too
        return decoder(raw)
    except msgspec.ValidationError as error:
        raise InvalidArgument(field="The body", problem=f"is wrong: {shown(error)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRequest(problem=f"the body is not JSON ({shown(error)})") from None
    except RecursionError:
        raise MalformedRequest(problem="the body is nested too deeply") from None


def read_id(text: str, field: str) -> int:
    """An id or token as the wire spells it."""
    if text.isascii() and text.isdigit() and len(text) <= 19 and 0 < (number := int(text)) <= ID_MAX:
        return number
    raise InvalidArgument(field=field, problem="is a number as this server gave it, as a string")


def duration(value: object, field: str) -> int:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise InvalidArgument(field=field, problem=str(error)) from None


def instant(value: object, field: str) -> int:
    try:
        return parse_instant(value)
    except ValueError as error:
        raise InvalidArgument(field=field, problem=str(error)) from None
