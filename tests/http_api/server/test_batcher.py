"""Small enqueues that wait to be batched."""

from __future__ import annotations

from pathlib import Path

from holdfast.broker.enqueue_batcher import EnqueueBatcher
from holdfast.broker.node import Node
from holdfast.broker.parts.messages import Receipt
from holdfast.core.commands import Draft
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.store.memory import MemoryStore
from tests.broker.conftest import config_for
from tests.waiting import until


class Waiting:
    """A request that notes how it ends."""

    def __init__(self) -> None:
        self.drafts = [Draft(b"x")]
        self.ends: list[HoldfastError | None] = []

    def enqueued(self, receipt: Receipt) -> bool:
        return True

    def on_done(self, error: HoldfastError | None) -> None:
        self.ends.append(error)


async def test_requests_that_wait_for_their_turn_are_answered_when_the_store_fails_before_it(tmp_path: Path) -> None:
    node = Node(config_for(tmp_path), MemoryStore())
    await node.start()
    batcher = EnqueueBatcher(node, "http")
    node.cell.participants.append(batcher)
    requests = [Waiting(), Waiting()]
    for request in requests:
        batcher.add(("default", "tasks"), request)
    node.cell.commit.fail(StoreUnavailable(problem="the disk is gone"))
    assert ["the disk is gone" in str(request.ends[0]) for request in requests] == [True, True]
    await node.stop()
    assert [len(request.ends) for request in requests] == [1, 1]


class Broken(Waiting):
    def enqueued(self, receipt: Receipt) -> bool:
        raise ZeroDivisionError


async def test_a_bug_in_a_requests_own_code_is_nobody_elses(tmp_path: Path) -> None:
    """The store is not opened again, and those that were enqueued together with it are answered."""
    node = Node(config_for(tmp_path), MemoryStore())
    await node.start()
    engine = node.cell.engine
    batcher = EnqueueBatcher(node, "http")
    node.cell.participants.append(batcher)
    requests = [Waiting(), Broken(), Waiting()]
    for request in requests:
        batcher.add(("default", "tasks"), request)
    await until(lambda: all(request.ends for request in requests))
    assert [request.ends for request in requests[::2]] == [[None], [None]]
    [error] = requests[1].ends
    assert isinstance(error, StoreUnavailable), "which says that it may be stored"
    assert node.cell.engine is engine
    assert node.queues.depth(("default", "tasks")) == 3
    await node.stop()
