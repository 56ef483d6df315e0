"""Transactions: messages that are stored and seen by nobody until all of them are published, or none ever is.

A producer stages messages in *parts* (a task of a job, say), each part in *chunks* (its requests). A part that is tried
again stages under another *attempt*; publishing names the attempt of each part that counts, and the others go. What one
attempt of a part has staged is a *lot*.

Publishing is a decision and a move. The decision is one record, in one batch with the first step of the move: from
there on the transaction can't be taken back. A step takes a bounded number of messages into their partitions, where
they get ids and sequences like any others, and removes them here in the same batch; a crash between two steps is rolled
forward. So a transaction that fits one step becomes visible at once everywhere, a larger one partition by partition.

    table         key                          value
    TRANSACTIONS  0 namespace NUL id           Transaction: open, or being moved
                  1 namespace NUL id           Transaction: published, remembered
    LOTS          number lot                   Lot
    STAGED        number shard lot block       block of messages, in the order in which they were staged
    ENDS          end number                   key of a remembered transaction: when it may be forgotten

This module is the records and what can be said of them alone. broker/transactions.py has them open and moves messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from struct import Struct as Layout

import msgspec

from holdfast.core.commands import Draft
from holdfast.core.records import NO_EXTRA, Extra
from holdfast.errors import FormatUnknown, TransactionIncomplete

NAME_BYTES_MAX = 255  # of a transaction's id, a part, an attempt: they are kept in records and keys
BLOCK_MESSAGES = 1_000
BLOCK_BYTES = 1 << 20
BLOCK_VERSION = 1

_U64 = Layout(">Q")
_LOT = Layout(">QI")
_STAGED = Layout(">QIII")
_END = Layout(">QQ")

lot_key = _LOT.pack
staged_key = _STAGED.pack
end_key = _END.pack
number_key = _U64.pack


class Stage(StrEnum):
    OPEN = "open"
    PUBLISHING = "publishing"
    PUBLISHED = "published"


def live_key(namespace: str, name: str) -> bytes:
    return b"\0" + namespace.encode() + b"\0" + name.encode()


def done_key(namespace: str, name: str) -> bytes:
    return b"\1" + live_key(namespace, name)[1:]


class Transaction(msgspec.Struct, array_like=True):
    """A transaction. `at` is where the move goes on: shard, lot, block."""

    number: int
    namespace: str
    id: str
    created_at: int
    ends_at: int  # when it expires, or is forgotten
    state: Stage = Stage.OPEN
    lots_made: int = 0
    messages: int = 0  # staged, whatever is to come of them
    size_bytes: int = 0
    published_at: int = 0
    published: int = 0
    duplicates: int = 0  # of those published, which were there already
    dropped: int = 0  # published into a queue that was deleted before they were moved
    protocol: str = ""
    chosen: list[int] = []  # the lots that count
    at: tuple[int, int, int] = (0, 0, 0)


class Share(msgspec.Struct, array_like=True):
    """What a lot has for one shard."""

    queue: str
    messages: int = 0
    blocks: int = 0
    largest: int = 0


class Lot(msgspec.Struct, array_like=True):
    """What one attempt of a part has staged."""

    number: int
    part: str
    attempt: str
    chunks: int = 0
    messages: int = 0
    size_bytes: int = 0
    shares: dict[int, Share] = {}


_encode = msgspec.msgpack.Encoder().encode
write_record = _encode
read_transaction = msgspec.msgpack.Decoder(Transaction).decode
read_lot = msgspec.msgpack.Decoder(Lot).decode

Staged = tuple[int, Draft]
"""A staged message with its place within its lot."""

_Row = tuple[int, bytes, int, int, int, Extra | None]
_decode_rows = msgspec.msgpack.Decoder(list[_Row]).decode


def blocks(staged: Iterable[Staged]) -> Iterator[tuple[bytes, int]]:
    """Records of messages, each with how many it holds."""
    rows: list[_Row] = []
    size = 0
    for order, draft in staged:
        extra = draft.extra
        rows.append(
            (order, draft.payload, draft.priority, draft.deliver_at, draft.ttl, None if extra is NO_EXTRA else extra)
        )
        size += len(draft.payload)
        if len(rows) == BLOCK_MESSAGES or size >= BLOCK_BYTES:
            yield bytes([BLOCK_VERSION]) + _encode(rows), len(rows)
            rows, size = [], 0
    if rows:
        yield bytes([BLOCK_VERSION]) + _encode(rows), len(rows)


def read_block(value: bytes) -> list[Staged]:
    if value[0] != BLOCK_VERSION:
        raise FormatUnknown(path="a block of staged messages", found=value[0], known=BLOCK_VERSION)
    return [
        (order, Draft(payload, priority, deliver_at, ttl, NO_EXTRA if extra is None else extra))
        for order, payload, priority, deliver_at, ttl, extra in _decode_rows(value[1:])
    ]


def choose(name: str, lots: Iterable[Lot], parts: Mapping[str, str] | None) -> list[Lot]:
    """The lots that count: of every part the attempt that is named, or the only one there is."""
    by_part: dict[str, dict[str, Lot]] = {}
    for lot in lots:
        by_part.setdefault(lot.part, {})[lot.attempt] = lot
    if parts is None:
        for part, attempts in by_part.items():
            if len(attempts) > 1:
                raise TransactionIncomplete(
                    transaction=name, problem=f"part {part!r} was staged by attempts {sorted(attempts)}"
                )
        return [lot for attempts in by_part.values() for lot in attempts.values()]
    chosen: list[Lot] = []
    for part, attempt in parts.items():
        found = by_part.get(part, {}).get(attempt)
        if found is None:
            raise TransactionIncomplete(
                transaction=name, problem=f"attempt {attempt!r} of part {part!r} has staged nothing"
            )
        chosen.append(found)
    return sorted(chosen, key=lambda lot: lot.number)


def route(lots: Iterable[Lot]) -> list[tuple[int, int, int]]:
    """The way of a move: shard, lot and how many blocks, in the order of their keys."""
    return sorted((shard, lot.number, share.blocks) for lot in lots for shard, share in lot.shares.items())
