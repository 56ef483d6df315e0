"""Redrives as jobs: progress, waiting, cancelling."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from holdfast.broker import cell
from holdfast.broker.node import Node
from holdfast.broker.parts import redrive_jobs
from holdfast.broker.parts.redrive_jobs import REQUESTS, JobState, RedriveRequest, RunningRedrive
from holdfast.core.commands import Draft, Settlement, Verb
from holdfast.core.records import Table
from holdfast.engine import redrive
from holdfast.engine.dead_letters import DeadLetterFilter
from holdfast.engine.redrive import Destination
from holdfast.errors import LimitExceeded, QueueNotFound, RedriveNotFound, StoreUnavailable
from holdfast.store import open_store
from holdfast.store.faulty import Fault, FaultyStore
from tests.broker.conftest import Restart, config_for
from tests.waiting import until

JOBS = ("default", "jobs")
DEAD = ("default", "dlq/jobs")


async def die(node: Node, count: int, error: str = "no good") -> list[int]:
    """Messages that were rejected; their ids."""
    receipt = await node.messages.enqueue(JOBS, [Draft(b"%d" % n) for n in range(count)])
    leased = await node.messages.lease(JOBS, "g", count)
    await node.messages.settle(
        JOBS, "g", [Settlement(item.message.id, item.token, Verb.REJECT, error=error) for item in leased]
    )
    return receipt.ids


def told(job: RunningRedrive) -> tuple[JobState, int, int, int]:
    progress = job.progress
    return progress.state, progress.looked_at, progress.moved, progress.skipped


async def run(node: Node, **request: object) -> RunningRedrive:
    job = await node.redrive_jobs.start(RedriveRequest(queue="jobs", dead_queue=DEAD, **request))  # type: ignore[arg-type]
    await job.ended.wait()
    return job


async def test_all_dead_letters_go_back_and_name_their_source(node: Node) -> None:
    sources = await die(node, 250)
    job = await run(node)
    assert told(job) == (JobState.DONE, 250, 250, 0)
    back = await node.messages.lease(JOBS, "g", 250)
    assert {item.message.extra.origin.source_id for item in back if item.message.extra.origin} == set(sources)


async def test_a_dry_run_counts_and_changes_nothing(node: Node) -> None:
    await die(node, 5, "timeout talking to db")
    await die(node, 3, "no such user")
    job = await run(node, letters=DeadLetterFilter(error="timeout"), dry_run=True)
    assert (job.progress.looked_at, job.progress.moved) == (8, 5)
    assert (await node.inspection.stats(DEAD)).depth == 8


async def test_dead_letters_go_elsewhere_only_to_a_queue_that_exists(node: Node) -> None:
    await die(node, 1)
    with pytest.raises(QueueNotFound):
        await run(node, to=Destination(queue="aside"))
    await node.queues.create(("default", "aside"))
    assert (await run(node, to=Destination(queue="aside"))).progress.moved == 1
    assert (await node.inspection.stats(("default", "aside"))).depth == 1


async def test_a_queue_of_which_nothing_has_died_has_nothing_to_redrive(node: Node) -> None:
    job = await run(node)
    assert (job.progress.state, job.progress.moved) == (JobState.DONE, 0)


async def test_a_full_destination_is_waited_for(node: Node) -> None:
    await die(node, 3)
    await node.queues.update(JOBS, {"max_depth": 1})
    job = await node.redrive_jobs.start(RedriveRequest(queue="jobs", dead_queue=DEAD))
    while not job.progress.problem:
        await node.inspection.stats(JOBS)
        await asyncio.sleep(0)
    assert (job.progress.state, job.progress.moved) == (JobState.RUNNING, 1)
    await node.queues.update(JOBS, {"max_depth": 10})
    await job.ended.wait()
    assert (job.progress.state, job.progress.moved, job.progress.skipped) == (JobState.DONE, 3, 0)


async def test_a_job_that_waits_can_be_cancelled_and_what_it_moved_stays_moved(node: Node) -> None:
    await die(node, 3)
    await node.queues.update(JOBS, {"max_depth": 1})
    job = await node.redrive_jobs.start(RedriveRequest(queue="jobs", dead_queue=DEAD))
    while not job.progress.problem:
        await node.inspection.stats(JOBS)
        await asyncio.sleep(0)
    job.cancel()
    await job.ended.wait()
    assert (job.progress.state, job.progress.moved) == (JobState.CANCELLED, 1)
    assert (await node.inspection.stats(DEAD)).depth == 2


async def test_dead_letters_that_die_again_are_not_part_of_the_same_redrive(node: Node) -> None:
    await die(node, 1)
    job = await node.redrive_jobs.start(RedriveRequest(queue="jobs", dead_queue=DEAD))
    [again] = await node.messages.lease(JOBS, "g", 1, wait=30_000_000)
    await node.messages.settle(JOBS, "g", [Settlement(again.message.id, again.token, Verb.REJECT)])
    await job.ended.wait()
    assert job.progress.moved == 1
    assert (await node.inspection.stats(DEAD)).depth == 1


async def test_a_clock_that_was_set_back_leaves_no_dead_letter_out(node: Node) -> None:
    await die(node, 3)
    now = node.clock()
    node.cell.clock = lambda: now - 3_600_000_000
    assert told(await run(node)) == (JobState.DONE, 3, 3, 0)


async def test_a_job_of_an_earlier_version_takes_what_had_died_when_it_began(restart: Restart) -> None:
    node = await restart()
    await node.queues.create(JOBS, {"max_depth": 2})
    await die(node, 2)
    await node.messages.enqueue(JOBS, [Draft(b"in the way")] * 2)
    job = await node.redrive_jobs.start(RedriveRequest(queue="jobs", dead_queue=DEAD))
    stored = node.cell.store.get(Table.META, REQUESTS + job.key)
    assert stored is not None
    fields = msgspec.msgpack.decode(stored)
    del fields["before_id"]
    await node.cell.write_records([(Table.META, REQUESTS + job.key, msgspec.msgpack.encode(fields))])
    node = await restart()
    while node.clock() // 1000 <= fields["started_at"] // 1000:  # noqa: ASYNC110 - those of its millisecond count
        await asyncio.sleep(0)
    leased = await node.messages.lease(JOBS, "g", 2)
    await node.messages.settle(JOBS, "g", [Settlement(one.message.id, one.token, Verb.REJECT) for one in leased])
    job = node.redrive_jobs.get(DEAD, job.id)
    await job.ended.wait()
    assert (job.progress.state, job.progress.moved) == (JobState.DONE, 2)
    assert (await node.inspection.stats(DEAD)).depth == 2


async def test_only_so_many_redrives_run_at_a_time_and_ended_ones_can_be_asked_for(node: Node) -> None:
    await die(node, 2)
    await node.queues.update(JOBS, {"max_depth": 1})
    limit = node.config.limits.max_redrives
    await node.quotas.change(JOBS[0], {"redrives": 0})  # a namespace alone may not have all
    jobs = [await node.redrive_jobs.start(RedriveRequest(queue="jobs", dead_queue=DEAD)) for _ in range(limit)]
    with pytest.raises(LimitExceeded):
        await node.redrive_jobs.start(RedriveRequest(queue="jobs", dead_queue=DEAD))
    for job in jobs:
        job.cancel()
        await job.ended.wait()
    assert node.redrive_jobs.of(DEAD) == jobs[::-1]
    assert node.redrive_jobs.get(DEAD, jobs[0].id) is jobs[0]
    with pytest.raises(RedriveNotFound):
        node.redrive_jobs.get(JOBS, jobs[0].id)


async def test_a_stop_interrupts_a_job_and_the_next_start_goes_on_with_it(restart: Restart) -> None:
    node = await restart()
    await die(node, 5)
    await node.queues.update(JOBS, {"max_depth": 2})
    job = await node.redrive_jobs.start(RedriveRequest(queue="jobs", dead_queue=DEAD, limit=4))
    while not job.progress.problem:
        await node.inspection.stats(JOBS)
        await asyncio.sleep(0)
    ended = await run(node, letters=DeadLetterFilter(error="something else"))
    node = await restart()
    [known, again] = node.redrive_jobs.of(DEAD)
    assert (known.id, told(known)) == (ended.id, told(ended))
    assert (again.id, again.request, again.progress.moved) == (job.id, job.request, 2)
    assert again.progress.state is JobState.RUNNING
    await node.queues.update(JOBS, {"max_depth": 10})
    await again.ended.wait()
    assert (again.progress.state, again.progress.moved) == (JobState.DONE, 4)
    assert (await node.inspection.stats(DEAD)).depth == 1
    node = await restart()
    assert node.redrive_jobs.get(DEAD, job.id).progress == again.progress


async def test_a_job_keeps_the_rights_of_who_began_it_over_a_restart(restart: Restart) -> None:
    node = await restart()
    await die(node, 2)
    job = await node.redrive_jobs.start(
        RedriveRequest(queue="dlq/jobs", dead_queue=DEAD, allowed=("bills/#",), rate=0.1, started_at=1)
    )
    node = await restart()
    resumed = node.redrive_jobs.get(DEAD, job.id)
    await resumed.ended.wait()
    assert told(resumed) == (JobState.DONE, 2, 0, 2)
    assert "produce:jobs" in resumed.progress.problem
    assert (await run(node, allowed=("+",))).progress.moved == 2


async def test_jobs_that_ended_make_no_room_for_those_of_another_namespace(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrive_jobs, "KEPT", 1)
    elsewhere = ("acme", "dlq/jobs")
    theirs = await node.redrive_jobs.start(RedriveRequest(queue="jobs", dead_queue=elsewhere))
    await theirs.ended.wait()
    jobs = [await run(node) for _ in range(4)]
    assert node.redrive_jobs.of(elsewhere) == [theirs]
    assert node.redrive_jobs.of(DEAD, "jobs")[0] is jobs[-1]
    assert node.redrive_jobs.of(DEAD, "bills") == []


async def test_a_job_that_was_cancelled_is_not_taken_up(restart: Restart) -> None:
    node = await restart()
    await die(node, 3)
    job = await node.redrive_jobs.start(RedriveRequest(queue="jobs", dead_queue=DEAD, rate=0.1))
    job.cancel()
    await job.ended.wait()
    node = await restart()
    assert node.redrive_jobs.get(DEAD, job.id).progress == job.progress
    assert (await node.inspection.stats(DEAD)).depth == 3 - job.progress.moved


@pytest.mark.parametrize("after", [False, True])
async def test_a_store_that_fails_in_the_middle_is_waited_for_and_nothing_is_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    monkeypatch.setattr(cell, "RECOVERY_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(redrive_jobs, "PAUSE_SECONDS", 0.0)
    faults: list[Fault] = []
    store = FaultyStore(open_store("memory", tmp_path), write=lambda: faults.pop() if faults else None)
    node = Node(config_for(tmp_path), store)
    await node.start()
    await die(node, 600)
    job = await node.redrive_jobs.start(RedriveRequest(queue="jobs", dead_queue=DEAD, rate=1000.0))
    while not job.progress.moved:
        await asyncio.gather(node.inspection.stats(DEAD), asyncio.sleep(0))
    faults.append(Fault(StoreUnavailable(problem="simulated"), after=after))
    await job.ended.wait()
    assert not faults
    assert (job.progress.state, job.progress.moved) == (JobState.DONE, 600)
    assert ((await node.inspection.stats(DEAD)).depth, (await node.inspection.stats(JOBS)).depth) == (0, 600)
    await node.stop()


@pytest.mark.parametrize("after", [False, True], ids=["lost", "written"])
@pytest.mark.parametrize("write", range(4))
async def test_a_limit_holds_over_two_targets_and_a_fault_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: int, after: bool
) -> None:
    """Whichever write fails: what one pass has moved is not moved again by the next, nor is more than the limit."""
    monkeypatch.setattr(cell, "RECOVERY_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(redrive_jobs, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(redrive, "STEP", 5)
    faults: list[Fault | None] = []
    store = FaultyStore(open_store("memory", tmp_path), write=lambda: faults.pop() if faults else None)
    node = Node(config_for(tmp_path), store)
    await node.start()
    dead, sources = ("default", "dead"), (JOBS, ("default", "mails"))
    await node.queues.create(dead, {"dlq.enabled": False})
    for source in sources:
        await node.queues.create(source, {"dlq.queue": "dead"})
    for _ in range(10):
        for source in sources:
            await node.messages.enqueue(source, [Draft(b"m")])
            [leased] = await node.messages.lease(source, "g", 1)
            await node.messages.settle(source, "g", [Settlement(leased.message.id, leased.token, Verb.REJECT)])
    job = await node.redrive_jobs.start(RedriveRequest(queue="jobs", dead_queue=dead, limit=12))
    faults += [Fault(StoreUnavailable(problem="simulated"), after=after), *[None] * write]
    await job.ended.wait()
    await until(lambda: node.cell.refusal is None)  # the last write may have failed
    depths = [(await node.inspection.stats(source)).depth for source in sources]
    assert (job.progress.state, job.progress.moved, sum(depths)) == (JobState.DONE, 12, 12)
    assert (await node.inspection.stats(dead)).depth == 8
    assert min(depths) > 0, "both are targets"
    assert not faults
    await node.stop()


async def test_old_jobs_are_forgotten(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive_jobs, "KEPT", 2)
    jobs = [await run(node) for _ in range(4)]
    assert node.redrive_jobs.of(DEAD) == jobs[:0:-1]
    kept = node.cell.engine.store.scan(Table.META, b"redrive", b"redrivf", 100)
    assert len(kept) == 6
