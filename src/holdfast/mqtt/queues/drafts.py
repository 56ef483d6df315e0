"""Turns a PUBLISH to a queue into a draft: the fields its properties set, and the properties it keeps. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.core.commands import NO_ID, Draft
from holdfast.core.queue import PRIORITY_DEFAULT, PRIORITY_MAX
from holdfast.core.records import Extra
from holdfast.error_text import shown
from holdfast.errors import InvalidArgument
from holdfast.mqtt.codec import NO_PROPERTIES, Publish
from holdfast.units import SECOND, parse_duration, parse_instant

NUMBER_LENGTH_MAX: Final = 9
"""Digits of a number in a property; valid ones are far shorter."""

CAPTURED_TOPIC: Final = "mqtt-topic"
"""The user property that names the ordinary topic on which a captured message was published."""


def to_draft(packet: Publish, now: int, captured: bool = False) -> Draft:
    """Raises `InvalidArgument` for an invalid property. A `captured` message was published on an ordinary topic, so its
    invalid properties are kept as ordinary user properties."""
    properties = packet.properties
    if properties is NO_PROPERTIES and not captured:
        return Draft(packet.payload)
    options: dict[str, int] = {"priority": PRIORITY_DEFAULT, "deliver_at": 0, "ttl": -1}
    names: dict[str, str | None] = {"key": None, "message_id": None, "correlation_id": None}
    pairs: list[tuple[str, str]] = []
    if properties.message_expiry_s is not None:
        options["ttl"] = properties.message_expiry_s * SECOND
    for name, value in properties.user_properties:
        if name in _NAMES:
            names[_NAMES[name]] = value
        elif name in _OPTIONS:
            try:
                _read_option(options, name, value, now)
            except InvalidArgument:
                if not captured:
                    raise
                pairs.append((name, value))
        else:
            pairs.append((name, value))
    if names["message_id"] == "":
        if not captured:
            raise InvalidArgument(field="user property message-id", problem=NO_ID)
        names["message_id"] = None
    if captured:
        pairs.append((CAPTURED_TOPIC, packet.topic))
    extra = Extra(
        names["key"],
        names["message_id"],
        tuple(pairs),
        names["correlation_id"],
        properties.content_type,
        properties.response_topic,
        properties.correlation_data,
        utf8=properties.payload_format == 1,
    )
    return Draft(packet.payload, options["priority"], options["deliver_at"], options["ttl"], extra)


def _read_option(options: dict[str, int], name: str, value: str, now: int) -> None:
    field, read = _OPTIONS[name]
    if field == "deliver_at" and options[field]:
        raise InvalidArgument(field="user property delay", problem="cannot stand beside deliver-at; give one of them")
    try:
        options[field] = read(value, now)
    except ValueError as error:
        raise InvalidArgument(field=f"user property {name}", problem=f"cannot be {shown(value)!r}: {error}") from None


def _number(value: str, _: int) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > NUMBER_LENGTH_MAX:
        raise ValueError("it must be a whole number")
    return int(value)


def _priority(value: str, now: int) -> int:
    priority = _number(value, now)
    if priority > PRIORITY_MAX:
        raise ValueError(f"it is 0 to {PRIORITY_MAX}")
    return priority


_NAMES: Final = {"partition-key": "key", "message-id": "message_id", "correlation-id": "correlation_id"}
_OPTIONS: Final[dict[str, tuple[str, Callable[[str, int], int]]]] = {
    "priority": ("priority", _priority),
    "delay": ("deliver_at", lambda value, now: now + parse_duration(value)),
    "deliver-at": ("deliver_at", lambda value, _: parse_instant(value)),
    "ttl": ("ttl", lambda value, _: parse_duration(value)),
}
