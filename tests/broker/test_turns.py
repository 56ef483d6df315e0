"""A node whose store counts: what falls due together is done in turns of bounded work, with others' between them."""

from __future__ import annotations

from pathlib import Path

from holdfast.broker.node import Node
from holdfast.core.commands import Draft
from holdfast.store import MemoryDisk
from holdfast.units import SECOND
from tests.broker.conftest import config_for
from tests.engine.counting import TURN_RECORDS_MAX, CountingStore
from tests.waiting import until

DELAYED, OTHER = ("default", "delayed"), ("default", "other")
MANY = 3_000


async def test_delayed_messages_that_fall_due_together_hold_up_no_enqueue(tmp_path: Path) -> None:
    now = 1_772_323_200 * SECOND
    store = CountingStore(MemoryDisk())
    node = Node(config_for(tmp_path), store, lambda: now)
    await node.start()
    await node.queues.create(DELAYED, {"partitions": 1})
    await node.groups.create(DELAYED, "g")
    await node.messages.enqueue(DELAYED, [Draft(b"m", deliver_at=now + SECOND) for _ in range(MANY)], "test")
    turns: list[int] = []

    def end_turn(must_sync: bool) -> None:
        turns.append(store.records)
        store.records = 0
        after_write(must_sync)

    after_write = node.cell.commit._after_write
    node.cell.commit._after_write = end_turn
    store.records = 0
    now += SECOND
    node.cell.run_due()
    await node.messages.enqueue(OTHER, [Draft(b"m")], "test")
    assert (await node.inspection.stats(DELAYED)).scheduled > MANY // 2, "the rest waits its turn"
    await until(lambda: not node.inspection.current_stats(DELAYED).scheduled)
    assert len(turns) > 10
    assert max(turns) <= TURN_RECORDS_MAX
    await node.stop()
    store.close()
