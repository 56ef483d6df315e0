"""What a step wants done: records to write, journal entries, reads it lacks, a time to be woken at.

A step either does all of its command or nothing: when it lacks a record it returns `reads` and has changed nothing. The
broker fetches them, hands them in with `Shard.supply`, and steps the same command again.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.records import Delivery, Message, Table


class Until:
    """The value of an operation that deletes the range from its key up to, not including, `end`."""

    __slots__ = ("end",)

    def __init__(self, end: bytes) -> None:
        self.end = end

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Until) and other.end == self.end

    def __hash__(self) -> int:
        return hash(self.end)

    def __repr__(self) -> str:
        return f"Until({self.end.hex()})"


# (table, key, value): bytes are put, None deletes the key, Until deletes a range. Plain tuples: one is made for every
# record of every message, and a class here costs more than the RocksDB call it stands for.
Op = tuple[Table, bytes, "bytes | Until | None"]


class Read(NamedTuple):
    """A read the core needs: one record when `end` is None, else at most `limit` records of the range, ascending."""

    table: Table
    key: bytes
    end: bytes | None = None
    limit: int = 1


class Doomed(NamedTuple):
    """A delivery that must go to the dead queue, or be dropped if there is none. The broker answers with `Buried`."""

    group: str
    delivery: Delivery
    message: Message
    reason: str


class Missing(Exception):
    """A step lacks these records. Raised before it has changed anything; never leaves the core."""

    def __init__(self, reads: list[Read]) -> None:
        super().__init__(reads)
        self.reads = reads


class Effects:
    """What one step wants done, in order."""

    __slots__ = ("doomed", "entries", "ops", "reads", "reply", "rows")

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.entries: list[tuple[object, ...]] = []
        self.rows = 0  # journal rows in `entries`: one entry may stand for many
        self.reply: object = None
        self.reads: list[Read] = []
        self.doomed: list[Doomed] = []
