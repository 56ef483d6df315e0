"""An engine on a store with a clock that is set by hand, for tests through the engine's own functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from holdfast.core.codecs import read_message
from holdfast.core.commands import Draft, Enqueued, Leased, Settlement, Verb
from holdfast.core.journal import Row, read_block, rows
from holdfast.core.queue import GroupKind
from holdfast.core.records import LAST, Message, Table, journal_key, message_key
from holdfast.engine.browse import browse_messages
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.engine import Engine, Limits, SettleResult
from holdfast.engine.groups import create_group
from holdfast.engine.queues import create_queue
from holdfast.errors import QueueNotFound
from holdfast.store.contract import Store

T = TypeVar("T")

TASKS = ("default", "tasks")
DEAD = ("default", "dlq/tasks")
START = 1_772_323_200_000_000


class Rig:
    """A cell without its event loop: every call is written before it returns. `open_store` opens the same data anew."""

    def __init__(self, open_store: Callable[[], Store], limits: Limits | None = None) -> None:
        self.now = START
        self._open_store = open_store
        self._limits = limits
        self.engine = self._open()

    def _open(self) -> Engine:
        engine = Engine(self._open_store(), cell=1, limits=self._limits)
        engine.open(self.now)
        return engine

    def restart(self) -> None:
        self.close()
        self.engine = self._open()

    def close(self) -> None:
        self.engine.write()
        self.engine.store.sync()
        self.engine.store.close()

    def clock(self) -> int:
        return self.now

    def queue(self, name: QueueName = TASKS) -> Queue:
        return self.engine.queue(name, self.now)

    def create_queue(self, name: QueueName = TASKS, **fields: object) -> None:
        create_queue(self.engine, name, fields, self.now)
        self.engine.write()

    def create_group(
        self,
        group: str,
        name: QueueName = TASKS,
        kind: GroupKind = GroupKind.LEASE,
        earliest: bool | None = None,
    ) -> None:
        create_group(self.engine, name, group, kind, self.now, earliest, 0, 0)
        self.engine.write()

    def enqueue(self, *drafts: Draft | bytes, name: QueueName = TASKS, atomic: bool = False) -> Enqueued:
        made = [draft if isinstance(draft, Draft) else Draft(draft) for draft in drafts]
        reply = self.engine.enqueue(name, made, "test", self.now, atomic)
        self.engine.write()
        return reply

    def lease(
        self, limit: int = 1, group: str = "g", name: QueueName = TASKS, consumer: str = "", max_bytes: int = 0
    ) -> list[Leased]:
        found = self.engine.lease(name, group, limit, -1, consumer, "test", self.now, max_bytes=max_bytes)
        self.engine.write()
        return found

    def settle(
        self, leased: Sequence[Leased], verb: Verb = Verb.ACK, group: str = "g", name: QueueName = TASKS
    ) -> list[SettleResult]:
        settlements = [
            Settlement(one.message.id, one.token, verb, error="boom", partition=one.partition) for one in leased
        ]
        results = self.engine.settle(name, group, settlements, self.now)
        self.engine.write()
        return results

    def consume(self, count: int, verb: Verb = Verb.ACK, group: str = "g", name: QueueName = TASKS) -> None:
        """Lease and settle."""
        self.settle(self.lease(count, group, name), verb, group, name)

    def live(self, name: QueueName = TASKS) -> list[Message]:
        """The messages of a queue, oldest first; none if there is no such queue."""
        try:
            page = browse_messages(self.engine, name, 1000, "", "", "", self.now)
        except QueueNotFound:
            return []
        return [message for _, message, _ in page.messages]

    def journal(self) -> list[Row]:
        """The rows that were not exported yet."""
        store = self.engine.store

        def fetch(shard: int, first: int, count: int) -> list[Message]:
            values = store.scan(Table.MESSAGES, message_key(shard, first), message_key(shard, first + count), count)
            return [read_message(seq, value) for seq, (_, value) in enumerate(values, first)]

        blocks = store.scan(Table.JOURNAL, b"", journal_key(LAST), 1 << 30)
        return [row for _, value in blocks for row in rows(read_block(value), 0, fetch)]

    def advance(self, by: int) -> None:
        """Let time pass, and do what is due then."""
        self.now += by
        while True:
            self.engine.tick(self.now)
            self.engine.write()
            if self.engine.wake_at() > self.now:
                return

    def run(self, work: Iterator[T]) -> list[T]:
        """All of a long work, each step written before the next."""
        found: list[T] = []
        for step in work:
            found.append(step)
            self.engine.write()
        return found
