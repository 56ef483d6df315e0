"""The deliveries that a group has leased and not settled, by message id, and the deadlines of their leases.

A delivery that was just leased is part of its batch and has no object of its own (see `LeaseBatch`). Most leases are
acked as they were granted, which costs a quarter of what it would with an object for each.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from operator import eq

import msgspec

from holdfast.core.records import LEASES_VERSION, Leases, Message, Place

STALE_MAX = 1_000  # entries of ended or extended leases among the deadlines, beside as many as there are current ones


class Delivery(msgspec.Struct, gc=False):
    """What became of a message in one group, from its first lease on. Leased while `token` is not 0, else waiting.

    `stamp` is its place among the deliveries that are ready again, `order` the message's own place. `ready_at` is when
    it may be leased again; the message's own attempt number is `failures + 1`.
    """

    id: int
    seq: int
    priority: int
    order: int
    stamp: int
    key: bytes
    flags: int
    failures: int
    enqueued_at: int
    expires_at: int
    first_at: int = 0
    leased_at: int = 0
    deadline: int = 0
    token: int = 0
    ready_at: int = 0
    size_bytes: int = 0
    consumer: str = ""
    protocol: str = ""
    error: str = ""
    doom: str = ""  # why it must go to the dead queue, while that queue does not accept it
    # Not stored: the batch that its lease is part of and its index in that; None: it has a record of its own.
    batch: LeaseBatch | None = None
    index: int = 0

    @property
    def place(self) -> Place:
        return Place(self.order, self.seq, self.key, self.flags, self.priority, self.size_bytes)


def first_leases(
    places: list[Place],
    messages: list[Message],
    tokens: list[int],
    leased_at: int,
    deadline: int,
    consumer: str,
    protocol: str,
) -> Leases:
    return Leases(
        LEASES_VERSION,
        leased_at,
        deadline,
        consumer,
        protocol,
        [message.id for message in messages],
        tokens,
        [place.seq for place in places],
        [place.priority for place in places],
        [place.stamp for place in places],
        [place.key for place in places],
        [place.flags for place in places],
        [message.enqueued_at for message in messages],
        [message.expires_at for message in messages],
        [place.size_bytes for place in places],
    )


class LeaseBatch:
    """First leases that one call gave, in memory. Their record goes when none is left in it.

    Most of them are settled as they were given. So there is a `Delivery` only for those of which somebody has asked for
    one (core/deliveries.py); of the others the columns of the record are all there is.
    """

    __slots__ = ("_indexes", "gone", "gone_stored", "leases", "left", "made", "token")

    def __init__(self, token: int, leases: Leases, gone: int = 0) -> None:
        self.token = token  # of its first lease
        self.leases = leases
        self.left = len(leases.ids) - gone.bit_count()
        self.gone = gone  # bits of the leases that are over, or whose delivery has a record of its own
        self.made = 0  # bits of those for which there is, or was, a Delivery
        self.gone_stored = gone > 0  # the bits in `gone` have a record
        self._indexes: dict[int, int] = {}

    def held(self) -> list[int]:
        """The indexes of the leases that have not ended and have no record of their own."""
        return [index for index in range(len(self.leases.ids)) if not self.gone >> index & 1]

    def index_of(self, message_id: int) -> int:
        """Where a message stands among them."""
        ids = self.leases.ids
        if ids[0] == message_id:  # most acks begin with it
            return 0
        if not self._indexes:
            self._indexes = dict(zip(ids, range(len(ids)), strict=True))
        return self._indexes[message_id]

    def count_unchanged(self, first: int, ids: list[int], tokens: list[int], at: int) -> int:
        """How many of `ids` and `tokens` from index `at` on are the leases from index `first` on, in this order, as far
        as no delivery was made of them and they have neither keys nor flags."""
        leases = self.leases
        count = min(len(ids) - at, len(leases.ids) - first)
        part, asked = slice(first, first + count), slice(at, at + count)
        if leases.ids[part] != ids[asked] or leases.tokens[part] != tokens[asked]:
            mine, theirs = zip(leases.ids[part], leases.tokens[part]), zip(ids[asked], tokens[asked])  # noqa: B905
            count = list(map(eq, mine, theirs)).index(False)
        changed = (self.gone | self.made) >> first & (1 << count) - 1
        if changed:
            count = (changed & -changed).bit_length() - 1
        part = slice(first, first + count)
        return 0 if any(leases.flags[part]) or any(leases.keys[part]) else count

    def make(self, index: int) -> Delivery:
        """A delivery, which may change from now on."""
        self.made |= 1 << index
        return self.view(index)

    def view(self, index: int) -> Delivery:
        """A delivery, to be looked at."""
        leases = self.leases
        return Delivery(
            leases.ids[index],
            leases.seqs[index],
            leases.priorities[index],
            leases.stamps[index],
            leases.stamps[index],
            leases.keys[index],
            leases.flags[index],
            0,
            leases.enqueued_at[index],
            leases.expires_at[index],
            first_at=leases.leased_at,
            leased_at=leases.leased_at,
            deadline=leases.deadline,
            token=leases.tokens[index],
            size_bytes=leases.sizes_bytes[index],
            consumer=leases.consumer,
            protocol=leases.protocol,
            batch=self,
            index=index,
        )


class Deliveries:
    """See the module."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, Delivery | LeaseBatch] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, message_id: int) -> bool:
        return message_id in self._known

    def __setitem__(self, message_id: int, delivery: Delivery) -> None:
        self._known[message_id] = delivery

    def __getitem__(self, message_id: int) -> Delivery:
        found = self._known[message_id]
        if isinstance(found, LeaseBatch):
            found = self._known[message_id] = found.make(found.index_of(message_id))
        return found

    def get(self, message_id: int) -> Delivery | None:
        return self[message_id] if message_id in self._known else None

    def pop(self, message_id: int) -> Delivery:
        delivery = self[message_id]
        del self._known[message_id]
        return delivery

    # --- by the batch -----------------------------------------------------------------------------------------------

    def lease(self, batch: LeaseBatch) -> None:
        """Take in the first leases of one call."""
        self._known.update(dict.fromkeys(batch.leases.ids, batch))

    def part_of(self, message_id: int) -> LeaseBatch | None:
        """The batch that a delivery is part of, if nobody has asked for it since it was leased."""
        found = self._known.get(message_id)
        return found if isinstance(found, LeaseBatch) else None

    def remove(self, ids: list[int]) -> None:
        known = self._known
        for message_id in ids:
            del known[message_id]

    def has_all(self, ids: list[int]) -> bool:
        return all(map(self._known.__contains__, ids))

    def has_none(self, ids: list[int]) -> bool:
        return self._known.keys().isdisjoint(ids)

    # --- looking, without asking for deliveries ---------------------------------------------------------------------

    def is_leased(self, message_id: int, token: int, deadline: int) -> bool:
        """Whether a delivery is leased under this token until then."""
        found = self._known.get(message_id)
        if isinstance(found, LeaseBatch):
            return found.leases.deadline == deadline and found.leases.tokens[found.index_of(message_id)] == token
        return found is not None and (found.token, found.deadline) == (token, deadline)

    def lease_deadline(self, message_id: int, token: int) -> int | None:
        """When the lease of a delivery ends; None if it is not leased under this token."""
        found = self._known.get(message_id)
        if isinstance(found, LeaseBatch):
            return found.leases.deadline if found.leases.tokens[found.index_of(message_id)] == token else None
        return found.deadline if found is not None and found.token == token else None

    def of_token(self, token: int) -> int | None:
        """The id of the message that is leased under this token."""
        last: LeaseBatch | None = None
        for message_id, found in self._known.items():
            if not isinstance(found, LeaseBatch):
                if found.token == token:
                    return message_id
            elif found is not last:  # neighbours mostly are of one batch
                last = found
                if token in found.leases.tokens:
                    leased = found.leases.ids[found.leases.tokens.index(token)]
                    if self._known.get(leased) is found:
                        return leased
        return None

    def enqueued_at(self) -> list[int]:
        """When the messages were enqueued."""
        return [
            found.leases.enqueued_at[found.index_of(message_id)] if isinstance(found, LeaseBatch) else found.enqueued_at
            for message_id, found in self._known.items()
        ]

    def leased_to(self, consumer: str, protocol: str) -> list[Delivery]:
        """What a consumer has under lease, to be looked at."""
        found_leases: list[Delivery] = []
        for message_id, found in self._known.items():
            if isinstance(found, LeaseBatch):
                if (found.leases.consumer, found.leases.protocol) == (consumer, protocol):
                    found_leases.append(found.view(found.index_of(message_id)))
            elif found.token and (found.consumer, found.protocol) == (consumer, protocol):
                found_leases.append(found)
        return found_leases

    def values(self) -> list[Delivery]:
        """All of them, to be looked at."""
        return [
            found.view(found.index_of(message_id)) if isinstance(found, LeaseBatch) else found
            for message_id, found in self._known.items()
        ]


class Deadlines:
    """A heap of leases by deadline. `deliveries` are those of the group, by id."""

    __slots__ = ("_deliveries", "_heap", "size")

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        # (deadline, a token, ids, tokens), the first lease last, so that it can be popped. Tokens are unique, so no two
        # entries are compared beyond them, but for a lease that was extended to the same time again.
        self._heap: list[tuple[int, int, list[int], list[int]]] = []
        self.size = 0

    def add(self, deadline: int, ids: list[int], tokens: list[int]) -> None:
        """These leases, at least one, end at `deadline`."""
        heappush(self._heap, (deadline, tokens[0], ids[::-1], tokens[::-1]))
        self.size += len(ids)

    def first(self) -> int | None:
        """The next deadline of a lease that is current, None if there is none."""
        heap = self._heap
        while heap:
            deadline, _, ids, tokens = heap[0]
            if ids and self._deliveries.is_leased(ids[-1], tokens[-1], deadline):
                return deadline
            if self._deliveries.has_none(ids):  # all were settled, as most are: 0.03 instead of 0.3 us each
                self.size -= len(ids)
                heappop(heap)
            else:
                ids.pop()
                tokens.pop()
                self.size -= 1
        return None

    def take(self, now: int, limit: int) -> list[int]:
        """Ids of at most `limit` leases that have ended by `now`. They are forgotten here."""
        taken: list[int] = []
        while len(taken) < limit and (first := self.first()) is not None and first <= now:
            _, _, ids, tokens = self._heap[0]
            taken.append(ids.pop())
            tokens.pop()
            self.size -= 1
        return taken

    def tidy(self, leased: int) -> None:
        """Forget what is stale, if that is the most. `leased` leases are current."""
        if self.size <= 2 * leased + STALE_MAX:
            return
        heap: list[tuple[int, int, list[int], list[int]]] = []
        for deadline, token, ids, tokens in self._heap:
            kept = [pair for pair in zip(ids, tokens, strict=True) if self._deliveries.is_leased(*pair, deadline)]
            if kept:
                heap.append((deadline, token, [pair[0] for pair in kept], [pair[1] for pair in kept]))
        heapify(heap)
        self._heap = heap
        self.size = sum(len(entry[2]) for entry in heap)
