"""Which partition a draft goes to."""

from __future__ import annotations

from holdfast.core.commands import HomogeneousDrafts
from holdfast.core.records import Extra
from holdfast.core.runs import BytesColumn
from tests.engine.rig import TASKS, Rig


def test_a_columnar_batch_without_a_key_goes_to_one_partition_after_another(memory: Rig) -> None:
    memory.create_queue(partitions=3)
    for _ in range(3):
        memory.engine.enqueue(TASKS, HomogeneousDrafts(BytesColumn.of([b"a", b"b"])), "test", memory.now, False)
        memory.engine.write()
    assert sorted(one.partition for one in memory.lease(10)) == [0, 0, 1, 1, 2, 2]


def test_a_columnar_batch_with_a_key_goes_to_the_partition_of_its_key(memory: Rig) -> None:
    memory.create_queue(partitions=3, ordering="none")
    drafts = HomogeneousDrafts(BytesColumn.of([b"a", b"b"]), Extra(key="k"))
    for _ in range(3):
        memory.engine.enqueue(TASKS, drafts, "test", memory.now, False)
        memory.engine.write()
    assert len({one.partition for one in memory.lease(10)}) == 1
