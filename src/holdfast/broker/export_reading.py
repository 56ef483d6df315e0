"""Reading the journal for its export: blocks in pages, and the messages they refer to in few scans.

A block of one commit may hold one message or ten thousand. A scan costs as much as reading a hundred records, so the
messages of many small blocks are fetched together: sequences of a shard follow each other from block to block, which
makes it one scan a shard and window. A window is bounded in rows and in bytes, since all of it is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.journal import Block, Decoded, Entry, Fetch, decoded, read_block
from holdfast.core.records import LAST, Message, Table, journal_key, message_key, read_message
from holdfast.store.contract import Store

PAGE_BLOCKS = 64
WINDOW_ROWS = 8_192  # turning a window into Arrow holds the GIL for some milliseconds a column at most
WINDOW_BYTES = 8 << 20


class Window:
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
        """True when it is full."""
        self.blocks.append(block)
        self.values.append(value)
        self.entries.append(list(decoded(block)))
        self.rows += block.rows
        self.size_bytes += len(value) + block.size_bytes
        return self.rows >= WINDOW_ROWS or self.size_bytes >= WINDOW_BYTES

    def gone(self, into: dict[int, list[int]]) -> None:
        """Collect the message records that the blocks give up."""
        for entries in self.entries:
            for entry in entries:
                if entry[0] == Entry.GONE:
                    into.setdefault(entry[1], []).extend(entry[2])

    def ranges(self) -> dict[int, list[tuple[int, int]]]:
        """The sequences it refers to, by shard, as ranges: first, and the one after the last."""
        found: dict[int, list[tuple[int, int]]] = {}
        for entries in self.entries:
            for entry in entries:
                if entry[0] != Entry.ENQUEUED:
                    continue
                _, shard, first, count, _, _ = entry
                ranges = found.setdefault(shard, [])
                if ranges and ranges[-1][1] == first:
                    ranges[-1] = (ranges[-1][0], first + count)
                else:
                    ranges.append((first, first + count))
        return found


class BlockReader:
    """Reads of the store, from the exporter's thread."""

    def __init__(self, store: Store) -> None:
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

    def windows(self, first_block: int, last_block: int) -> Iterator[Window]:
        """All blocks from first to last, a few at a time."""
        window = Window()
        for _, block, value in self.blocks(first_block, last_block):
            if window.add(block, value):
                yield window
                window = Window()
        if window.blocks:
            yield window

    def fetcher(self, window: Window) -> Fetch:
        """The messages that a window refers to, read now."""
        known: dict[int, list[tuple[int, int, list[Message]]]] = {}
        for shard, ranges in window.ranges().items():
            known[shard] = [(first, end, self._messages(shard, first, end)) for first, end in ranges]

        def fetch(shard: int, first: int, count: int) -> list[Message]:
            low, messages = next((low, messages) for low, high, messages in known[shard] if low <= first < high)
            return messages[first - low : first - low + count]

        return fetch

    def raw(self, window: Window) -> tuple[list[bytes], list[tuple[int, int, list[bytes]]]]:
        """A window as it lies in the store: its blocks, and the messages it refers to (shard, first sequence,
        values)."""
        records: list[tuple[int, int, list[bytes]]] = []
        for shard, ranges in window.ranges().items():
            for first, end in ranges:
                rows = self._store.scan(Table.MESSAGES, message_key(shard, first), message_key(shard, end), end - first)
                if len(rows) == end - first:  # else some are missing, and who converts it will say so
                    records.append((shard, first, [value for _, value in rows]))
        return window.values, records

    def _messages(self, shard: int, first: int, end: int) -> list[Message]:
        rows = self._store.scan(Table.MESSAGES, message_key(shard, first), message_key(shard, end), end - first)
        if len(rows) != end - first:
            return []  # some are missing: whoever asked for the messages is told that they are not there
        return [read_message(seq, value) for seq, (_, value) in enumerate(rows, first)]
