"""Identities and places: Snowflake ids, positions in the delivery order, hashes of keys.

An id is 63 bits: [41 ms since 2026-01-01 | 10 cell | 12 sequence]. Ids of one cell only ever grow, whatever the clock
does: when it stands still or goes back, the generator counts on from the last id, borrowing milliseconds if it must.
After a restart it continues above the highest id that the cell may have assigned (the engine reserves them ahead,
durably). A node on embedded storage runs one cell, whose number is the node's id.

The same numbers serve as *stamps*, the second half of a message's place (priority, stamp), and as lease tokens. They
are comparable over all partitions of a cell, which is what makes delivery first-in-first-out across partitions.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from itertools import chain

EPOCH_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
CELL_MAX = 1023
SEQUENCE_BITS = 12
CELL_BITS = 10
TIME_SHIFT = SEQUENCE_BITS + CELL_BITS
LOW_MASK = (1 << TIME_SHIFT) - 1
IDS_A_MS = 1 << SEQUENCE_BITS
UNKEYED = b""


class IdGenerator:
    """Ids of one cell, each larger than the one before."""

    __slots__ = ("_cell", "_ms", "_sequence")

    def __init__(self, cell: int, after: int = 0) -> None:
        if not 0 <= cell <= CELL_MAX:
            raise ValueError(f"cell must be 0..{CELL_MAX}, not {cell}")
        self._cell = cell << SEQUENCE_BITS
        self._ms = (after >> TIME_SHIFT) + 1 if after else 0
        self._sequence = 0

    def take(self, now: int, count: int = 1) -> list[int]:
        """The next `count` ids at `now` (epoch microseconds)."""
        return list(chain.from_iterable(self.ranges(now, count)))

    def ranges(self, now: int, count: int) -> list[range]:
        """As `take`, in rows of consecutive ones."""
        ms = now // 1000 - EPOCH_MS
        if ms > self._ms:
            self._ms = ms
            self._sequence = 0
        rows: list[range] = []
        while count > 0:
            taken = min(count, IDS_A_MS - self._sequence)
            first = (self._ms << TIME_SHIFT) | self._cell | self._sequence
            rows.append(range(first, first + taken))
            count -= taken
            self._sequence += taken
            if self._sequence == IDS_A_MS:
                self._ms += 1
                self._sequence = 0
        return rows

    def ahead(self, ms: int) -> int:
        """An id that is larger than all this generator gives until it has moved on by `ms` milliseconds."""
        return ((self._ms + ms) << TIME_SHIFT) | LOW_MASK

    @property
    def floor(self) -> int:
        """Every id to come is at least this."""
        return (self._ms << TIME_SHIFT) | self._cell | self._sequence


def time_of_id(message_id: int) -> int:
    """When an id was made, epoch microseconds, to the millisecond."""
    return ((message_id >> TIME_SHIFT) + EPOCH_MS) * 1000


def due_stamp(message_id: int, due_at: int) -> int:
    """The place of a delivery that is ready again at `due_at`: about that of a message enqueued then."""
    ms = max(due_at // 1000 - EPOCH_MS, 0)
    return (ms << TIME_SHIFT) | (message_id & LOW_MASK)


def fnv1a32(data: bytes) -> int:
    """The hash that chooses a partition. Part of the wire contract: clients and other nodes compute the same."""
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


@lru_cache(maxsize=65_536)
def route_of(key: str) -> int:
    """The partition hash of a key. Cached: keys repeat, and a Python loop over their bytes costs more than all else."""
    return fnv1a32(key.encode())


@lru_cache(maxsize=65_536)
def key_hash(key: str) -> bytes:
    """Eight bytes that stand for a key in indexes. Two keys with one hash only wait for each other needlessly."""
    return blake2b(key.encode(), digest_size=8).digest()
