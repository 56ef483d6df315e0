"""A transaction that is not finished, in memory, and the checks of what is staged in it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise

import msgspec

from holdfast.core.commands import Draft
from holdfast.core.effects import Op
from holdfast.core.enqueue import draft_error, out_of_range, oversized
from holdfast.core.records import Table
from holdfast.core.transactions import (
    NAME_BYTES_MAX,
    ShardPart,
    Staged,
    StagedBlock,
    StagedPart,
    Transaction,
    TransactionName,
    blocks,
    route,
    staged_key,
    staged_part_key,
    write_record,
)
from holdfast.engine.catalog import Queue, plain
from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.units import DAY, GIB, HOUR, MIB

MovedBlock = tuple[int, int, StagedBlock]
"""What a step moves: shard, staged part, messages."""


class TransactionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """See TransactionSettings, which says why."""

    timeout: int = HOUR
    max_messages: int = 10_000_000
    max_bytes: int = 16 * GIB
    max_open: int = 1_000
    max_parts: int = 100_000
    remember: int = 7 * DAY
    max_remembered: int = 100_000
    step_messages: int = 4_000
    step_bytes: int = 8 * MIB


class OpenTransaction:
    """A transaction that is not finished, with its staged parts."""

    __slots__ = ("_route", "record", "staged_parts")

    def __init__(self, record: Transaction) -> None:
        self.record = record
        self.staged_parts: dict[tuple[str, str], StagedPart] = {}
        self._route: list[tuple[int, int, int]] = []

    def restore(self, record: Transaction, staged_parts: Iterable[StagedPart]) -> None:
        """Be as it is stored, whatever it was. Its record stays the object that it is."""
        for field in record.__struct_fields__:
            setattr(self.record, field, getattr(record, field))
        self.staged_parts = {(part.part, part.attempt): part for part in staged_parts}
        self._route = []

    def ahead(self) -> list[tuple[int, int, int]]:
        """The rest of the move: shard, staged part, and how many blocks the part has there."""
        if not self._route:
            chosen = set(self.record.chosen)
            self._route = route(
                staged_part for staged_part in self.staged_parts.values() if staged_part.number in chosen
            )
        del self._route[: bisect_left(self._route, self.record.at)]
        return self._route

    def stage(self, staged_part: StagedPart, routed: list[tuple[Queue, list[Draft]]]) -> list[Op]:
        """Add messages to a staged part. The operations that store them and the part; the record is the caller's."""
        record = self.record
        ops: list[Op] = []
        for queue, drafts in routed:
            if not drafts:
                continue
            for shard, indexes in queue.route(drafts, plain(drafts)):
                shard_part = staged_part.shard_parts.setdefault(shard.number, ShardPart(queue.record.name))
                staged: Iterator[Staged] = ((staged_part.messages + index, drafts[index]) for index in indexes)
                for value, count in blocks(staged):
                    key = staged_key(record.number, shard.number, staged_part.number, shard_part.blocks)
                    ops.append((Table.STAGED, key, value))
                    shard_part.blocks += 1
                    shard_part.messages += count
                shard_part.largest = max(shard_part.largest, *(len(drafts[index].payload) for index in indexes))
            size_bytes = sum(len(draft.payload) for draft in drafts)
            staged_part.messages += len(drafts)
            staged_part.size_bytes += size_bytes
            record.messages += len(drafts)
            record.size_bytes += size_bytes
        staged_part.chunks += 1
        ops.append((Table.STAGED_PARTS, staged_part_key(record.number, staged_part.number), write_record(staged_part)))
        return ops


def assign_ids(taken: list[MovedBlock], fresh: list[int]) -> list[list[int]]:
    """These ids for the messages of each block, in the order of staging, so that the messages of one step are
    first in, first out over all partitions."""
    counts = [len(block.orders) for _, _, block in taken]
    if len({shard for shard, _, _ in taken}) <= 1:  # most steps of a large transaction, in half the time
        ends = accumulate(counts, initial=0)
        return [fresh[start:end] for start, end in pairwise(ends)]
    # One number for staged part, place in it and block: numbers are sorted in half the time of tuples.
    order = sorted(
        [
            staged_part << 96 | place << 32 | index
            for index, (_, staged_part, block) in enumerate(taken)
            for place in block.orders
        ]
    )
    ids: list[list[int]] = [[] for _ in taken]
    for message_id, key in zip(fresh, order, strict=True):
        ids[key & 0xFFFF_FFFF].append(message_id)
    return ids


def check_names(name: TransactionName, part: str, attempt: str) -> None:
    for field, text in (("transaction", name.id), ("part", part), ("attempt", attempt)):
        if len(text.encode(errors="surrogatepass")) > NAME_BYTES_MAX or "\0" in text or not text.isprintable():
            raise InvalidArgument(field=field, problem=f"is at most {NAME_BYTES_MAX} bytes of printable text")
    if not name.id:
        raise InvalidArgument(field="transaction", problem="is not empty")


def draft_errors(routed: list[tuple[Queue, list[Draft]]]) -> dict[tuple[int, int], HoldfastError]:
    """The errors of drafts that cannot be stored, by batch and index."""
    errors: dict[tuple[int, int], HoldfastError] = {}
    for batch, (queue, drafts) in enumerate(routed):
        shard = queue.shards[0]
        # Messages of one job have much in common: each distinct number and extra is checked once.
        numbers = {(draft.priority, draft.deliver_at, draft.ttl): draft for draft in drafts}
        extras = {id(draft.extra): draft.extra for draft in drafts}
        if (
            max([len(draft.payload) for draft in drafts], default=0) > queue.config.max_message_size
            or any(map(out_of_range, numbers.values()))
            or any(map(oversized, extras.values()))
        ):
            flaws = [(index, draft_error(shard, draft)) for index, draft in enumerate(drafts)]
            errors |= {(batch, index): error for index, error in flaws if error is not None}
    return errors
