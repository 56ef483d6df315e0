"""A cursor group in one shard: it reads the shard as a log and commits up to a sequence."""

from __future__ import annotations

from holdfast.core.groups import NEVER
from holdfast.core.records import CursorHead


class CursorGroup:
    """The state of one cursor group in one shard. Its messages stay until it has committed past them."""

    __slots__ = ("age_check_at", "dirty", "head", "max_lag_age", "max_lag_messages", "name", "number")

    def __init__(self, number: int, name: str, head: CursorHead, max_lag_messages: int, max_lag_age: int) -> None:
        self.number = number
        self.name = name
        self.head = head
        self.max_lag_messages = max_lag_messages
        self.max_lag_age = max_lag_age
        self.age_check_at = 0 if max_lag_age else NEVER  # when the age of its oldest message is to be looked at
        self.dirty = False

    def arrive(self, now: int) -> None:
        """Messages were enqueued: their age is to be looked at in time."""
        if self.max_lag_age:
            self.age_check_at = min(self.age_check_at, now + self.max_lag_age)

    def needs(self, seq: int) -> bool:
        return seq > self.head.committed

    def lags(self, next_seq: int) -> int:
        """The sequence it must be moved on to for `max_lag_messages`, or 0."""
        if not self.max_lag_messages:
            return 0
        target = next_seq - 1 - self.max_lag_messages
        return target if target > self.head.committed else 0

    def count(self, name: str, by: int) -> None:
        counters = self.head.counters
        counters[name] = counters.get(name, 0) + by
        self.dirty = True
