"""Reads the journal for its export: blocks in pages, and the messages they refer to in few scans.

A block of one commit may hold one message or ten thousand. A scan costs as much as reading a hundred records, so the
messages of many small blocks are read together: the sequences of a shard continue from block to block, so that one scan
for each shard and block_range is enough. A block_range is bounded in rows and in bytes, since all of it is in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from operator import itemgetter
from struct import unpack

import msgspec

from holdfast.core.codecs import HomogeneousBatch, read_run
from holdfast.core.journal import Block, Decoded, EntryKind, decoded, read_block
from holdfast.core.records import LAST, Message, Table, journal_key, message_key
from holdfast.core.runs import BytesColumn, HomogeneousRun, RecordRun
from holdfast.journal.columns import Fetch
from holdfast.store.contract import Reader

PAGE_BLOCKS = 64
RANGE_ROWS = 8_192  # converting a range to Arrow holds the GIL for at most some milliseconds a column
RANGE_BYTES = 8 << 20


class BlockRange:
    """Consecutive blocks that are expanded together."""

    __slots__ = ("blocks", "entries", "rows", "size_bytes", "values")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.values: list[bytes] = []
        self.entries: list[list[Decoded]] = []
        self.rows = 0
        self.size_bytes = 0

    @property
    def last_lsn(self) -> int:
        block = self.blocks[-1]
        return block.first_lsn + block.rows - 1

    def add(self, block: Block, value: bytes) -> bool:
        """Add a block. Returns True when the range is full."""
        self.blocks.append(block)
        self.values.append(value)
        self.entries.append(list(decoded(block)))
        self.rows += block.rows
        self.size_bytes += len(value) + block.size_bytes
        return self.rows >= RANGE_ROWS or self.size_bytes >= RANGE_BYTES

    def removable(self, into: dict[int, list[int]]) -> None:
        """Collect the message records that may be deleted after the export."""
        for entries in self.entries:
            for entry in entries:
                if entry[0] == EntryKind.REMOVABLE:
                    into.setdefault(entry[1], []).extend(entry[2])

    def ranges(self) -> dict[int, list[tuple[int, int]]]:
        """The sequences it refers to, by shard, as ranges: first, and end (exclusive)."""
        found: dict[int, list[tuple[int, int]]] = {}
        for entries in self.entries:
            for entry in entries:
                if entry[0] != EntryKind.ENQUEUED:
                    continue
                _, shard, first, count, _, _ = entry
                ranges = found.setdefault(shard, [])
                if ranges and ranges[-1][1] == first:
                    ranges[-1] = (ranges[-1][0], first + count)
                else:
                    ranges.append((first, first + count))
        return found


class RecordRange(msgspec.Struct, frozen=True, array_like=True):
    """Message records of consecutive sequences, as the store returns them."""

    shard: int
    first_seq: int
    template: tuple[bytes, int, bytes] | None  # of a homogeneous run: the shared header, and the number of the first
    sizes: bytes
    data: bytes

    def run(self) -> RecordRun:
        sizes = unpack(f">{len(self.sizes) // 4}I", self.sizes)
        column = BytesColumn(self.data, list(accumulate(sizes, initial=0)), self.sizes)
        return RecordRun(column) if self.template is None else HomogeneousRun(*self.template, column)


def record_range(shard: int, first_seq: int, run: RecordRun) -> RecordRange:
    template = (run.begin, run.number, run.middle) if isinstance(run, HomogeneousRun) else None
    return RecordRange(shard, first_seq, template, run.column.packed_sizes(), run.column.content(0, len(run)))


class RawBlockRange(msgspec.Struct, frozen=True, array_like=True):
    """A range of blocks as the store has it: blocks, and the messages they refer to."""

    blocks: list[bytes]
    messages: list[RecordRange]

    def fetcher(self) -> Fetch:
        """The messages, read now."""
        known: dict[int, list[tuple[int, int, list[Message] | HomogeneousBatch]]] = {}
        for one in self.messages:
            run = one.run()
            record_ranges = known.setdefault(one.shard, [])
            record_ranges.append((one.first_seq + len(run), one.first_seq, read_run(one.first_seq, run)))

        def fetch(shard: int, first: int, count: int) -> list[list[Message] | HomogeneousBatch]:
            found: list[list[Message] | HomogeneousBatch] = []
            record_ranges, last = known.get(shard, []), first + count
            for at in range(bisect_right(record_ranges, first, key=itemgetter(0)), len(record_ranges)):
                end, low, messages = record_ranges[at]
                if low >= last:
                    break
                part = max(first, low) - low, min(last, end) - low
                found.append(messages.part(*part) if isinstance(messages, HomogeneousBatch) else messages[slice(*part)])
            return found  # missing messages are not included: the caller raises

        return fetch


class BlockReader:
    """Reads of the store, from the exporter's thread."""

    def __init__(self, store: Reader) -> None:
        self._store = store

    def blocks(self, first_block: int, last_block: int = LAST - 1) -> Iterator[tuple[int, Block, bytes]]:
        """Number, block, and its record."""
        start, end = first_block, journal_key(last_block + 1)
        while True:
            page = self._store.scan(Table.JOURNAL, journal_key(start), end, PAGE_BLOCKS)
            for key, value in page:
                number = int.from_bytes(key, "big")
                yield number, read_block(value), value
                start = number + 1
            if len(page) < PAGE_BLOCKS:
                return

    def has(self, number: int, value: bytes) -> bool:
        """Whether a block is still the one it was."""
        return self._store.get(Table.JOURNAL, journal_key(number)) == value

    def block_ranges(self, first_block: int, last_block: int) -> Iterator[BlockRange]:
        """All blocks from first to last, a few at a time."""
        block_range = BlockRange()
        for _, block, value in self.blocks(first_block, last_block):
            if block_range.add(block, value):
                yield block_range
                block_range = BlockRange()
        if block_range.blocks:
            yield block_range

    def raw(self, block_range: BlockRange) -> RawBlockRange:
        """Read a range from the store."""
        messages: list[RecordRange] = []
        for shard, ranges in block_range.ranges().items():
            for first, end in ranges:
                runs = self._store.scan_runs(Table.MESSAGES, message_key(shard, first), end - first)
                if sum(map(len, runs)) == end - first:  # otherwise some are missing, and the conversion raises
                    starts = accumulate(map(len, runs), initial=first)
                    messages += [record_range(shard, start, run) for start, run in zip(starts, runs, strict=False)]
        return RawBlockRange(block_range.values, messages)
