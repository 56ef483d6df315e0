"""Records as bytes: how each value of core/records.py is written and read.

Where messages come in homogeneous batches, a batch is written and read as a whole: a single one is a batch of one.
Three have a second form: `write_message` and `ready_value` a columnar one, which costs nothing for each message, and
`write_extra` one that writes only once what messages share.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core.deliveries import Delivery
from holdfast.core.ids import UNKEYED
from holdfast.core.records import (
    DELIVERY_KEY,
    DELIVERY_VALUE,
    DELIVERY_VERSION,
    ENDED_PART,
    GONE,
    ID_AT,
    ID_END,
    KEPT,
    KEYED_KEY,
    LEASES_KEY,
    LEASES_PART,
    LEASES_VERSION,
    MESSAGE_HEAD,
    MESSAGE_VERSION,
    NO_EXTRA,
    NO_KEY_HASH,
    READY_ROW,
    READY_VALUE,
    SCHEDULED_KEY,
    SCHEDULED_VALUE,
    SIZE,
    STATE_DROPPED_VERSION,
    STATE_VALUE,
    STATE_VERSION,
    TWO_U64,
    CursorHead,
    Extra,
    GroupHead,
    Leases,
    Listed,
    Message,
    Place,
    ShardHead,
    WorkflowState,
)
from holdfast.core.runs import BytesColumn, HomogeneousRun, RecordRun
from holdfast.errors import FormatUnknown

Rows = list[tuple[bytes, bytes]]

_encode = msgspec.msgpack.Encoder().encode

# --- the order of delivery --------------------------------------------------------------------------------------------


def ready_value(seq: int, key: bytes, flags: int, size_bytes: int) -> bytes:
    return READY_VALUE.pack(seq, key or NO_KEY_HASH, flags, size_bytes)


def homogeneous_ready_values(first_seq: int, sizes_bytes: bytes) -> HomogeneousRun:
    """`ready_value` for messages in sequence that have neither keys nor flags. Their sizes are four bytes each."""
    count = len(sizes_bytes) // SIZE.size
    tails = BytesColumn(sizes_bytes, range(0, len(sizes_bytes) + 1, SIZE.size), SIZE.pack(SIZE.size) * count)
    return HomogeneousRun(b"", first_seq, NO_KEY_HASH + b"\0", tails)


def read_listed(rows: Rows) -> list[Listed]:
    """Rows of READY."""
    return list(READY_ROW.iter_unpack(b"".join(chain.from_iterable(rows))))


def read_places(rows: Rows) -> list[Place]:
    """The places that rows of READY stand for."""
    unkeyed, no_key = UNKEYED, NO_KEY_HASH
    return [
        Place(stamp, seq, unkeyed if hashed == no_key else hashed, flags, priority, size_bytes)
        for _, priority, stamp, seq, hashed, flags, size_bytes in read_listed(rows)
    ]


def read_ready(key: bytes, value: bytes) -> Place:
    return read_places([(key, value)])[0]


def ready_key_hash(value: bytes) -> bytes:
    """The key hash in a value of READY; NO_KEY_HASH where there is no key."""
    return value[8:16]


def ready_flags(value: bytes) -> int:
    """The flags in a value of READY."""
    return value[16]


def scheduled_value(message_id: int, priority: int, key: bytes, flags: int, size_bytes: int) -> bytes:
    return SCHEDULED_VALUE.pack(message_id, priority, key or NO_KEY_HASH, flags, size_bytes)


def read_scheduled(key: bytes, value: bytes) -> tuple[int, int, Place]:
    """Due time, id, and the place of the message, which has no stamp before it falls due."""
    _, due, seq = SCHEDULED_KEY.unpack(key)
    message_id, priority, hashed, flags, size_bytes = SCHEDULED_VALUE.unpack(value)
    return due, message_id, Place(0, seq, _key_hash(hashed), flags, priority, size_bytes)


def _key_hash(hashed: bytes) -> bytes:
    return UNKEYED if hashed == NO_KEY_HASH else hashed


keyed_value = TWO_U64.pack
dedup_value = TWO_U64.pack
read_dedup = TWO_U64.unpack


def due_value(stamp: int) -> bytes:
    return stamp.to_bytes(8, "big")


def read_keyed(key: bytes, value: bytes) -> tuple[int, int, int, int]:
    """Priority, stamp, sequence and id."""
    _, _, priority, stamp = KEYED_KEY.unpack(key)
    seq, message_id = TWO_U64.unpack(value)
    return priority, stamp, seq, message_id


_MARKS = {b"\0": KEPT, b"": GONE}
_OF_MARKS = {mark: value for value, mark in _MARKS.items()}


def write_mask(mask: int) -> bytes:
    return write_bits(mask) if mask > 0 else _OF_MARKS[mask]


def read_mask(value: bytes) -> int:
    mark = _MARKS.get(value)
    return int.from_bytes(value, "big") if mark is None else mark


def write_bits(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "big")


# --- messages ---------------------------------------------------------------------------------------------------------

_decode_extra = msgspec.msgpack.Decoder(Extra).decode


def write_extra(extra: Extra) -> bytes:
    return b"" if extra is NO_EXTRA else _encode(extra)


def read_extra(packed: bytes) -> Extra:
    return _decode_extra(packed) if packed else NO_EXTRA


def write_extras(extras: list[Extra]) -> list[bytes]:
    """Extras as they stand in message records. Messages of one key often share theirs, which is then written once."""
    packed = {id(extra): extra for extra in extras}
    if len(packed) == len(extras):
        return [write_extra(extra) for extra in extras]
    written = {number: write_extra(extra) for number, extra in packed.items()}
    return [written[id(extra)] for extra in extras]


def message_head(
    message_id: int, enqueued_at: int, deliver_at: int, expires_at: int, priority: int, extra_size: int
) -> bytes:
    """The part of a message record before extra and payload."""
    return MESSAGE_HEAD.pack(MESSAGE_VERSION, message_id, enqueued_at, deliver_at, expires_at, priority, extra_size)


def write_message(
    message_id: int, enqueued_at: int, deliver_at: int, expires_at: int, priority: int, extra: Extra, payload: bytes
) -> bytes:
    if extra is NO_EXTRA:
        return message_head(message_id, enqueued_at, deliver_at, expires_at, priority, 0) + payload
    packed = _encode(extra)
    return message_head(message_id, enqueued_at, deliver_at, expires_at, priority, len(packed)) + packed + payload


def homogeneous_messages(
    first_id: int, enqueued_at: int, expires_at: int, priority: int, extra: Extra, payloads: BytesColumn
) -> HomogeneousRun:
    """`write_message` for messages with consecutive ids that differ in nothing else but their payloads."""
    packed = write_extra(extra)
    head = message_head(0, enqueued_at, 0, expires_at, priority, len(packed))
    return HomogeneousRun(head[:ID_AT], first_id, head[ID_END:] + packed, payloads)


def read_message(seq: int, value: bytes) -> Message:
    return read_messages([seq], [value])[0]


def read_messages(seqs: list[int], values: list[bytes]) -> list[Message]:
    """Messages that were enqueued together mostly differ in id and payload only, and those of one key mostly have the
    same extra: the parts they have in common are read once."""
    unpack, extra_at, version, number = MESSAGE_HEAD.unpack_from, MESSAGE_HEAD.size, MESSAGE_VERSION, int.from_bytes
    extras = {b"": NO_EXTRA}
    messages: list[Message] = []
    common: bytes | None = None  # what stood between id and payload of the last one
    enqueued_at = deliver_at = expires_at = priority = payload_at = 0
    extra = NO_EXTRA
    for seq, value in zip(seqs, values, strict=True):
        if common is not None and value.startswith(common, ID_END) and value[0] == version:
            message_id = number(value[ID_AT:ID_END], "big")
        else:
            found, message_id, enqueued_at, deliver_at, expires_at, priority, extra_size = unpack(value)
            if found != version:
                raise FormatUnknown(path="a message record", found=found, known=version)
            payload_at = extra_at + extra_size
            common = value[ID_END:payload_at]
            packed = value[extra_at:payload_at]
            known = extras.get(packed)
            extra = extras[packed] = _decode_extra(packed) if known is None else known
        payload = value[payload_at:]
        messages.append(Message(message_id, seq, priority, enqueued_at, deliver_at, expires_at, extra, payload))
    return messages


class HomogeneousBatch(NamedTuple):
    """Messages with consecutive ids that differ in nothing else but their payloads."""

    first: Message  # without its payload
    payloads: BytesColumn

    def part(self, start: int, end: int) -> HomogeneousBatch:
        """Those from one index up to, not including, another."""
        first = replace(self.first, id=self.first.id + start, seq=self.first.seq + start)
        return HomogeneousBatch(first, self.payloads.part(start, end))


def read_run(first_seq: int, run: RecordRun) -> list[Message] | HomogeneousBatch:
    """Message records in sequence; a homogeneous run stays columnar."""
    if not isinstance(run, HomogeneousRun):
        return read_messages(list(range(first_seq, first_seq + len(run))), run[:])
    head = run.begin + run.number.to_bytes(8, "big") + run.middle
    return HomogeneousBatch(read_message(first_seq, head), run.column)


# --- deliveries and leases --------------------------------------------------------------------------------------------

_decode_texts = msgspec.msgpack.Decoder(tuple[str, str, str, str]).decode


def write_delivery(d: Delivery) -> bytes:
    return DELIVERY_VALUE.pack(
        DELIVERY_VERSION,
        d.seq,
        d.priority,
        d.order,
        d.stamp,
        d.key or NO_KEY_HASH,
        d.flags,
        d.failures,
        d.enqueued_at,
        d.expires_at,
        d.first_at,
        d.leased_at,
        d.deadline,
        d.token,
        d.ready_at,
        d.size_bytes,
    ) + _encode((d.consumer, d.protocol, d.error, d.dead_reason))


def read_delivery(key: bytes, value: bytes) -> Delivery:
    _, _, message_id = DELIVERY_KEY.unpack(key)
    version, *fields = DELIVERY_VALUE.unpack_from(value)
    if version != DELIVERY_VERSION:
        raise FormatUnknown(path="a delivery record", found=version, known=DELIVERY_VERSION)
    delivery = Delivery(message_id, *fields)
    delivery.key = _key_hash(delivery.key)
    delivery.consumer, delivery.protocol, delivery.error, delivery.dead_reason = _decode_texts(
        value[DELIVERY_VALUE.size :]
    )
    return delivery


def write_leases(leases: Leases) -> bytes:
    return _encode(leases)


_decode_leases = msgspec.msgpack.Decoder(Leases).decode


def read_leases(rows: Rows) -> Iterator[tuple[int, int, Leases, int]]:
    """The LEASES rows of a shard: number of the group, first token, leases, and the bits of those that have ended."""
    ended = {key[:-1]: int.from_bytes(value, "big") for key, value in rows if key[-1] == ENDED_PART}
    for key, value in rows:
        if key[-1] == LEASES_PART:
            _, group, token, _ = LEASES_KEY.unpack(key)
            leases = _decode_leases(value)
            if leases.version != LEASES_VERSION:
                raise FormatUnknown(path="a record of leases", found=leases.version, known=LEASES_VERSION)
            yield group, token, leases, ended.get(key[:-1], 0)


# --- workflow state and heads -----------------------------------------------------------------------------------------


def write_state(state: WorkflowState) -> bytes:
    if state.data is None:
        return STATE_VALUE.pack(STATE_DROPPED_VERSION, state.etag)
    return STATE_VALUE.pack(STATE_VERSION, state.etag) + state.data


def read_state(value: bytes) -> WorkflowState:
    version, etag = STATE_VALUE.unpack_from(value)
    if version == STATE_DROPPED_VERSION:
        return WorkflowState(etag, None)
    if version != STATE_VERSION:
        raise FormatUnknown(path="a workflow state", found=version, known=STATE_VERSION)
    return WorkflowState(etag, value[STATE_VALUE.size :])


def write_head(head: ShardHead | GroupHead | CursorHead) -> bytes:
    return _encode(head)


read_shard_head = msgspec.msgpack.Decoder(ShardHead).decode
read_group_head = msgspec.msgpack.Decoder(GroupHead).decode
read_cursor_head = msgspec.msgpack.Decoder(CursorHead).decode
