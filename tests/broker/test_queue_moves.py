"""Messages of an ordinary queue are moved as they are, each in one step, over restarts and full destinations."""

from __future__ import annotations

import asyncio

from holdfast.broker.node import Node
from holdfast.broker.parts.redrive_jobs import JobState, RedriveRequest, RunningRedrive
from holdfast.core.commands import Draft
from holdfast.core.records import Extra
from holdfast.engine.redrive import Destination
from holdfast.units import HOUR, MINUTE
from tests.broker.conftest import Restart
from tests.waiting import until

FROM, TO = ("default", "orders"), ("default", "slow")


async def begin(node: Node, **request: object) -> RunningRedrive:
    wanted = RedriveRequest(queue=FROM[1], dead_queue=FROM, to=Destination(queue=TO[1], moving=True), **request)  # type: ignore[arg-type]
    return await node.redrive_jobs.start(wanted)


async def finished(node: Node, **request: object) -> RunningRedrive:
    job = await begin(node, **request)
    await job.ended.wait()
    return job


async def depths(node: Node) -> tuple[int, int]:
    return (await node.inspection.stats(FROM)).depth, (await node.inspection.stats(TO)).depth


async def test_messages_keep_what_they_are(node: Node) -> None:
    await node.queues.create(FROM, {"message_ttl": 0})
    await node.queues.create(TO, {"message_ttl": "1m"})
    now = node.clock()
    extra = Extra(key="customer-7", properties=(("tenant", "acme"),))
    drafts = [Draft(b"later", 3, now + HOUR, 2 * HOUR, extra), Draft(b"now", 9)]
    sources = (await node.messages.enqueue(FROM, drafts)).ids
    expiries = {message.expires_at for _, message, _ in (await node.inspection.browse(FROM)).messages}
    job = await finished(node)
    assert (job.progress.state, job.progress.moved, await depths(node)) == (JobState.DONE, 2, (0, 2))
    page = await node.inspection.browse(TO)
    later, other = sorted([message for _, message, _ in page.messages], key=lambda message: message.priority)
    assert (later.payload, later.priority, later.deliver_at) == (b"later", 3, now + HOUR)
    assert (later.extra.key, later.extra.properties) == ("customer-7", (("tenant", "acme"),))
    assert expiries == {0, later.expires_at}, "what is left of its time to live"
    assert other.expires_at == other.enqueued_at + MINUTE, "it had none of its own: the queue's holds"
    assert [m.extra.origin.source_id for m in (later, other) if m.extra.origin] == sources


async def test_what_a_consumer_holds_stays(node: Node) -> None:
    await node.queues.create(TO)
    await node.messages.enqueue(FROM, [Draft(b"%d" % n) for n in range(5)])
    await node.messages.lease(FROM, "g", 2)
    job = await finished(node)
    assert (job.progress.moved, job.progress.skipped, await depths(node)) == (3, 2, (2, 3))


async def test_it_waits_for_a_full_destination_and_goes_on_after_a_restart(restart: Restart) -> None:
    node = await restart()
    await node.queues.create(TO, {"max_depth": 4})
    await node.messages.enqueue(FROM, [Draft(b"%d" % n) for n in range(10)])
    job = await begin(node)
    await until(lambda: job.progress.moved == 4)
    node = await restart()
    [resumed] = node.redrive_jobs.of(FROM, moving=True)
    assert (resumed.id, resumed.progress.moved, await depths(node)) == (job.id, 4, (6, 4))
    assert node.redrive_jobs.of(FROM) == [], "it is no redrive of dead letters"
    await node.queues.update(TO, {"max_depth": 100})
    async with asyncio.timeout(120):
        await resumed.ended.wait()
    assert (resumed.progress.state, resumed.progress.moved, await depths(node)) == (JobState.DONE, 10, (0, 10))
    leased = await node.messages.lease(TO, "g", 10)
    assert sorted(item.message.payload for item in leased) == [b"%d" % n for n in range(10)]
