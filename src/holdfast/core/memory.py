"""What the shards of a cell keep in memory beside what is leased or waits, bounded over all of them together.

Such things make an answer cheaper or friendlier, and may be forgotten at any time between two steps. A bound for each
shard would be none for the node: a cell may have a hundred thousand of them.
"""

from __future__ import annotations

from collections.abc import Set
from itertools import islice
from typing import Protocol, TypeVar

from holdfast.core.commands import Verb

T = TypeVar("T")

ENDED_LEASE_BYTES = 170
"""What one ended lease takes that is remembered: measured, with its share of the dictionary it is in."""

MASK_BYTES = 170
"""The same of one message whose settled groups are cached."""

PLACE_BYTES = 150
"""What one message in a window takes."""

MASK_BITS_MAX = 512
"""Masks of more bits, as they are after hundreds of groups, are not cached."""


class Holder(Protocol):
    """What keeps entries of one kind."""

    def __len__(self) -> int: ...

    def trim(self, keep: int) -> int:
        """Forget all but the newest `keep` entries. Returns how many were forgotten."""


class SharedBound:
    """A bound on the entries that many holders keep. Past it each may keep an equal share of three quarters of it: who
    has much loses some, who has little loses nothing, and the next cut is a quarter of the bound away. `size` is at
    least what there is: a holder that loses entries otherwise need not say so."""

    __slots__ = ("_holders", "limit", "size")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._holders: dict[Holder, None] = {}

    def add(self, holder: Holder, count: int) -> None:
        """A holder has `count` more entries."""
        self.size += count
        self._holders[holder] = None

    def forget(self, holder: Holder) -> None:
        """A holder ends, and all its entries with it."""
        if holder in self._holders:
            del self._holders[holder]
            self.size -= holder.trim(0)

    def enforce(self) -> None:
        """So much was added that the bound may be exceeded: count what is left of it, and have holders forget what is
        more than three quarters of the bound."""
        self._holders = {holder: None for holder in self._holders if len(holder)}
        self.size = sum(map(len, self._holders))
        most = self.limit * 3 // 4
        if self.size > most:
            share = most // len(self._holders)
            self.size -= sum([holder.trim(share) for holder in self._holders])


class CellMemory:
    """The bounds of a cell: bytes of message records between enqueue and lease, leases whose end is remembered,
    messages of which is known who has settled them, and those that windows show. `probes`: records that a search reads
    at a time; more where each time is a round trip."""

    __slots__ = ("cache_limit_bytes", "cache_used_bytes", "ended_leases", "masks", "places", "probes")

    def __init__(self, cache_limit_bytes: int, ended_leases: int, masks: int, places: int, probes: int = 1) -> None:
        self.probes = probes
        self.cache_limit_bytes = cache_limit_bytes
        self.cache_used_bytes = 0
        self.ended_leases = SharedBound(ended_leases)
        self.masks = SharedBound(masks)
        self.places = SharedBound(places)

    def enforce(self) -> None:
        """Between two steps: have the shards forget what exceeds the bounds."""
        for bound in (self.ended_leases, self.masks, self.places):
            if bound.size > bound.limit:
                bound.enforce()


class EndedLeases:
    """How leases of one group in one shard ended, by token: settling twice has the same reply as long as that is
    remembered."""

    __slots__ = ("_bound", "known")

    def __init__(self, bound: SharedBound) -> None:
        self._bound = bound
        self.known: dict[
            int, int | tuple[str, int]
        ] = {}  # the message of a lease that was acked, else verb and message

    def __len__(self) -> int:
        return len(self.known)

    def remember(self, token: int, verb: str, message_id: int) -> None:
        """A lease ended otherwise than by an ack."""
        self.known[token] = (verb, message_id)
        self._bound.add(self, 1)

    def remember_acked(self, tokens: list[int], ids: list[int]) -> None:
        self.known.update(zip(tokens, ids, strict=True))
        self._bound.add(self, len(tokens))

    def get(self, token: int) -> tuple[str, int] | None:
        """The verb by which a lease ended, and its message, as far back as is remembered."""
        found = self.known.get(token)
        return (Verb.ACK, found) if isinstance(found, int) else found

    def among(self, tokens: Set[int]) -> set[int]:
        """Those of these tokens whose end is remembered."""
        return self.known.keys() & tokens

    def trim(self, keep: int) -> int:
        return _trim(self.known, keep)


class Masks:
    """For messages of one shard, the groups that have settled them, as bits: those that are cached."""

    __slots__ = ("_bound", "known", "wide")

    def __init__(self, bound: SharedBound) -> None:
        self._bound = bound
        self.known: dict[int, int] = {}
        self.wide = False  # one has many bits: after hundreds of groups they are not worth their memory

    def __len__(self) -> int:
        return len(self.known)

    def __contains__(self, seq: int) -> bool:
        return seq in self.known

    def get(self, seq: int) -> int | None:
        return self.known.get(seq)

    def put(self, seq: int, mask: int) -> None:
        if seq not in self.known:
            self._bound.add(self, 1)
        self.known[seq] = mask
        self.wide = self.wide or mask.bit_length() > MASK_BITS_MAX

    def drop(self, seq: int) -> None:
        if self.known.pop(seq, None) is not None:
            self._bound.size -= 1

    def trim(self, keep: int) -> int:
        return _trim(self.known, keep)

    def clear(self) -> None:
        self._bound.size -= self.trim(0)
        self.wide = False


def _trim(entries: dict[int, T], keep: int) -> int:
    """Delete all but the newest `keep`. Returns how many were deleted."""
    oldest = list(islice(entries, max(len(entries) - keep, 0)))
    for key in oldest:
        del entries[key]
    return len(oldest)
