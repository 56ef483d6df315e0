"""Filters on messages and deliveries that a caller sends with a request, so that only matching rows are sent.

    where=[["priority","<=",5],["key","in",["a","b"]]]

All of them must hold. As in SQL, a comparison with a missing value is not true; only `null` matches it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from holdfast.error_text import shown
from holdfast.errors import InvalidArgument
from holdfast.http_api.codecs.arrow_response import ArrowRow
from holdfast.http_api.codecs.values import instant, read_id

CONDITIONS_MAX = 64
VALUES_MAX = 1_000
TEXT_MAX = 64 << 10  # of the whole parameter; a request line is limited too

Operator = Literal["=", "<", "<=", ">", ">=", "in", "null", "not null"]

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda value, values: value in values,
}


class Condition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One of them; `value` is a list for `in`, and nothing for `null` and `not null`."""

    column: str
    operator: Operator
    value: int | str | list[int | str] | None = None


_decode = msgspec.json.Decoder(list[Condition]).decode

_Get = Callable[[ArrowRow], Any]


def _origin(name: str) -> _Get:
    get = operator.attrgetter(name)
    return lambda row: None if row[1].extra.origin is None else get(row[1].extra.origin)


def _of_status(name: str) -> _Get:
    get = operator.attrgetter(name)
    return lambda row: None if row[2] is None else get(row[2]) or None


_MESSAGES: dict[str, tuple[str, _Get]] = {
    "id": ("id", lambda row: row[1].id),
    "sequence": ("number", lambda row: row[1].seq),
    "priority": ("number", lambda row: row[1].priority),
    "enqueued_at": ("instant", lambda row: row[1].enqueued_at),
    "key": ("text", lambda row: row[1].extra.key),
    "message_id": ("text", lambda row: row[1].extra.message_id),
    "correlation_id": ("text", lambda row: row[1].extra.correlation_id),
    "source_id": ("id", _origin("source_id")),
    "source_queue": ("text", _origin("source_queue")),
    "source_group": ("text", _origin("source_group")),
    "reason": ("text", _origin("reason")),
}
_PLACE = ("id", "sequence", "priority", "enqueued_at", "key", "message_id")
_DELIVERIES: dict[str, tuple[str, _Get]] = {
    **{name: _MESSAGES[name] for name in _PLACE},
    "group": ("text", _of_status("group")),
    "state": ("text", _of_status("state")),
    "attempt": ("number", _of_status("attempt")),
    "consumer": ("text", _of_status("consumer")),
}

Test = Callable[[ArrowRow], bool]


def read_conditions(text: str, deliveries: bool) -> list[Test]:
    """What a row must pass."""
    if not text:
        return []
    if len(text) > TEXT_MAX:
        raise InvalidArgument(field="where", problem=f"is longer than {TEXT_MAX} characters")
    try:
        given = _decode(text)
    except msgspec.MsgspecError as error:
        raise InvalidArgument(field="where", problem=f'is not like [["priority","<=",5]]: {shown(error)}') from None
    if len(given) > CONDITIONS_MAX:
        raise InvalidArgument(field="where", problem=f"has more than {CONDITIONS_MAX} conditions")
    return [_test(condition, _DELIVERIES if deliveries else _MESSAGES) for condition in given]


def _test(condition: Condition, known: dict[str, tuple[str, _Get]]) -> Test:
    if condition.column not in known:
        problem = f"cannot ask for {shown(condition.column)!r}; known are {', '.join(known)}"
        raise InvalidArgument(field="where", problem=problem)
    kind, get = known[condition.column]
    if condition.operator == "null":
        return lambda row: get(row) is None
    if condition.operator == "not null":
        return lambda row: get(row) is not None
    compare, value = _COMPARE[condition.operator], _value(condition, kind)
    return lambda row: (found := get(row)) is not None and compare(found, value)


def _value(condition: Condition, kind: str) -> object:
    if condition.operator == "in":
        if not isinstance(condition.value, list) or len(condition.value) > VALUES_MAX:
            raise InvalidArgument(field="where", problem=f"wants a list of at most {VALUES_MAX} values after in")
        return frozenset(_one(each, condition.column, kind) for each in condition.value)
    return _one(condition.value, condition.column, kind)


def _one(value: object, column: str, kind: str) -> int | str:
    match kind, value:
        case "id", str():
            return read_id(value, column)
        case "instant", int() | str():
            return instant(value, column)
        case (("number" | "id"), int()):
            return value
        case "text", str():
            return value
    raise InvalidArgument(field="where", problem=f"compares {column} with {shown(value)!r}, which is not of its kind")
