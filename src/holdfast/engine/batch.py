"""The batch of a turn: everything that operations have changed since the last write, stored as one atomic write.

No turn writes twice: what a caller, or a front, stores in a turn is never torn by a crash. `overlay` is the store as it
will be then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.core.effects import Effects, Entry, Op
from holdfast.core.ids import IdGenerator
from holdfast.core.journal import ShardName, write_block
from holdfast.core.records import Table, journal_key
from holdfast.core.shard import Shard
from holdfast.engine.cell_record import CellRecord, put_cell_record
from holdfast.store.contract import Reader
from holdfast.store.overlay import Overlay

# Ids are reserved this far ahead, so that after a crash none is assigned twice. The reservation is renewed when half of
# it is used. A restart within a second makes ids run up to a second ahead of the clock, which is harmless.
RESERVE_MS = 1_000


class Batch:
    """See the module. `must_sync`: nothing in it may be answered before it is durable."""

    __slots__ = (
        "_at",
        "_begun",
        "_changing",
        "_entries",
        "_flushed",
        "_ops",
        "_overlay",
        "_rows",
        "_shards",
        "_stepped",
        "_store",
        "must_sync",
    )  # fmt: skip

    def __init__(self, store: Reader) -> None:
        self._store = store
        self._ops: list[Op] = []
        self._overlay: Overlay | None = None  # most turns read nothing that they have changed
        self._entries: list[Entry] = []
        self._rows = 0
        self._shards: dict[int, Shard] = {}  # whose heads must be written
        self._at = 0
        self._begun = (0, 0, 0, 0)  # operations, entries, rows and time when the current operation of a caller began
        self._changing: dict[int, Shard] = {}  # shards that it steps or drops
        self._flushed: list[Op] = []  # their heads, as the operations before it left them
        self._stepped = False  # whether it has changed one of them
        self.must_sync = False

    @property
    def overlay(self) -> Overlay:
        if self._overlay is None:
            self._overlay = Overlay(self._store, self._ops)
        return self._overlay

    @property
    def pending(self) -> bool:
        return bool(self._ops or self._entries or self._shards)

    def begin(self) -> None:
        """An operation of a caller begins: what follows can be taken out again."""
        self._begun = (len(self._ops), len(self._entries), self._rows, self._at)
        self._stepped = False
        if self._changing:
            self._changing = {}
            self._flushed = []

    def keep(self, shard: Shard) -> None:
        """The operation is about to change a shard. What those before it changed there is in memory alone until the
        batch is sealed; now it is in the batch."""
        if shard.number not in self._changing:
            self._changing[shard.number] = shard
            if (
                shard.dirty and shard.number in self._shards
            ):  # reading changes what is derived again, and writes nothing
                ops: list[Op] = []
                shard.flush(ops)
                self._ops += ops
                self._flushed += ops

    @property
    def changed(self) -> bool:
        """Whether the operation has changed anything."""
        return self._stepped or len(self._ops) > self._begun[0] + len(self._flushed)

    def undo(self) -> dict[int, Shard]:
        """Take out what the operation has added. Returns the shards that it may have changed: what they have in memory
        counts no more, and what those before it have left of them can be read through the overlay."""
        changed = self._changing
        ops, entries, self._rows, self._at = self._begun
        del self._ops[ops:], self._entries[entries:]
        for number in changed:
            self._shards.pop(number, None)
        if self._overlay is not None:
            self._overlay.truncate(ops)
        self._ops += self._flushed
        self.begin()
        return changed

    def add(self, ops: list[Op]) -> None:
        """Add operations that are not those of a shard's step."""
        self._ops += ops

    def add_step(self, shard: Shard, effects: Effects, now: int) -> None:
        """Add what one step of a shard has changed, if it has changed anything."""
        self._at = now
        if effects.ops or effects.entries or shard.unsaved:
            self._ops += effects.ops
            self._entries += effects.entries
            self._rows += effects.rows
            self._shards[shard.number] = shard
            self._stepped = True

    def add_entries(self, entries: list[Entry], now: int) -> None:
        """Add journal entries of one row each that are not those of a shard's step."""
        self._at = now
        self._entries += entries
        self._rows += len(entries)
        self._stepped = True

    def changes(self, shard: Shard) -> bool:
        """Whether a read of this shard's records would miss something that is in the batch."""
        return shard.number in self._shards

    def add_shard(self, shard: Shard) -> None:
        """What is in the batch of this shard is to be read."""
        self._shards[shard.number] = shard

    def drop_shard(self, shard: Shard) -> None:
        """The shard is deleted: its head is not written."""
        self.keep(shard)
        self._shards.pop(shard.number, None)
        self._stepped = True

    def seal(self, record: CellRecord, ids: IdGenerator, name_of: Callable[[int], ShardName]) -> list[Op]:
        """All operations: with the heads of the shards, the journal block and the cell's record, which moves on."""
        ops = self._ops
        for shard in self._shards.values():
            shard.flush(ops)
        if self._entries:
            # What the journal calls the shards of its entries, in that order. A shard is the second field.
            names = {number: name_of(number) for number in dict.fromkeys([entry[1] for entry in self._entries])}
            block = write_block(record.next_lsn, self._rows, self._at, names, self._entries)
            ops.append((Table.JOURNAL, journal_key(record.next_block), block))
            record.next_block += 1
            record.next_lsn += self._rows
        if ids.ahead(RESERVE_MS // 2) > record.ids_reserved:
            record.ids_reserved = ids.ahead(RESERVE_MS)
            self.must_sync = True
        ops.append(put_cell_record(record))
        return ops

    @property
    def shards(self) -> Iterable[Shard]:
        """The shards that it changes."""
        return self._shards.values()
