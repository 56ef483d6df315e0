"""What makes two dead letters alike: the reason, the error without its details, and the shape of the payload.

Spark computes the same in `pipeline/build/dead_letters.py`, over whole tables; a test compares both. Here is what they
share, and the way without Spark.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Final

ERROR_MAX: Final = 300
"""Characters of an error that its pattern is made from: errors differ at their beginning."""

# Details that differ from one occurrence to the next, most specific first, and their placeholders.
DETAILS: Final = (
    (r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "<uuid>"),
    (r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?", "<time>"),
    (r"[\w.+-]+@[\w-]+\.[\w.-]+", "<email>"),
    (r"\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b", "<address>"),
    (r"\b0x[0-9a-fA-F]+\b", "<hex>"),
    (r"\b(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b", "<hex>"),
    (r"\d+(\.\d+)?", "<n>"),
    (r"\s+", " "),
)
NUMBERS: Final = r"BIGINT|DOUBLE|FLOAT|DECIMAL\(\d+,\s*\d+\)"
"""Whether a number has a fraction, and how many digits, is a value and not a shape."""

DIGITS: Final = 16
_compiled = [(re.compile(pattern, re.ASCII), replacement) for pattern, replacement in DETAILS]
_plain_name = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

Shape = str | dict[str, "Shape"] | list["Shape"]
"""A type's name, an object's fields, or an array of one type."""

_NOTHING, _ANYTHING = "VOID", "VARIANT"


def error_pattern(error: str) -> str:
    """An error without its details: `timeout after 17 ms` and `timeout after 9 ms` are one."""
    text = error[:ERROR_MAX]
    for pattern, replacement in _compiled:
        text = pattern.sub(replacement, text)
    return text.strip(" ")


def payload_shape(payload: bytes) -> str:
    """The structure of a payload: keys and types of JSON, else `text`, `binary` or `empty`."""
    if not payload:
        return "empty"
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "binary"
    try:
        return re.sub(NUMBERS, "NUMBER", _written(_shape(_parsed(text.lstrip(" \t\r\n")))))
    except (ValueError, RecursionError):
        return "text"


def _parsed(text: str) -> Any:
    """The JSON at the beginning of a text. As for Spark, what follows it does not matter, and a name that an object has
    twice does. Raises ValueError if there is none."""
    value, end = _decoder.raw_decode(text)
    follows = text[end : end + 1]
    if follows and isinstance(value, int | None) and not follows.isspace():  # `12monkeys` is no number
        raise ValueError("it does not end where a number or word does")
    return value


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _no_number(text: str) -> int:
    raise ValueError(f"{text} is no number in JSON")


_decoder = json.JSONDecoder(
    object_pairs_hook=_fields, parse_float=lambda _: 0, parse_int=lambda _: 0, parse_constant=_no_number
)
"""How great a number is does not matter."""


def fingerprint(reason: str, error: str, payload: bytes) -> str:
    """Sixteen hex digits for deaths of the same kind."""
    return fingerprint_of(reason, error_pattern(error), payload_shape(payload))


def fingerprint_of(reason: str, pattern: str, shape: str) -> str:
    return hashlib.sha256("\x01".join((reason, pattern, shape)).encode()).hexdigest()[:DIGITS]


def _shape(value: Any) -> Shape:
    if isinstance(value, dict):
        return {name: _shape(value[name]) for name in sorted(value, key=lambda name: name.encode("utf-16-be"))}
    if isinstance(value, list):
        merged: Shape = _NOTHING
        for one in value:
            merged = _merged(merged, _shape(one))
        return [merged]
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return "BOOLEAN"
    return "STRING" if isinstance(value, str) else "NUMBER"


def _merged(one: Shape, other: Shape) -> Shape:
    """The shape of values of both shapes."""
    if other in (one, _NOTHING):
        return one
    if one == _NOTHING:
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        names = sorted({*one, *other}, key=lambda name: name.encode("utf-16-be"))
        return {name: _merged(one.get(name, _NOTHING), other.get(name, _NOTHING)) for name in names}
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])]
    return _ANYTHING


def _written(shape: Shape) -> str:
    if isinstance(shape, dict):
        fields = ", ".join(f"{_quoted(name)}: {_written(inner)}" for name, inner in shape.items())
        return f"OBJECT<{fields}>"
    if isinstance(shape, list):
        return f"ARRAY<{_written(shape[0])}>"
    return shape


def _quoted(name: str) -> str:
    return name if _plain_name.fullmatch(name) else "`" + name.replace("`", "``") + "`"
