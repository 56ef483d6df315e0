"""Transactions: staged messages that become visible when all of them are published, or never.

A producer stages messages in *parts* (a task of a job, say), each part in *chunks* (its requests). A part that is tried
again stages under another *attempt*; publishing names the attempt of each part that counts, and the others are
dropped. What one attempt of a part has staged is a *staged part*.

Publishing is a decision and a move. The decision is one record, in one batch with the first step of the move: from
there on the transaction cannot be aborted. A step moves a bounded number of messages into their partitions, where they
get ids and sequences like any others, and deletes them here in the same batch; after a crash between two steps the move
continues. A transaction that fits one step becomes visible atomically, a larger one partition by partition.

    table         key                          value
    TRANSACTIONS  0 name                       Transaction: open, or being moved
                  1 name                       Transaction: published, remembered
    STAGED_PARTS  number part                  StagedPart
    STAGED        number shard part block      block of messages, in the order in which they were staged
    ENDS          end number                   key of a remembered transaction: when it may be forgotten
    REMEMBERED    owner end number             the same key: the first of an owner's is forgotten for a new one
    META          "remembered" NUL owner       how many of an owner are remembered

A name is `namespace NUL id` and, unless everybody may use it, `NUL identity`; an owner is `namespace NUL identity NUL`.

This module has the records only; engine/transactions.py keeps open transactions and moves messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import accumulate, pairwise
from operator import add
from struct import Struct as Layout
from typing import NamedTuple

import msgspec

from holdfast.core.codecs import write_extras
from holdfast.core.commands import Draft, Packed
from holdfast.core.ids import key_hash
from holdfast.core.records import NO_EXTRA, NO_KEY_HASH, Extra
from holdfast.errors import FormatUnknown, TransactionIncomplete

NAME_BYTES_MAX = 255  # of a transaction's id, a part, an attempt: they are kept in records and keys
BLOCK_MESSAGES = 1_000
BLOCK_BYTES = 1 << 20
DRAFTS_VERSION = 1  # of a block: any messages
PACKED_VERSION = 2  # messages of which only keys and payloads differ in what affects delivery

_U64 = Layout(">Q")
_STAGED_PART = Layout(">QI")
_STAGED = Layout(">QIII")
_END = Layout(">QQ")

COUNTS = b"remembered\0"  # a prefix of keys in META

Owner = tuple[str, str]
"""A namespace and the identity of somebody in it."""

staged_part_key = _STAGED_PART.pack
staged_key = _STAGED.pack
end_key = _END.pack
number_key = _U64.pack


class TransactionState(StrEnum):
    OPEN = "open"
    PUBLISHING = "publishing"
    PUBLISHED = "published"


class TransactionName(NamedTuple):
    """Two callers may use the same id: they mean two transactions. `identity` is that of who began it; what was begun
    where no credentials are configured has none and belongs to everybody."""

    namespace: str
    id: str
    identity: str = ""

    @property
    def owner(self) -> Owner:
        return (self.namespace, self.identity)


def live_key(name: TransactionName) -> bytes:
    return b"\0" + _name_key(name)


def done_key(name: TransactionName) -> bytes:
    return b"\1" + _name_key(name)


def _name_key(name: TransactionName) -> bytes:
    return "\0".join(name if name.identity else name[:2]).encode()


def name_of(key: bytes) -> TransactionName:
    """The name in the key of a transaction."""
    return TransactionName(*key[1:].decode().split("\0"))


def remembered_key(owner: Owner, end: int, number: int) -> bytes:
    return _owner_key(owner) + end_key(end, number)


def remembered_range(owner: Owner) -> tuple[bytes, bytes]:
    """Between which keys are those that an owner's remembered transactions have."""
    key = _owner_key(owner)
    return key, key + b"\xff" * _END.size


def count_key(owner: Owner) -> bytes:
    return COUNTS + _owner_key(owner)


def owner_of(key: bytes) -> Owner:
    """The owner in the key of a count."""
    namespace, _, identity = key[len(COUNTS) : -1].decode().partition("\0")
    return namespace, identity


def _owner_key(owner: Owner) -> bytes:
    return f"{owner[0]}\0{owner[1]}\0".encode()


class Transaction(msgspec.Struct, array_like=True):
    """A transaction. `at` is where the move continues: shard, staged part, block."""

    number: int
    namespace: str
    id: str
    created_at: int
    ends_at: int  # when it expires, or is forgotten
    state: TransactionState = TransactionState.OPEN
    staged_parts_made: int = 0
    messages: int = 0  # staged, published or not
    size_bytes: int = 0
    published_at: int = 0
    published: int = 0
    duplicates: int = 0  # of those published, how many were duplicates
    dropped: int = 0  # published into a queue that was deleted before they were moved
    protocol: str = ""
    chosen: list[int] = []  # the staged parts that are published
    at: tuple[int, int, int] = (0, 0, 0)
    identity: str = ""

    @property
    def name(self) -> TransactionName:
        return TransactionName(self.namespace, self.id, self.identity)


class ShardPart(msgspec.Struct, array_like=True):
    """What a staged part has for one shard."""

    queue: str
    messages: int = 0
    blocks: int = 0
    largest: int = 0


class StagedPart(msgspec.Struct, array_like=True):
    """What one attempt of a part has staged."""

    number: int
    part: str
    attempt: str
    chunks: int = 0
    messages: int = 0
    size_bytes: int = 0
    shard_parts: dict[int, ShardPart] = {}


_encode = msgspec.msgpack.Encoder().encode
write_record = _encode
read_transaction = msgspec.msgpack.Decoder(Transaction).decode
read_count = msgspec.msgpack.Decoder(int).decode
read_staged_part = msgspec.msgpack.Decoder(StagedPart).decode

Staged = tuple[int, Draft]
"""A staged message with its position in its staged part."""

_Row = tuple[int, bytes, int, int, int, Extra | None]
_decode_rows = msgspec.msgpack.Decoder(list[_Row]).decode


class StagedBlock(msgspec.Struct, frozen=True):
    """Staged messages with their positions in their staged part."""

    orders: list[int]
    messages: list[Draft] | Packed

    def drafts(self) -> list[Draft]:
        return self.messages.drafts() if isinstance(self.messages, Packed) else self.messages


_PackedHead = tuple[int, list[int], list[int], list[int]]
_decode_packed_head = msgspec.msgpack.Decoder(_PackedHead).decode
_U32 = Layout(">I")


def blocks(staged: Iterable[Staged]) -> Iterator[tuple[bytes, int]]:
    """Records of messages, each with how many it holds."""
    rows: list[Staged] = []
    size = 0
    for row in staged:
        rows.append(row)
        size += len(row[1].payload)
        if len(rows) == BLOCK_MESSAGES or size >= BLOCK_BYTES:
            yield _write_block(rows), len(rows)
            rows, size = [], 0
    if rows:
        yield _write_block(rows), len(rows)


def _write_block(rows: list[Staged]) -> bytes:
    return _write_packed(rows) or bytes([DRAFTS_VERSION]) + _encode(
        [
            (order, draft.payload, draft.priority, draft.deliver_at, draft.ttl, _or_none(draft.extra))
            for order, draft in rows
        ]
    )


def _or_none(extra: Extra) -> Extra | None:
    return None if extra is NO_EXTRA else extra


def _write_packed(rows: list[Staged]) -> bytes:
    """Messages with keys, packed: head, hashes of keys, tails. Empty if these cannot be packed."""
    priority = rows[0][1].priority
    keyed = False
    for _, draft in rows:
        extra = draft.extra
        if (
            draft.priority != priority
            or draft.deliver_at
            or draft.ttl != -1
            or extra.message_id is not None
            or extra.origin is not None
            or extra.state is not None
            or extra.flags
        ):
            return b""
        keyed = keyed or extra.key is not None
    if not keyed:
        return b""  # a batch of these is enqueued faster still
    packed = write_extras([draft.extra for _, draft in rows])
    hashes = [NO_KEY_HASH if draft.extra.key is None else key_hash(draft.extra.key) for _, draft in rows]
    head = _encode(
        (
            priority,
            [order for order, _ in rows],
            [len(one) for one in packed],
            [len(draft.payload) for _, draft in rows],
        )
    )
    tails = [part for one, (_, draft) in zip(packed, rows, strict=True) for part in (one, draft.payload)]
    return b"".join([bytes([PACKED_VERSION]), _U32.pack(len(head)), head, *hashes, *tails])


def read_block(value: bytes) -> StagedBlock:
    if value[0] == PACKED_VERSION:
        return _read_packed(value)
    if value[0] != DRAFTS_VERSION:
        raise FormatUnknown(path="a block of staged messages", found=value[0], known=PACKED_VERSION)
    rows = _decode_rows(value[1:])
    drafts = [
        Draft(payload, priority, deliver_at, ttl, NO_EXTRA if extra is None else extra)
        for _, payload, priority, deliver_at, ttl, extra in rows
    ]
    return StagedBlock([row[0] for row in rows], drafts)


def _read_packed(value: bytes) -> StagedBlock:
    at = 5 + _U32.unpack_from(value, 1)[0]
    priority, orders, extra_sizes, sizes = _decode_packed_head(value[5:at])
    size = len(NO_KEY_HASH)
    tails_at = at + size * len(orders)
    keys = [value[start : start + size] for start in range(at, tails_at, size)]
    ends = accumulate(map(add, extra_sizes, sizes), initial=tails_at)
    tails = [value[start:end] for start, end in pairwise(ends)]
    return StagedBlock(orders, Packed(priority, keys, extra_sizes, sizes, tails))


def choose(name: str, staged_parts: Iterable[StagedPart], parts: Mapping[str, str] | None) -> list[StagedPart]:
    """The staged parts to publish: of every part the attempt that is named, or the only one there is."""
    by_part: dict[str, dict[str, StagedPart]] = {}
    for staged_part in staged_parts:
        by_part.setdefault(staged_part.part, {})[staged_part.attempt] = staged_part
    if parts is None:
        for part, attempts in by_part.items():
            if len(attempts) > 1:
                raise TransactionIncomplete(
                    transaction=name, problem=f"part {part!r} was staged by attempts {sorted(attempts)}"
                )
        return [staged_part for attempts in by_part.values() for staged_part in attempts.values()]
    chosen: list[StagedPart] = []
    for part, attempt in parts.items():
        found = by_part.get(part, {}).get(attempt)
        if found is None:
            raise TransactionIncomplete(
                transaction=name, problem=f"attempt {attempt!r} of part {part!r} has staged nothing"
            )
        chosen.append(found)
    return sorted(chosen, key=lambda staged_part: staged_part.number)


def route(staged_parts: Iterable[StagedPart]) -> list[tuple[int, int, int]]:
    """The steps of a move: shard, staged part and number of blocks, in the order of their keys."""
    return sorted(
        (shard, staged_part.number, shard_part.blocks)
        for staged_part in staged_parts
        for shard, shard_part in staged_part.shard_parts.items()
    )
