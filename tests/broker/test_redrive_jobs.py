"""Redrives as jobs: progress, waiting, cancelling."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.broker.node import Node
from holdfast.broker.redrive import Letters
from holdfast.broker.redrive_jobs import Job, JobState, Wish
from holdfast.core.commands import Draft, Settlement, Verb
from holdfast.errors import LimitExceeded, QueueNotFound, RedriveNotFound

JOBS = ("default", "jobs")
DEAD = ("default", "dlq/jobs")


async def die(node: Node, count: int, error: str = "no good") -> list[int]:
    """Messages that were rejected; their ids."""
    receipt = await node.enqueue(JOBS, [Draft(b"%d" % n) for n in range(count)])
    leased = await node.lease(JOBS, "g", count)
    await node.settle(JOBS, "g", [Settlement(item.message.id, item.token, Verb.REJECT, error=error) for item in leased])
    return receipt.ids


async def run(node: Node, **wish: object) -> Job:
    job = node.redrives.start(Wish(queue="jobs", dead_queue=DEAD, **wish))  # type: ignore[arg-type]
    await job.ended.wait()
    return job


async def test_all_dead_letters_go_back_and_name_their_source(node: Node) -> None:
    sources = await die(node, 250)
    job = await run(node)
    assert (job.state, job.looked_at, job.moved, job.skipped) == (JobState.DONE, 250, 250, 0)
    back = await node.lease(JOBS, "g", 250)
    assert {item.message.extra.origin.source_id for item in back if item.message.extra.origin} == set(sources)


async def test_a_dry_run_counts_and_changes_nothing(node: Node) -> None:
    await die(node, 5, "timeout talking to db")
    await die(node, 3, "no such user")
    job = await run(node, letters=Letters(error="timeout"), dry_run=True)
    assert (job.looked_at, job.moved) == (8, 5)
    assert (await node.stats(DEAD)).depth == 8


async def test_letters_go_elsewhere_only_to_a_queue_that_exists(node: Node) -> None:
    await die(node, 1)
    with pytest.raises(QueueNotFound):
        await run(node, to="aside")
    await node.create_queue(("default", "aside"))
    assert (await run(node, to="aside")).moved == 1
    assert (await node.stats(("default", "aside"))).depth == 1


async def test_a_queue_of_which_nothing_has_died_has_nothing_to_redrive(node: Node) -> None:
    job = await run(node)
    assert (job.state, job.moved) == (JobState.DONE, 0)


async def test_a_full_destination_is_waited_for(node: Node) -> None:
    await die(node, 3)
    await node.update_queue(JOBS, {"max_depth": 1})
    job = node.redrives.start(Wish(queue="jobs", dead_queue=DEAD))
    while not job.problem:
        await node.stats(JOBS)
        await asyncio.sleep(0)
    assert (job.state, job.moved) == (JobState.RUNNING, 1)
    await node.update_queue(JOBS, {"max_depth": 10})
    await job.ended.wait()
    assert (job.state, job.moved, job.skipped) == (JobState.DONE, 3, 0)


async def test_a_job_that_waits_can_be_cancelled_and_what_it_moved_stays_moved(node: Node) -> None:
    await die(node, 3)
    await node.update_queue(JOBS, {"max_depth": 1})
    job = node.redrives.start(Wish(queue="jobs", dead_queue=DEAD))
    while not job.problem:
        await node.stats(JOBS)
        await asyncio.sleep(0)
    job.cancel()
    await job.ended.wait()
    assert (job.state, job.moved) == (JobState.CANCELLED, 1)
    assert (await node.stats(DEAD)).depth == 2


async def test_letters_that_die_again_are_not_part_of_the_same_redrive(node: Node) -> None:
    await die(node, 1)
    job = node.redrives.start(Wish(queue="jobs", dead_queue=DEAD))
    [again] = await node.lease(JOBS, "g", 1, wait=30_000_000)
    await node.settle(JOBS, "g", [Settlement(again.message.id, again.token, Verb.REJECT)])
    await job.ended.wait()
    assert job.moved == 1
    assert (await node.stats(DEAD)).depth == 1


async def test_only_so_many_redrives_run_at_a_time_and_ended_ones_can_be_asked_for(node: Node) -> None:
    await die(node, 2)
    await node.update_queue(JOBS, {"max_depth": 1})
    limit = node.config.limits.max_redrives
    jobs = [node.redrives.start(Wish(queue="jobs", dead_queue=DEAD)) for _ in range(limit)]
    with pytest.raises(LimitExceeded):
        node.redrives.start(Wish(queue="jobs", dead_queue=DEAD))
    for job in jobs:
        job.cancel()
        await job.ended.wait()
    assert node.redrives.of(DEAD) == jobs[::-1]
    assert node.redrives.get(DEAD, jobs[0].id) is jobs[0]
    with pytest.raises(RedriveNotFound):
        node.redrives.get(JOBS, jobs[0].id)


async def test_a_stopped_node_ends_its_redrives(node: Node) -> None:
    await die(node, 5)
    job = node.redrives.start(Wish(queue="jobs", dead_queue=DEAD, rate=0.5))
    await node.redrives.stop()
    assert job.state is JobState.CANCELLED
