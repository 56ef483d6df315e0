"""The formats of a data directory, by number, and the steps from one to the next.

    1   the first one
    2   leases of one call in one record (LEASES), workflow state, transactions in staged parts, audited redrives and
        jobs of redrives, messages for some groups only, records in runs, staged messages with keys as they will be
        stored. Code of 1 would see neither the leases nor the runs
    3   heads count the messages that only cursor groups need; audited redrives belong to a queue of those that share a
        dead queue, jobs of redrives have the rights of who began them, and transactions belong to who began them
        (REMEMBERED). Code of 2 would let everybody use their ids. Histograms of groups have four buckets for each
        power of two; edited messages keep what they were enqueued with; jobs of redrives know by an id what had died
        when they began; what a group has not leased is counted from what has arrived in its shard
    4   schedules: code of 3 would not enqueue their messages. The journal has events of groups, and the cell's record
        says whether it has all of them and how the lake's manifest ended: code of 3 would create and delete groups
        without a word in the journal
    5   queues have limits of deliveries and a circuit breaker: code of 4 would forget them with the next change of the
        queue

The file FORMAT of a directory has its number. A directory of a newer format than this code's is refused, since its
unknown records would be lost; one of an older format is migrated step by step, or refused where there is no step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from holdfast.errors import FormatTooOld, FormatUnknown

# Everything on disk counts: records and keys, tables, families and key prefixes. Raise it with every change of those,
# as core/records.py says: tests/formats keeps the bytes of each number, and fails when they change and it does not.
FORMAT: Final = 5

# A step gets the directory of the database (closed, locked by this process), opens it in the format of its own number
# and leaves it in the next one. It may run again after a crash in the middle.
Migration = Callable[[Path], None]


def reads_as_it_is(_path: Path) -> None:
    """The step to a format whose code reads every record of the one before."""


MIGRATIONS: Final[Mapping[int, Migration]] = dict.fromkeys((1, 2, 3, 4), reads_as_it_is)


def check(path: Path, found: int, known: int = FORMAT, migrations: Mapping[int, Migration] = MIGRATIONS) -> None:
    """Refuse a directory of another format, unless there are steps from it to the known one."""
    if found > known:
        raise FormatUnknown(path=path, found=found, known=known)
    if missing := [number for number in range(found, known) if number not in migrations]:
        raise FormatTooOld(path=path, found=found, oldest=missing[-1] + 1, known=known)
