"""What a step wants done: records to write, journal entries, reads it lacks, a time to be woken at.

A step either does all of its command or nothing: when it lacks a record it returns `reads` and has changed nothing. The
broker fetches them, hands them in with `Shard.supply`, and steps the same command again.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as Layout
from typing import Generic, NamedTuple, TypeVar

from holdfast.core.deliveries import Delivery
from holdfast.core.records import Message, Table, WorkflowState
from holdfast.core.runs import RecordRun

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


# (table, key, value): bytes are put, None deletes the key, DeleteUntil deletes a range, RecordRun puts many. Plain
# tuples: one is
# made for most records of every message, and a class here costs more than the RocksDB call it stands for.
Op = tuple[Table, bytes, "bytes | DeleteUntil | RecordRun | None"]


# Records in a row that are rather deleted by a range than one by one. In RocksDB a range costs as much as 5 deletions,
# and the next read 0.2 us for each of some hundred recent ones: at this many both ways cost the same at worst.
RANGE_MIN = 32
# Records in a row that are rather put as a run: what it takes to keep account of one is that of about four records.
RUN_MIN = 8


def deletions(table: Table, prefix: bytes, numbers: list[int]) -> list[Op]:
    """Delete the records whose keys are `prefix` and one of these numbers, which are all different.

    Consecutive numbers go by range. That is exact: there is no other key between them.
    """
    pack = _U64.pack
    if len(numbers) < RANGE_MIN:
        return [(table, prefix + pack(number), None) for number in numbers]
    numbers = sorted(numbers)
    ops: list[Op] = []
    start = 0
    while start < len(numbers):
        end = run_end(numbers, start)
        if end - start >= RANGE_MIN:
            ops.append((table, prefix + pack(numbers[start]), DeleteUntil(prefix + pack(numbers[end - 1] + 1))))
        else:
            ops += [(table, prefix + pack(number), None) for number in numbers[start:end]]
        start = end
    return ops


def puts(
    table: Table, prefix: bytes, numbers: Sequence[int], values: list[bytes], tails: list[bytes] | None = None
) -> list[Op]:
    """Put new records whose keys are `prefix` and these numbers, which grow; consecutive ones as runs."""
    ops: list[Op] = []
    start = 0
    while start < len(numbers):
        end = run_end(numbers, start)
        run = RecordRun.of(values[start:end], tails and tails[start:end])
        ops += put_run(table, prefix + _U64.pack(numbers[start]), run)
        start = end
    return ops


def put_run(table: Table, key: bytes, run: RecordRun) -> list[Op]:
    """Put new records under consecutive keys; a few by themselves."""
    if len(run) >= RUN_MIN:
        return [(table, key, run)]
    return [(table, one, value) for one, value in run.rows(key)]


def run_end(numbers: Sequence[int], start: int) -> int:
    """Where the consecutive numbers that begin at index `start` end; `numbers` are sorted and all different."""
    first = numbers[start] - start
    if numbers[-1] - (len(numbers) - 1) == first:
        return len(numbers)
    end = start + 1
    while numbers[end] - end == first:  # ends, since the last one does not belong to them
        end += 1
    return end


class Read(NamedTuple):
    """A read the core needs: one record when `end` is None, else at most `limit` records of the range, ascending."""

    table: Table
    key: bytes
    end: bytes | None = None
    limit: int = 1


class DeadLetterCandidate(NamedTuple):
    """A delivery that must go to the dead queue, or be dropped if there is none. The broker answers with
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

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.entries: list[tuple[object, ...]] = []
        self.rows = 0  # journal rows in `entries`: one entry may stand for many
        self.dead_letter_candidates: list[DeadLetterCandidate] = []


class Outcome(Effects, Generic[R]):
    """The outcome of one step: its effects and the reply to its command, or the reads that it lacks."""

    __slots__ = ("reads", "reply")

    def __init__(self) -> None:
        super().__init__()
        self.reply: R = None  # type: ignore[assignment]  # the handler of the command sets it, unless R is None
        self.reads: list[Read] = []
