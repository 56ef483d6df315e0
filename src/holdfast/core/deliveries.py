"""What a group has touched and not settled, by message id.

A delivery that was just leased is part of its batch and has no object of its own (see `LeaseBatch`); who asks for it
with
`get` has one made. Most leases are acked before anybody does: that takes a quarter of what it would cost otherwise.
"""

from __future__ import annotations

from holdfast.core.records import Delivery, LeaseBatch


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
