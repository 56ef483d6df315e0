"""The limits of queues over all their consumers: how much a group may be given now, and when it is asked again.

Limits of keys are the shards' (core/leasing.py). A queue without limits costs one comparison in a lease, and nothing in
a turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.catalog import Queue, QueueName
from holdfast.timers import Timers
from holdfast.token_buckets import REFILL_PAUSE, TokenBucket
from holdfast.units import NEVER

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine


# Messages that one lease has back off for the rates of their keys: some 10 ms. The rest follows in the next turn.
POSTPONED_MAX = 256


class Throttling:
    """See the module. What a rate holds back is timed; what `concurrency` does goes on with a settlement."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._timers: Timers[QueueName] = Timers()
        self.wake_at = NEVER
        self._postponed = 0  # in this lease
        self._held_back_at = -1  # at how many deliveries the rate ends this lease; -1: it does not

    def begin(self, queue: Queue, group: str, limit: int, now: int) -> int:
        """A lease begins. How many of `limit` deliveries the group may be given now."""
        limits = queue.config.throttle
        self._postponed, self._held_back_at = 0, -1
        self._take_postponed(queue)
        if limits.concurrency:
            limit = max(min(limit, limits.concurrency - queue.leased(group)), 0)
        if limits.rate and limit:
            bucket = queue.buckets.get(group)
            if bucket is None:
                bucket = queue.buckets[group] = TokenBucket(now)
            room = bucket.room(limits.rate, limits.bucket_size, now)
            if room < limit:
                limit = self._held_back_at = room
        return limit

    def goes_on(self, queue: Queue) -> bool:
        """A step of the lease has found nothing. Whether another one may: all that it came to backs off now, for the
        rates of its keys."""
        postponed = self._take_postponed(queue)
        self._postponed += postponed
        if postponed and self._postponed >= POSTPONED_MAX:
            self._engine.unfinished.add(queue.name)
            return False
        return postponed > 0

    def _take_postponed(self, queue: Queue) -> int:
        total = sum([shard.postponed for shard in queue.shards])
        for shard in queue.shards if total else ():
            shard.postponed = 0
        return total

    def end(self, queue: Queue, group: str, count: int) -> None:
        """A lease has ended that gave so many deliveries."""
        limits = queue.config.throttle
        bucket = queue.buckets.get(group)
        if not limits.rate or bucket is None:
            return
        bucket.take(count)
        if count == self._held_back_at:
            self._timers.set(queue.name, bucket.next_at(limits.rate, limits.bucket_size, REFILL_PAUSE))
            self._set_wake_up()

    def tick(self, now: int) -> None:
        """Queues whose buckets have tokens again are served in this turn."""
        while (name := self._timers.pop(now)) is not None:
            self._engine.mark_dirty(name)
        self._set_wake_up()

    def _set_wake_up(self) -> None:
        self.wake_at = NEVER if self._timers.due is None else self._timers.due
