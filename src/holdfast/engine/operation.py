"""What the current operation of a caller changes in memory, so that it can be had again as it was.

An operation that fails by a bug may have stopped between two changes that belong together: a message is out of its
window, and its lease is not made. So what it has changed is read again from the store and the batch of the turn, which
has whole operations. Nothing else is looked at, however much there is: many operations of one turn may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING

from holdfast.core.queue import QueueRecord
from holdfast.core.shard import Shard
from holdfast.engine.catalog import Queue, QueueName

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

Before = tuple[Queue, QueueRecord, list[Shard]]
"""A queue with its record and its shards before the operation."""

Restore = Callable[[], None]
"""Has something as it was before the operation."""


class Operation:
    """See the module. The batch knows by itself which shards an operation changes."""

    __slots__ = ("_engine", "_lengths", "_queues", "_restores")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lengths = (0, 0, 0, 0, 0)
        self._queues: dict[QueueName, Before | None] = {}  # None: there was none
        self._restores: dict[Hashable, Restore] = {}

    def _lengths_now(self) -> tuple[int, int, int, int, int]:
        engine = self._engine
        return (
            len(engine.alerts), len(engine.failed_requests), len(engine.dropped), len(engine.forgotten),
            len(engine.tripped),
        )  # fmt: skip

    @property
    def changed(self) -> bool:
        """Whether the operation has changed anything that the batch does not know."""
        return bool(self._queues or self._restores) or self._lengths_now() != self._lengths

    def begin(self) -> None:
        """An operation begins. The one before it is complete."""
        self._lengths = self._lengths_now()
        if self._queues:
            self._queues = {}
        if self._restores:
            self._restores = {}

    def before_change(self, what: Hashable, restore: Restore) -> None:
        """The operation is about to change something that is neither a queue nor a shard. The first `restore` counts
        that it gives."""
        self._restores.setdefault(what, restore)

    def before_queue(self, name: QueueName) -> None:
        """The operation is about to create, change or remove a queue."""
        if name not in self._queues:
            queue = self._engine.queues.get(name)
            self._queues[name] = None if queue is None else (queue, queue.record, list(queue.shards))

    def undo(self, changed: Iterable[Shard], now: int) -> None:
        """Have everything as it was when the operation began; the batch has already taken out what it added. Queues and
        shards stay the objects that they are, for operations of many steps that have them."""
        engine = self._engine
        lists = (engine.alerts, engine.failed_requests, engine.dropped, engine.forgotten, engine.tripped)
        for some, length in zip(lists, self._lengths, strict=True):
            del some[length:]  # type: ignore[attr-defined]
        for name, before in self._queues.items():
            self._restore_queue(name, before)
        for shard in changed:
            self._read_again(shard, now)
        for restore in self._restores.values():
            restore()
        self.begin()

    def _restore_queue(self, name: QueueName, before: Before | None) -> None:
        catalog = self._engine.catalog
        queue = self._engine.queues.get(name)
        if queue is not None:
            catalog.forget(queue)
            kept = set() if before is None else {shard.number for shard in before[2]}
            for shard in queue.shards:
                if shard.number not in kept:
                    self._forget(shard)
        if before is not None:
            queue, record, shards = before
            queue.restore(record, shards)
            catalog.add(queue)

    def _forget(self, shard: Shard) -> None:
        self._engine.wake_ups.cancel(shard)
        shard.close()

    def _read_again(self, shard: Shard, now: int) -> None:
        engine = self._engine
        place = engine.catalog.shard(shard.number)
        if place is None:  # the operation has made it
            self._forget(shard)
            return
        queue, _ = place
        engine.read_again(queue, shard, now)
        queue.reopened(shard)
        engine.wake_ups.schedule(shard)
        engine.mark_dirty(queue.name)
