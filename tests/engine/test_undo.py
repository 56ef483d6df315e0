"""An operation that fails by a bug, wherever in it, is undone: the engine is as it was when the operation began, with
all that the turn had before, and goes on from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.core.commands import Draft, Settlement, Verb
from holdfast.core.queue import GroupKind
from holdfast.core.records import Extra, Table
from holdfast.core.transactions import TransactionName
from holdfast.engine.audited_redrive import move
from holdfast.engine.batch import Batch
from holdfast.engine.dead_letters import DeadLetterFilter
from holdfast.engine.engine import Engine
from holdfast.engine.groups import create_group
from holdfast.engine.queues import create_queue, delete_queue, finish_deletion, purge_queue, update_queue
from holdfast.engine.redrive import redrive
from holdfast.engine.schedules.records import Rule, Schedule
from holdfast.store.memory import MemoryDisk, MemoryStore
from holdfast.units import MINUTE, SECOND
from tests.engine.rig import DEAD, TASKS, Rig

OTHER = ("default", "other")
CLOSING = ("default", "closing")
STAGED = TransactionName("default", "t1")
NIGHTLY = Schedule("default", "nightly", queue="tasks", rule=Rule(every=MINUTE), payload=b"work", priority=128, ttl=-1)


def named(payload: bytes, message_id: str = "", key: str | None = None) -> Draft:
    return Draft(payload, extra=Extra(message_id=message_id or None, key=key))


def leased_of(rig: Rig, verb: Verb) -> list[Settlement]:
    engine = rig.engine
    found = engine.lease(TASKS, "g", 3, -1, "", "test", rig.now)
    return [Settlement(one.message.id, one.token, verb, error="boom", partition=one.partition) for one in found]


def prepare(rig: Rig) -> None:
    """What is written, and then the beginning of a turn, which is not."""
    rig.create_queue(TASKS, partitions=3)
    for name in (OTHER, CLOSING):
        rig.create_queue(name)
        rig.enqueue(*[b"%d" % at for at in range(5)], name=name)
    rig.create_group("g")
    rig.create_group("log", kind=GroupKind.CURSOR, earliest=True)
    rig.enqueue(*[named(b"%d" % at, f"id-{at}", f"key-{at}") for at in range(12)])
    rig.consume(2, Verb.REJECT)
    rig.engine.transactions.stage(STAGED, [(TASKS[1], [Draft(b"one")] * 3)], "", "", 0, rig.now)
    rig.run(_first(delete_queue(rig.engine, CLOSING, rig.clock)))
    engine = rig.engine
    engine.begin()
    engine.enqueue(TASKS, [named(b"%d" % at, f"id-{at}", f"key-{at}") for at in range(10, 16)], "test", rig.now)
    engine.begin()
    engine.settle(TASKS, "g", leased_of(rig, Verb.ACK)[:2], rig.now)
    engine.begin()
    create_queue(engine, ("default", "new"), {}, rig.now)


def _first(work: Any) -> Any:
    yield next(work)


def grow(rig: Rig) -> None:
    update_queue(rig.engine, TASKS, {"partitions": 5, "max_depth": 1_000}, rig.now)


def publish(rig: Rig) -> None:
    transactions = rig.engine.transactions
    transactions.publish(STAGED, None, "test", rig.now)
    while transactions.move(STAGED, rig.now):
        pass


def redrive_audited(rig: Rig) -> None:
    dead = [message.id for message in rig.live(DEAD)]
    list(move(rig.engine, DEAD, "audit-7", dict.fromkeys(dead), to="", by="ann", note="", clock=rig.clock))


OPERATIONS: dict[str, Callable[[Rig], object]] = {
    "enqueue": lambda rig: rig.engine.enqueue(
        TASKS, [named(b"x", f"id-{at}", f"key-{at}") for at in range(14, 20)], "test", rig.now
    ),
    "lease": lambda rig: rig.engine.lease(TASKS, "g", 4, -1, "", "test", rig.now),
    "ack": lambda rig: rig.engine.settle(TASKS, "g", leased_of(rig, Verb.ACK), rig.now),
    "reject": lambda rig: rig.engine.settle(TASKS, "g", leased_of(rig, Verb.REJECT), rig.now),
    "nack": lambda rig: rig.engine.settle(TASKS, "g", leased_of(rig, Verb.NACK), rig.now),
    "create a queue": lambda rig: rig.engine.enqueue(("default", "made"), [Draft(b"x")], "test", rig.now),
    "create a group": lambda rig: create_group(rig.engine, TASKS, "h", GroupKind.LEASE, rig.now, True, 0, 0),
    "grow": grow,
    "delete a queue": lambda rig: list(delete_queue(rig.engine, OTHER, rig.clock)),
    "finish a deletion": lambda rig: list(
        finish_deletion(rig.engine, rig.engine.queues[CLOSING], rig.clock) if CLOSING in rig.engine.queues else ()
    ),
    "purge": lambda rig: list(purge_queue(rig.engine, TASKS, rig.clock)),
    "redrive": lambda rig: list(redrive(rig.engine, DEAD, DeadLetterFilter(), rig.clock)),
    "redrive under an id": redrive_audited,
    "stage": lambda rig: rig.engine.transactions.stage(STAGED, [(OTHER[1], [Draft(b"b")])], "", "", 1, rig.now),
    "begin a transaction": lambda rig: rig.engine.transactions.stage(
        TransactionName("default", "t2"), [(TASKS[1], [Draft(b"b")])], "", "", 0, rig.now
    ),
    "publish": publish,
    "schedule": lambda rig: rig.engine.schedules.put(NIGHTLY, rig.now),
    "a lease after what is due": lambda rig: rig.engine.lease(TASKS, "g", 4, -1, "", "test", rig.now + 3_600 * SECOND),
}


def stored(rig: Rig) -> list[object]:
    """Everything that is stored, but for what a cell counts of its ids and numbers."""
    store = rig.engine.store
    return [(table, store.scan(table, b"", b"\xff" * 300, 1 << 30)) for table in Table if table is not Table.META]


def in_memory(engine: Engine) -> dict[object, object]:
    """What the engine knows of its queues and the rest without reading."""
    found: dict[object, object] = {
        name: (
            queue.record,
            queue.depth,
            queue.size_bytes,
            [shard.head for shard in queue.shards],
            [list(shard.counters()) for shard in queue.shards],
            [(group.name, queue.backlog(group.name), queue.leased(group.name)) for group in queue.record.groups],
        )
        for name, queue in sorted(engine.queues.items())
    }
    totals = engine.catalog.totals("default")
    found["totals"] = (totals.queues, totals.partitions, totals.groups)
    found["transactions"] = [(name, live.record) for name, live in engine.transactions.live.items()]
    found["schedules"] = engine.schedules.count("default")
    return found


class Bug(Exception):
    pass


class Failing:
    """Raises in the so-manieth change that an operation makes to the batch: before or after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.left = at
        for name in ("add", "keep", "add_step", "add_entries", "drop_shard"):
            monkeypatch.setattr(Batch, name, self._failing(getattr(Batch, name)))

    def _failing(self, right: Callable[..., None]) -> Callable[..., None]:
        def wrong(*arguments: Any) -> None:
            self._count()
            right(*arguments)
            self._count()

        return wrong

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Bug


def prepared() -> Rig:
    disk = MemoryDisk()
    rig = Rig(lambda: MemoryStore(disk))
    prepare(rig)
    return rig


def test_a_queue_is_there_again_when_the_end_of_its_deletion_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = prepared()
    engine, expected = rig.engine, in_memory(prepared().engine)
    engine.begin()
    right = Engine.forget_queue

    def wrong(*arguments: Any) -> None:
        right(*arguments)
        raise Bug

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "forget_queue", wrong)
        with pytest.raises(Bug):
            OPERATIONS["finish a deletion"](rig)
    assert CLOSING not in engine.queues
    engine.undo(rig.now)
    assert in_memory(engine) == expected
    OPERATIONS["finish a deletion"](rig)
    engine.write()
    rig.restart()
    assert CLOSING not in rig.engine.queues


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_wherever_it_fails_it_is_undone(operation: Callable[[Rig], object], monkeypatch: pytest.MonkeyPatch) -> None:
    control = prepared()
    expected_in_memory = in_memory(control.engine)
    control.engine.write()
    expected = stored(control)
    at = failures = 0
    while True:
        at += 1 + at // 6
        rig = prepared()
        engine = rig.engine
        engine.begin()
        with monkeypatch.context() as patch:
            failing = Failing(patch, at)
            try:
                operation(rig)
            except Bug:
                failures += 1
            else:
                assert failing.left > 0
                break
            engine.undo(rig.now)
        assert in_memory(engine) == expected_in_memory
        engine.write()
        assert stored(rig) == expected
        operation(rig)  # it goes on from there
        engine.write()
        known = in_memory(engine)
        rig.restart()
        assert in_memory(rig.engine) == known
    assert failures >= 2
