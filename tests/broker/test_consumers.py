"""Who consumes a group, groups that nobody consumes, rates, and the disk's reserve."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from holdfast.broker.commit.admission import DiskReserve, Inbox
from holdfast.broker.dispatch import activity
from holdfast.broker.dispatch.activity import Activity
from holdfast.broker.lookout.unattended import QUEUES_PER_SLICE, UNATTENDED_AFTER
from holdfast.broker.rate_sampler import SAMPLED_MAX
from holdfast.core.commands import Draft
from holdfast.core.queue import GroupKind
from holdfast.engine.stats import GroupStats
from holdfast.errors import DiskFull
from holdfast.store.contract import Store
from holdfast.testing import Broker
from holdfast.units import MINUTE, SECOND
from tests.waiting import until

JOBS = ("default", "jobs")


def group(broker: Broker, name: str = "g") -> GroupStats:
    return next(each for each in broker.node.inspection.current_stats(JOBS).groups if each.name == name)


async def test_consumers_are_counted_however_they_consume() -> None:
    async with Broker() as broker:
        node = broker.node
        await node.groups.create(JOBS, "g")
        assert group(broker).consumers == 0
        subscription = await node.subscriptions.join(JOBS, "g", "pushed", lambda _: None)
        polls = [
            asyncio.create_task(node.messages.lease(JOBS, "g", wait=60 * SECOND, consumer=name))
            for name in ("a", "b", "b", "", "")
        ]
        await until(lambda: group(broker).waiting == 5)
        assert group(broker).consumers == 5  # pushed, a, b, and two without a name
        subscription.leave()
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        assert (group(broker).waiting, group(broker).consumers) == (0, 2)  # a and b asked within the last minute
        broker.advance("61s")
        assert group(broker).consumers == 0


def test_what_is_known_of_consumers_is_bounded() -> None:
    known = Activity()
    for number in range(activity.CONSUMERS_MAX + 5):
        known.seen((JOBS, "g"), f"c{number}", number)
    assert len(known.recent((JOBS, "g"), 0)) == activity.CONSUMERS_MAX
    for number in range(activity.GROUPS_MAX + 5):
        known.seen((JOBS, f"g{number}"), "", 1)
    assert known.last_seen((JOBS, "g")) == known.last_seen((JOBS, "g0")) == 0
    assert known.last_seen((JOBS, f"g{number}")) == 1


async def test_a_group_with_a_backlog_and_no_consumer_is_unattended() -> None:
    async with Broker() as broker:
        node = broker.node
        await node.groups.create(JOBS, "g")
        await node.groups.create(JOBS, "log", GroupKind.CURSOR)
        broker.advance("10m")
        assert group(broker).unattended == 0, "it has no backlog"
        await node.messages.enqueue(JOBS, [Draft(b"m")] * 2)
        assert group(broker).unattended >= 10 * MINUTE
        assert group(broker, "log").unattended >= 10 * MINUTE
        [leased] = await node.messages.lease(JOBS, "g", 1)
        assert group(broker).unattended == 0, "a consumer has a lease"
        broker.advance("10m")  # the lease ends
        assert group(broker).unattended >= 10 * MINUTE
        subscription = await node.subscriptions.join(JOBS, "g", "member", lambda _: None)
        assert group(broker).unattended == 0
        subscription.leave()
        await node.cursors.read(JOBS, "log", 0)
        assert group(broker, "log").unattended < MINUTE
        await node.cursors.commit(JOBS, "log", leased.partition, leased.message.seq)
        assert node.cell.unattended.since((JOBS, "none"), node.clock()) == 0
        assert node.cell.unattended.since((("default", "none"), "g"), node.clock()) == 0


async def test_it_is_logged_once_until_somebody_comes() -> None:
    async with Broker() as broker:
        node = broker.node
        for number in range(QUEUES_PER_SLICE):
            await node.queues.create(("default", f"q{number}"), {"partitions": 1})
        await node.groups.create(JOBS, "g")
        await node.messages.enqueue(JOBS, [Draft(b"m")])
        with capture_logs() as logs:
            assert len(list(node.cell.unattended.look())) == 1, "it pauses between slices"
            assert logs == []
            broker.advance(f"{UNATTENDED_AFTER // SECOND}s")
            for _ in range(3):
                list(node.cell.unattended.look())
            assert [(line["queue"], line["group"]) for line in logs] == [("jobs", "g")]
            await node.messages.lease(JOBS, "g", 1)
            for _ in range(2):
                list(node.cell.unattended.look())
            broker.advance("1h")
            list(node.cell.unattended.look())
            await node.groups.delete(JOBS, "g")
            list(node.cell.unattended.look())
        assert [(line["log_level"], line["group"]) for line in logs] == [
            ("warning", "g"),
            ("info", "g"),
            ("warning", "g"),
        ]


async def test_a_burst_is_in_the_rates_while_it_is_in_the_last_minute() -> None:
    async with Broker() as broker:
        node = broker.node
        for number in range(SAMPLED_MAX + 1):
            await node.queues.create(("default", f"q{number}"), {"partitions": 1})
            node.cell.mark_dirty(("default", f"q{number}"))
        await node.messages.enqueue(JOBS, [Draft(b"m")] * 60)
        assert node.inspection.current_stats(JOBS).rates["enqueued"] == 60.0
        queues = node.cell.engine.queues.values()
        await until(lambda: all(len(queue.rates._samples) > 1 for queue in queues))
        broker.advance("61s")
        assert node.inspection.current_stats(JOBS).rates["enqueued"] == 0.0
        await node.messages.enqueue(JOBS, [Draft(b"m")] * 600)
        assert node.inspection.current_stats(JOBS).rates["enqueued"] == 10.0


async def test_a_disk_that_becomes_full_is_logged_and_so_is_its_end(tmp_path: Path) -> None:
    class Disk:
        """A store of which only the room on its disk matters."""

        free = 10

        def room(self) -> int:
            return self.free

    disk = Disk()
    reserve = DiskReserve(cast("Store", disk), 5, tmp_path, Inbox(1, 1))
    with capture_logs() as logs:
        reserve.admit(SECOND)
        disk.free = 4
        for number in range(2, 5):
            with pytest.raises(DiskFull):
                reserve.admit(number * SECOND)
        disk.free = 6
        reserve.admit(9 * SECOND)
    assert [(line["log_level"], line["free_bytes"]) for line in logs] == [("error", 4), ("info", 6)]
