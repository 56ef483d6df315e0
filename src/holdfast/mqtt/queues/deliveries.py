"""A leased delivery becomes a PUBLISH. Pure.

This is the hot way out, so the property block is put together by one format instead of field by field: 1.5 µs a
message against 6 with the general encoder. What is the same for a subscription is encoded once.
"""

from __future__ import annotations

from typing import Final

from holdfast.core.commands import Leased
from holdfast.core.records import NO_EXTRA, Extra, Origin
from holdfast.mqtt.codec import V5
from holdfast.mqtt.codec.properties import BYTES, write_bytes, write_text, write_varint
from holdfast.units import MILLISECOND, SECOND

_EXPIRY_MAX_S: Final = 0xFFFF_FFFF
_PAIRS: Final = (
    b"%b&\0\x0amessage-id%b&\0\x07attempt\0%c%b&\0\x0blease-token\0%c%b"
    b"&\0\x0elease-deadline\0%c%b&\0\x0benqueued-at\0%c%b"
)


def pair(name: str, value: str) -> bytes:
    """One user property."""
    return b"&" + write_text(name) + write_text(value)


class Form:
    """How deliveries of one subscription look on the wire."""

    __slots__ = ("_first", "_same", "_topic", "_version")

    def __init__(self, queue: str, group: str, qos: int, version: int, ids: tuple[int, ...]) -> None:
        self._topic = write_text(f"$queue/{queue}")
        self._first = 0x30 | qos << 1
        self._version = version
        same = pair("queue", queue) + pair("consumer-group", group)
        self._same = b"".join(b"\x0b" + write_varint(one) for one in ids) + same

    def encode(self, leased: Leased, packet_id: int, now: int, *, dup: bool = False) -> bytes:
        """The PUBLISH; `packet_id` is 0 with QoS 0."""
        message = leased.message
        head = self._topic + packet_id.to_bytes(2, "big") if packet_id else self._topic
        if self._version == V5:
            block = self._block(leased, now)
            head += write_varint(len(block)) + block
        first = self._first | 8 if dup else self._first
        return BYTES[first] + write_varint(len(head) + len(message.payload)) + head + message.payload

    def _block(self, leased: Leased, now: int) -> bytes:
        message = leased.message
        extra = message.extra
        message_id = str(message.id) if extra.message_id is None else extra.message_id
        attempt = b"%d" % leased.attempt
        token = b"%d" % leased.token
        deadline = b"%d" % (leased.deadline // MILLISECOND)
        enqueued_at = b"%d" % (message.enqueued_at // MILLISECOND)
        block = _PAIRS % (
            self._same,
            write_text(message_id),
            len(attempt),
            attempt,
            len(token),
            token,
            len(deadline),
            deadline,
            len(enqueued_at),
            enqueued_at,
        )
        if message.expires_at:
            left_s = min(max(0, -((now - message.expires_at) // SECOND)), _EXPIRY_MAX_S)
            block = b"\x02" + left_s.to_bytes(4, "big") + block
        return block if extra is NO_EXTRA else block + _travelling(extra)


def _travelling(extra: Extra) -> bytes:
    """What the producer gave, and where a dead letter comes from."""
    parts: list[bytes] = []
    if extra.content_type is not None:
        parts.append(b"\x03" + write_text(extra.content_type))
    if extra.reply_to is not None:
        parts.append(b"\x08" + write_text(extra.reply_to))
    if extra.correlation_data is not None:
        parts.append(b"\x09" + write_bytes(extra.correlation_data))
    if extra.key is not None:
        parts.append(pair("partition-key", extra.key))
    if extra.correlation_id is not None:
        parts.append(pair("correlation-id", extra.correlation_id))
    parts += [pair(name, value) for name, value in extra.properties]
    if extra.origin is not None:
        parts += [pair(name, value) for name, value in _story(extra.origin)]
    return b"".join(parts)


def _story(origin: Origin) -> list[tuple[str, str]]:
    return [
        ("source-id", str(origin.source_id)),
        ("source-queue", origin.source_queue),
        ("source-group", origin.source_group),
        ("dead-reason", origin.reason),
        ("dead-error", origin.error),
        ("dead-attempts", str(origin.attempts)),
        ("first-attempt-at", str(origin.first_attempt_at // MILLISECOND)),
        ("last-attempt-at", str(origin.last_attempt_at // MILLISECOND)),
    ]
