"""Which deliveries are leased, by whom, and in which partition a delivery is; and every live delivery of a cell: what a
snapshot holds, and what the journal must add up to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.commands import Browse, Browsed, Command, CursorRead, Leased, Peek
from holdfast.core.deliveries import Delivery
from holdfast.core.queue import GroupKind
from holdfast.core.shard import Shard
from holdfast.engine.catalog import Queue, QueueName

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

PAGE_MESSAGES = 1_000  # of a page of live deliveries
PAGE_BYTES = 8 << 20  # payloads that are read for it, although only the status of their messages is wanted


class DeliveryLocator:
    """Finds the partition that has a delivery of a group, or remembers how it ended. Valid until the next command."""

    def __init__(self, queue: Queue, group: str) -> None:
        self._queue = queue
        self._group = group
        self._deliveries = [(shard.partition, shard.deliveries_of(group)) for shard in queue.shards]

    def find(self, message_id: int, token: int = 0) -> int:
        """The partition that has a delivery, or remembers the lease under this token; -1 if none does."""
        return self.find_all([message_id], [token])[0]

    def find_all(self, ids: list[int], tokens: list[int]) -> list[int]:
        """`find` for many. A partition is asked for all of them together, which costs nothing where it has few."""
        found: dict[int, int] = {}
        wanted = set(ids)
        for partition, deliveries in self._deliveries:
            found.update(dict.fromkeys(deliveries.among(wanted), partition))
            if len(found) == len(wanted):
                break
        if len(found) < len(wanted):
            leases = {
                token: message_id for message_id, token in zip(ids, tokens, strict=True) if message_id not in found
            }
            leases.pop(0, None)
            for shard in self._queue.shards if leases else ():
                for token in shard.ended_among(self._group, leases.keys()):
                    found[leases[token]] = shard.partition
        return [found.get(message_id, -1) for message_id in ids]

    def split(self, ids: list[int], tokens: list[int]) -> dict[int, list[int]]:
        """`find` for many: by partition, the indexes of those it has."""
        if not ids:
            return {}
        for partition, deliveries in self._deliveries:
            if ids[0] in deliveries:  # what was leased together is mostly in one
                if deliveries.has_all(ids):
                    return {partition: list(range(len(ids)))}
                break
        parts: dict[int, list[int]] = {}
        for index, partition in enumerate(self.find_all(ids, tokens)):
            parts.setdefault(partition, []).append(index)
        return parts


def leases_of(engine: Engine, name: QueueName, group: str, consumer: str, protocol: str, now: int) -> list[Leased]:
    """What a consumer has under lease, in the order it was leased."""
    queue = engine.queues.get(name)
    if queue is None:
        return []
    held: list[tuple[Shard, list[Delivery]]] = []
    for shard in queue.shards:
        # Of one whose deadline has passed, the tick that is due ends it.
        own = [one for one in shard.deliveries_of(group).leased_to(consumer, protocol) if one.deadline > now]
        if own:
            held.append((shard, own))
    steps: list[tuple[Queue, Shard, Command[Browsed]]] = [
        (queue, shard, Peek([delivery.seq for delivery in own])) for shard, own in held
    ]
    found: list[Leased] = []
    for (shard, own), reply in zip(held, engine.step_all(steps, now), strict=True):
        for delivery, (message, _) in zip(own, reply.messages, strict=True):
            attempt = delivery.failures + 1
            found.append(
                Leased(message, delivery.token, attempt, delivery.deadline, shard.partition, group, delivery.stamp)
            )
    return sorted(found, key=lambda leased: leased.token)


def delivery_of_token(engine: Engine, name: QueueName, group: str, token: int) -> tuple[int, int] | None:
    """Message id and partition of the delivery that a lease token is or was for, as far back as is remembered."""
    queue = engine.queues.get(name)
    shards = queue.shards if queue is not None else []
    for shard in shards:
        ended = shard.ended_message(group, token)
        if ended is not None:
            return ended, shard.partition
    for shard in shards:
        leased = shard.deliveries_of(group).of_token(token)
        if leased is not None:
            return leased, shard.partition
    return None


# --- every live delivery --------------------------------------------------------------------------------------------


class LiveDelivery(NamedTuple):
    """A message that a group has not settled or committed; without a group: one that no group exists for."""

    namespace: str
    queue: str
    partition: int
    group: str | None
    message_id: int
    state: str
    attempt: int


def live_deliveries(engine: Engine, now: int) -> Iterator[list[LiveDelivery]]:
    """All of them. Nothing changes, and nothing may change until the last page is read."""
    for queue in engine.queues.values():
        for shard in queue.shards:
            yield from _waiting(engine, queue, shard, now)
            for group in queue.record.groups:
                if group.kind is GroupKind.CURSOR:
                    yield from _unread(engine, queue, shard, group.name, now)


def _waiting(engine: Engine, queue: Queue, shard: Shard, now: int) -> Iterator[list[LiveDelivery]]:
    """What leasing groups have not settled, and messages that no group exists for."""
    place = (*queue.name, shard.partition)
    first = 1
    while first:
        page = engine.step(queue, shard, Browse(first, PAGE_MESSAGES, PAGE_BYTES, scan_limit=PAGE_MESSAGES), now)
        first = page.next_seq
        rows: list[LiveDelivery] = []
        for message, statuses in page.messages:
            unsettled = [status for status in statuses if status.state != "settled"]
            rows += [
                LiveDelivery(*place, status.group, message.id, status.state, status.attempt) for status in unsettled
            ]
            # None has it: there is no group, or the one that had it was deleted and its messages will be removed.
            if not unsettled and not shard.kept_by_cursor(message.seq):
                rows.append(LiveDelivery(*place, None, message.id, "ready", 0))
        yield rows


def _unread(engine: Engine, queue: Queue, shard: Shard, group: str, now: int) -> Iterator[list[LiveDelivery]]:
    """What a cursor group has not committed."""
    place = (*queue.name, shard.partition)
    first = shard.cursor_head(group).committed + 1
    while first < shard.head.next_seq:
        found = engine.step(queue, shard, CursorRead(group, first, PAGE_MESSAGES, PAGE_BYTES), now)
        first = found.next_seq
        yield [LiveDelivery(*place, group, message.id, "unread", 0) for message in found.messages]
