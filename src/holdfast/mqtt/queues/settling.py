"""Reads a PUBLISH on a settle topic: user properties, or a JSON payload for clients without them. Pure.

    {"message-id": "...", "lease-token": "...", "delay": "5s", "error": "...", "timeout": "1m"}

or a list of such objects. A 3.1.1 client does not see identifiers: without one the oldest delivery it holds is meant.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from holdfast.error_text import shown
from holdfast.errors import InvalidArgument
from holdfast.mqtt.codec import Publish
from holdfast.mqtt.queues.names import is_number
from holdfast.units import parse_duration

SETTLEMENTS_MAX: Final = 1000
"""Settlements in one payload: as many as a client can have in flight."""

_FIELDS: Final = frozenset(("message-id", "lease-token", "delay", "error", "timeout", "consumer-group"))
_decode = msgspec.json.Decoder().decode


class SettleRequest(NamedTuple):
    """One settlement as the client sent it; empty or -1 where it gave no value."""

    message_id: str = ""
    token: int = 0
    delay: int = -1
    error: str = ""
    timeout: int = -1
    group: str = ""


def read_settle_requests(packet: Publish) -> list[SettleRequest]:
    """All that a settle PUBLISH asks for."""
    fields = {name: value for name, value in packet.properties.user_properties if name in _FIELDS}
    if fields or not packet.payload:
        return [_read_request(fields)]
    try:
        payload = _decode(packet.payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            field="the payload", problem=f"is not JSON ({shown(error)}); give message-id there or as a user property"
        ) from None
    items = payload if isinstance(payload, list) else [payload]
    if not 1 <= len(items) <= SETTLEMENTS_MAX or not all(isinstance(item, dict) for item in items):
        raise InvalidArgument(
            field="the payload",
            problem=f"is not an object with message-id, nor a list of 1 to {SETTLEMENTS_MAX} of them",
        )
    return [_read_request(item) for item in items]


def _read_request(fields: dict[str, Any]) -> SettleRequest:
    unknown = set(fields) - _FIELDS
    if unknown:
        raise InvalidArgument(field=min(unknown), problem=f"is not known; there are {', '.join(sorted(_FIELDS))}")
    return SettleRequest(
        _identifier(fields, "message-id"),
        _token(_identifier(fields, "lease-token")),
        _duration(fields, "delay"),
        _text(fields, "error"),
        _duration(fields, "timeout"),
        _text(fields, "consumer-group"),
    )


def _identifier(fields: dict[str, Any], field: str) -> str:
    """A text, or a number: identifiers of the broker's own are both."""
    value = fields.get(field, "")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidArgument(field=field, problem="must be a text, as it came with the delivery")
    return str(value)


def _token(text: str) -> int:
    if not text:
        return 0
    if not is_number(text):
        raise InvalidArgument(field="lease-token", problem="is not one: give it as it came with the delivery")
    return int(text)


def _duration(fields: dict[str, Any], field: str) -> int:
    if field not in fields:
        return -1
    try:
        return parse_duration(fields[field])
    except ValueError as error:
        raise InvalidArgument(field=field, problem=f"cannot be {shown(fields[field])!r}: {error}") from None


def _text(fields: dict[str, Any], field: str) -> str:
    value = fields.get(field, "")
    if not isinstance(value, str):
        raise InvalidArgument(field=field, problem="must be a text")
    return value
