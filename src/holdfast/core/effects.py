"""The effects of a step: operations for the store, journal entries, dead-letter candidates, and reads it lacks.

A step either does all of its command or nothing: when it lacks a record it returns `reads` and has changed nothing. The
engine reads them, passes them to `Shard.supply`, and steps the same command again.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as Layout
from typing import Any, Generic, NamedTuple, TypeVar

from holdfast.core.deliveries import Delivery
from holdfast.core.records import Message, Table, WorkflowState
from holdfast.core.runs import RecordRun, key_after

R = TypeVar("R")

_U64 = Layout(">Q")


class DeleteUntil:
    """The value of an operation that deletes the range from its key up to, not including, `end`."""

    __slots__ = ("end",)

    def __init__(self, end: bytes) -> None:
        self.end = end

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeleteUntil) and other.end == self.end

    def __hash__(self) -> int:
        return hash(self.end)

    def __repr__(self) -> str:
        return f"DeleteUntil({self.end.hex()})"


class DeleteRun:
    """The value of an operation that deletes records whose keys differ from its key in the last eight bytes only: those
    are `numbers`, ascending, the first of which is in the key. No other record is between them, so that a store may
    delete the range instead."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeleteRun) and list(other.numbers) == list(self.numbers)

    def __hash__(self) -> int:
        return hash(tuple(self.numbers))

    def __repr__(self) -> str:
        return f"DeleteRun({len(self)})"

    def keys(self, key: bytes) -> list[bytes]:
        prefix, pack = key[:-8], _U64.pack
        return [prefix + pack(number) for number in self.numbers]

    def until(self, key: bytes) -> DeleteUntil:
        """The range."""
        return DeleteUntil(key_after(key, self.numbers[-1] - self.numbers[0] + 1))


# (table, key, value): bytes are put, None deletes the key, RecordRun puts many, DeleteRun deletes many, DeleteUntil
# deletes a range. Plain tuples: there is one for most records of every message, and creating an object of a class would
# cost more than the RocksDB call that the operation stands for.
Op = tuple[Table, bytes, "bytes | DeleteUntil | DeleteRun | RecordRun | None"]


def deletions(table: Table, prefix: bytes, numbers: Sequence[int], adjacent: bool = False) -> list[Op]:
    """Delete the records whose keys are `prefix` and one of these numbers, which are all different. `adjacent`: they
    ascend, and no other record is between the first and the last."""
    if len(numbers) == 1:
        return [(table, prefix + _U64.pack(numbers[0]), None)]
    if not numbers:
        return []
    if adjacent:
        return [(table, prefix + _U64.pack(numbers[0]), DeleteRun(numbers))]
    numbers = sorted(numbers)
    ops: list[Op] = []
    start = 0
    while start < len(numbers):
        end = run_end(numbers, start)
        run = DeleteRun(range(numbers[start], numbers[end - 1] + 1)) if end - start > 1 else None
        ops.append((table, prefix + _U64.pack(numbers[start]), run))
        start = end
    return ops


def puts(table: Table, prefix: bytes, numbers: Sequence[int], values: list[bytes]) -> list[Op]:
    """Put new records whose keys are `prefix` and these numbers, which ascend; consecutive ones as runs."""
    if len(numbers) == 1:
        return [(table, prefix + _U64.pack(numbers[0]), values[0])]
    ops: list[Op] = []
    start = 0
    while start < len(numbers):
        end = run_end(numbers, start)
        run = values[start] if end - start == 1 else RecordRun(values=values[start:end])
        ops.append((table, prefix + _U64.pack(numbers[start]), run))
        start = end
    return ops


def run_end(numbers: Sequence[int], start: int) -> int:
    """Where the consecutive numbers that begin at index `start` end; `numbers` ascend and are all different."""
    first = numbers[start] - start
    if numbers[-1] - (len(numbers) - 1) == first:
        return len(numbers)
    end = start + 1
    while numbers[end] - end == first:  # it stops, since the last number is not one of them
        end += 1
    return end


Entry = tuple[Any, ...]
"""An entry of the journal: its kind (`EntryKind`), the number of the shard, and what that kind has."""


class Read(NamedTuple):
    """A read the core needs: one record when `end` is None, else at most `limit` records of the range, ascending."""

    table: Table
    key: bytes
    end: bytes | None = None
    limit: int = 1


class DeadLetterCandidate(NamedTuple):
    """A delivery that must go to the dead queue, or be dropped if there is none. The engine replies with
    `DeadLettered`."""

    group: str
    delivery: Delivery
    message: Message
    reason: str
    state: WorkflowState | None = None


class Missing(Exception):
    """A step lacks these records. Raised before it has changed anything; never leaves the core."""

    def __init__(self, reads: list[Read]) -> None:
        super().__init__(reads)
        self.reads = reads


class Effects:
    """What must be written, in order, and which deliveries must go to the dead queue."""

    __slots__ = ("dead_letter_candidates", "entries", "ops", "rows")

    ops: list[Op]
    entries: list[Entry]
    rows: int  # journal rows in `entries`: one entry may stand for many
    dead_letter_candidates: list[DeadLetterCandidate]


class Outcome(Effects, Generic[R]):
    """The outcome of one step: its effects and the reply to its command, or the reads that it lacks."""

    __slots__ = ("reads", "reply")

    def __init__(self) -> None:
        self.ops = []
        self.entries = []
        self.rows = 0
        self.dead_letter_candidates = []
        self.reply: R = None  # type: ignore[assignment]  # the handler of the command sets it, unless R is None
        self.reads: list[Read] = []
