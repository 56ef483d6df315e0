"""Encodes a leased delivery as a PUBLISH. Pure.

This is a hot path, so the property block is built as one text instead of field by field, and what a delivery has in
common with the one before it is built once: 1.4 µs a message against 10 with the general encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.core.commands import Leased
from holdfast.core.queue import PRIORITY_DEFAULT
from holdfast.core.records import NO_EXTRA, Extra, Origin
from holdfast.mqtt.codec import V5
from holdfast.mqtt.codec.properties import BYTES, write_bytes, write_text, write_varint
from holdfast.mqtt.topics import is_valid_name
from holdfast.units import MILLISECOND, SECOND

_EXPIRY_MAX_S: Final = 0xFFFF_FFFF
_LENGTHS: Final = [chr(length) for length in range(0x80)]


RESERVED: Final = frozenset(
    (
        "attempt", "consumer-group", "dead-attempts", "dead-error", "dead-reason", "enqueued-at", "first-attempt-at",
        "id", "last-attempt-at", "lease-deadline", "lease-token", "message-id", "queue", "source-group", "source-id",
        "source-queue",
    )
)  # fmt: skip
"""User properties that the broker sets. A producer's properties of these names are not delivered: a consumer that
forwards a delivery with all its properties would otherwise pass on the token of an old lease."""


def pair(name: str, value: str) -> bytes:
    """One user property."""
    return b"&" + write_text(_clean(name)) + write_text(_clean(value))


def _clean(text: str) -> str:
    """Text from HTTP may contain NUL, which MQTT cannot carry; it is replaced."""
    return text.replace("\0", "?") if "\0" in text else text


class DeliveryEncoder:
    """Encodes the deliveries of one subscription."""

    __slots__ = ("_first", "_same", "_topic", "_version")

    def __init__(self, queue: str, group: str, qos: int, version: int, ids: tuple[int, ...]) -> None:
        self._topic = write_text(f"$queue/{queue}")
        self._first = 0x30 | qos << 1
        self._version = version
        ids_block = b"".join(b"\x0b" + write_varint(one) for one in ids)
        self._same = ids_block + pair("queue", queue) + pair("consumer-group", group)

    def encode(self, batch: Sequence[Leased], packet_ids: Sequence[int], now: int, *, dup: bool = False) -> list[bytes]:
        """The PUBLISHes; the identifiers are 0 with QoS 0."""
        first = BYTES[self._first | 8 if dup and self._first & 6 else self._first]
        topic = self._topic
        fixed_size = len(topic) + (2 if self._first & 6 else 0)
        v5 = self._version == V5
        packets: list[bytes] = []
        last_times: tuple[int, ...] = ()
        last_size = last_block_size = -1
        common = own = head = number = block_length = b""
        block_size = 0
        for leased, packet_id in zip(batch, packet_ids, strict=True):
            message = leased.message
            if v5:
                times = (leased.deadline, leased.attempt, message.enqueued_at, message.expires_at)
                if times != last_times:
                    last_times = times
                    common = self._common(leased, now)
                extra = message.extra
                token = str(leased.token)
                if extra is NO_EXTRA or extra.message_id is None:
                    name = str(message.id)
                    text = (
                        f"&\0\x0amessage-id\0{_LENGTHS[len(name)]}{name}"
                        f"&\0\x0blease-token\0{_LENGTHS[len(token)]}{token}"
                    )
                    own = text.encode()
                else:
                    own = pair("message-id", extra.message_id) + pair("lease-token", token)
                    own += pair("id", str(message.id))  # the identifier that the other fronts use
                if message.priority != PRIORITY_DEFAULT:
                    own += pair("priority", str(message.priority))
                if extra is not NO_EXTRA:
                    own += _producer_properties(extra)
                block_size = len(common) + len(own)
                if block_size != last_block_size:
                    last_block_size = block_size
                    block_length = write_varint(block_size)
            if packet_id:
                number = packet_id.to_bytes(2, "big")
            payload = message.payload
            size = fixed_size + len(block_length) + block_size + len(payload)
            if size != last_size:
                last_size = size
                head = first + write_varint(size) + topic
            packets.append(b"".join((head, number, block_length, common, own, payload)))
        return packets

    def _common(self, leased: Leased, now: int) -> bytes:
        """The properties that deliveries of one lease, of messages enqueued together, have in common."""
        message = leased.message
        expiry = b""
        if message.expires_at:
            left_s = max(0, -((now - message.expires_at) // SECOND))
            expiry = b"\x02" + min(left_s, _EXPIRY_MAX_S).to_bytes(4, "big")
        attempt = str(leased.attempt)
        deadline = str(leased.deadline // MILLISECOND)
        enqueued_at = str(message.enqueued_at // MILLISECOND)
        text = (
            f"&\0\x07attempt\0{_LENGTHS[len(attempt)]}{attempt}"
            f"&\0\x0elease-deadline\0{_LENGTHS[len(deadline)]}{deadline}"
            f"&\0\x0benqueued-at\0{_LENGTHS[len(enqueued_at)]}{enqueued_at}"
        )
        return expiry + self._same + text.encode()


def _producer_properties(extra: Extra) -> bytes:
    """The producer's properties, and the origin of a dead letter."""
    parts: list[bytes] = []
    if extra.utf8:
        parts.append(b"\x01\x01")
    if extra.content_type is not None:
        parts.append(b"\x03" + write_text(_clean(extra.content_type)))
    if extra.reply_to is not None:
        if is_valid_name(extra.reply_to):
            parts.append(b"\x08" + write_text(extra.reply_to))
        else:  # over HTTP it may be anything
            parts.append(pair("reply-to", extra.reply_to))
    if extra.correlation_data is not None:
        parts.append(b"\x09" + write_bytes(extra.correlation_data))
    if extra.key is not None:
        parts.append(pair("partition-key", extra.key))
    if extra.correlation_id is not None:
        parts.append(pair("correlation-id", extra.correlation_id))
    parts += [pair(name, value) for name, value in extra.properties if name not in RESERVED]
    if extra.origin is not None:
        parts += [pair(name, value) for name, value in _origin_properties(extra.origin)]
    return b"".join(parts)


def _origin_properties(origin: Origin) -> list[tuple[str, str]]:
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
