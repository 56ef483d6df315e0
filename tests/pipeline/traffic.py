"""Random traffic through a real engine, and the journal that it leaves."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from holdfast.core.commands import Draft, Leased, Settlement, Verb
from holdfast.core.queue import GroupKind
from holdfast.core.records import Extra
from holdfast.engine.browse import browse_messages
from holdfast.engine.catalog import QueueName
from holdfast.engine.cursors import cursor_commit
from holdfast.engine.groups import add_group, delete_group
from holdfast.engine.leases import live_deliveries
from holdfast.engine.messages import delete_message, edit_message
from holdfast.engine.queues import create_queue, purge_queue
from holdfast.errors import HoldfastError
from holdfast.units import MINUTE, SECOND
from tests.broker.export.lake import TASKS, Life

DEAD = ("default", "dlq/tasks")
GROUPS = ("workers", "audit")
VERBS = [Verb.ACK] * 6 + [Verb.NACK] * 3 + [Verb.REJECT, Verb.RELEASE, Verb.EXTEND]


class Traffic(Life):
    """A node on which all kinds of things happen."""

    def __init__(self, directory: Path, seed: int, *, delays: bool = True) -> None:
        super().__init__(directory)
        self._delays = delays
        self.random = Random(seed)
        retry = {"max_retries": 2, "initial_backoff": "1s", "max_backoff": "2s"}
        create_queue(self.engine, TASKS, {"partitions": 2, "retry": retry, "message_ttl": "10m"}, self.now)
        create_queue(self.engine, ("default", "log"), {"partitions": 1, "dlq": {"enabled": False}}, self.now)
        queue = self.engine.queue(("default", "log"), self.now)
        add_group(self.engine, queue, "reader", GroupKind.CURSOR, self.now, earliest=True)
        self.write()

    def go(self, steps: int) -> None:
        actions = (
            [self._enqueue] * 4
            + [self._work] * 8
            + [self._wait] * 3
            + [self._work_dead_letters, self._cursor, self._meddle, self._regroup]
        )
        for _ in range(steps):
            self.random.choice(actions)()
            self.write()

    def _enqueue(self) -> None:
        random = self.random
        drafts = [
            Draft(
                b'{"n": %d, "kind": "%s"}' % (n, random.choice([b"a", b"b"])),
                priority=random.choice([128, 128, 3]),
                deliver_at=self.now + 5 * SECOND if self._delays and random.random() < 0.1 else 0,
                extra=Extra(
                    key=random.choice(["k1", "k2", None]),
                    message_id=f"id-{random.randrange(60)}" if random.random() < 0.4 else None,
                    correlation_id=random.choice([None, "c"]),
                    properties=(("tenant", "t"),) if random.random() < 0.3 else (),
                ),
            )
            for n in range(random.randrange(1, 6))
        ]
        self.engine.enqueue(random.choice([TASKS, TASKS, ("default", "log")]), drafts, "http", self.now)

    def _work(self) -> None:
        random = self.random
        name, group = random.choice(
            [(TASKS, random.choice(GROUPS)), (TASKS, "workers"), (("default", "log"), "workers")]
        )
        found = self.engine.lease(
            name, group, random.randrange(1, 6), -1, random.choice(["w1", "w2"]), "mqtt", self.now
        )
        self.write()
        self._settle(name, group, [one for one in found if random.random() < 0.9])

    def _settle(self, name: QueueName, group: str, leased: list[Leased]) -> None:
        random = self.random
        settlements = [
            Settlement(
                one.message.id,
                one.token,
                random.choice(VERBS),
                error=random.choice(["", f"timeout after {random.randrange(99)} ms", "bad"]),
                partition=one.partition,
            )
            for one in leased
        ]
        if settlements:
            self.engine.settle(name, group, settlements, self.now)

    def _wait(self) -> None:
        self.now += self.random.choice([SECOND, 40 * SECOND, 5 * MINUTE])
        self.engine.tick(self.now)

    def _work_dead_letters(self) -> None:
        if DEAD not in self.engine.queues:
            return
        found = self.engine.lease(DEAD, "operators", 3, -1, "op", "http", self.now)
        self.write()
        settlements = [Settlement(one.message.id, one.token, Verb.ACK, partition=one.partition) for one in found]
        if settlements:
            self.engine.settle(DEAD, "operators", settlements, self.now)

    def _cursor(self) -> None:
        queue = self.engine.queue(("default", "log"), self.now)
        high = queue.shards[0].head.next_seq - 1
        if high:
            for _ in cursor_commit(self.engine, ("default", "log"), "reader", 0, high, lambda: self.now):
                self.write()

    def _regroup(self) -> None:
        """A group comes or goes: one that leases or reads, at the beginning or at the end. Few do anything. Or messages
        come for one group only."""
        random, now = self.random, self.now
        name = random.choice([TASKS, ("default", "log")])
        group = random.choice(["late", "stalled", "reading"])
        queue = self.engine.queue(name, now)
        if random.random() < 0.3 and queue.find_group("workers"):
            self.engine.enqueue_in(queue, [Draft(b"again"), Draft(b"more")], "redrive", now, group="workers")
        elif queue.find_group(group) is None:
            kind = GroupKind.CURSOR if group == "reading" else GroupKind.LEASE
            add_group(self.engine, queue, group, kind, now, earliest=random.random() < 0.6)
        elif random.random() < 0.5:
            for _ in delete_group(self.engine, name, group, lambda: now):
                self.write()
        elif group == "late":
            self._settle(name, group, self.engine.lease(name, group, 5, -1, "w3", "mqtt", now))

    def _meddle(self) -> None:
        """An edit, a deletion, or rarely a purge."""
        page = browse_messages(self.engine, TASKS, 5, "", "", "", self.now)
        for _, message, _ in page.messages[:2]:
            try:
                if self.random.random() < 0.5:
                    edit_message(self.engine, TASKS, message.id, 7, None, self.now)
                else:
                    delete_message(self.engine, TASKS, message.id, self.now)
            except HoldfastError:
                continue  # it is leased or has been tried
        if self.random.random() < 0.1:
            for _ in purge_queue(self.engine, TASKS, lambda: self.now):
                self.write()

    def live(self) -> set[tuple[str, str | None, int]]:
        """Queue, group and message of every delivery that the broker has."""
        found = [one for page in live_deliveries(self.engine, self.now) for one in page]
        return {(one.queue, one.group, one.message_id) for one in found}

    def export(self, rows: int = 1_000_000) -> list[dict[str, Any]]:
        """Export everything; returns all rows of the lake, in order."""
        self.export_all(self.exporter(rows=rows))
        return self.lake_rows()
