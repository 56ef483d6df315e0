"""Redrives as background jobs, with progress that can be queried and a way to cancel.

engine/redrive.py moves the dead letters. A job takes those that were there when it began; those that die again
meanwhile are left for the next job. Where a destination is full it waits.

A job is two records: its request, written before it begins, and its progress, written in the batch that moves dead
letters. So its counts are exact whenever the server crashes, and the next start resumes it where it was. Records of
jobs that ended stay until newer jobs take their place.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from enum import StrEnum

import msgspec
import structlog
from msgspec.structs import replace

from holdfast import patterns
from holdfast.broker.cell import Cell
from holdfast.broker.parts.dead_letters import DeadLetters
from holdfast.broker.parts.queues import Queues
from holdfast.core.effects import Op
from holdfast.core.ids import due_stamp
from holdfast.core.records import Table
from holdfast.engine.catalog import QueueName
from holdfast.engine.dead_letters import DeadLetterFilter
from holdfast.engine.redrive import TO_SOURCE, Destination, Redriven, Require, anywhere
from holdfast.errors import Forbidden, HoldfastError, LimitExceeded, QueueNotFound, RedriveNotFound
from holdfast.quotas import Quota
from holdfast.units import MILLISECOND

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

KEPT = 100  # finished jobs that can still be queried
PAUSE_SECONDS = 1.0  # before a destination that is full is tried again
REQUESTS, PROGRESS = b"redrive\0", b"redrive-progress\0"  # prefixes of keys in META; a job's id follows


class RedriveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is to do."""

    queue: str  # whose dead letters, for the record
    dead_queue: QueueName
    letters: DeadLetterFilter = DeadLetterFilter()
    to: Destination = TO_SOURCE
    rate: float = 0.0
    limit: int = 0
    dry_run: bool = False
    started_at: int = 0
    before_id: int = 0  # ids of dead letters that came after it had begun are not below this
    allowed: tuple[str, ...] | None = None  # filters of the queues that who began it may send to; None: to all


class JobState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job has come, or how it ended."""

    state: JobState = JobState.RUNNING
    looked_at: int = 0
    moved: int = 0  # in a dry run: what would be
    skipped: int = 0
    problem: str = ""
    ended_at: int = 0

    def after(self, step: Redriven) -> JobProgress:
        """With what a step did."""
        problem = self.problem
        for error in step.refused.values():
            problem = str(error)
        return replace(
            self,
            looked_at=self.looked_at + step.looked,
            moved=self.moved + len(step.moved),
            skipped=self.skipped + step.leased + len(step.refused),
            problem=problem,
        )


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(RedriveRequest).decode
_decode_progress = msgspec.msgpack.Decoder(JobProgress).decode


class _Stopped(Exception):
    """The job was cancelled, or the node is being stopped."""


class RunningRedrive:
    """A redrive under way, or how it ended."""

    def __init__(self, job_id: str, request: RedriveRequest, progress: JobProgress | None = None) -> None:
        self.id = job_id
        self.request = request
        self.progress = progress or JobProgress()
        self.cancelled = False
        self.ended = asyncio.Event()
        self._stop = asyncio.Event()
        if self.progress.state is not JobState.RUNNING:
            self.ended.set()

    @property
    def key(self) -> bytes:
        return self.id.encode()

    def cancel(self) -> None:
        """What it has moved stays moved."""
        self.cancelled = True
        self._stop.set()

    def interrupt(self) -> None:
        """The node is being stopped: the next start resumes the job."""
        self._stop.set()

    def records(self) -> list[Op]:
        """Its records; none for a dry run, which changes nothing and is waited for."""
        if self.request.dry_run:
            return []
        return [(Table.META, REQUESTS + self.key, _encode(self.request)), *self.note(self.progress)]

    def note(self, progress: JobProgress) -> list[Op]:
        return [] if self.request.dry_run else [(Table.META, PROGRESS + self.key, _encode(progress))]

    async def sleep(self, seconds: float) -> None:
        """Sleep; raises as soon as the job is to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return
        raise _Stopped


class RedriveJobs:
    """The jobs of a node, at most `running_max` at a time."""

    def __init__(self, cell: Cell, queues: Queues, dead_letters: DeadLetters, running_max: int) -> None:
        self._cell = cell
        self._queues = queues
        self._dead_letters = dead_letters
        self._running_max = running_max
        self._jobs: dict[str, RunningRedrive] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._made = 0

    def resume(self) -> None:
        """Resume the jobs that the last stop or crash interrupted, and load those that ended."""
        store = self._cell.store
        for key, value in store.scan(Table.META, REQUESTS, REQUESTS[:-1] + b"\1", 1 << 30):
            job_id = key[len(REQUESTS) :]
            progress = store.get(Table.META, PROGRESS + job_id)
            job = RunningRedrive(
                job_id.decode(), _decode_request(value), None if progress is None else _decode_progress(progress)
            )
            self._jobs[job.id] = job
            if not job.ended.is_set():
                log.info("a redrive is resumed", redrive=job.id, queue=job.request.queue, moved=job.progress.moved)
                self._begin(job)

    async def start(self, request: RedriveRequest) -> RunningRedrive:
        """Begin a job. Its request is durable before this returns, so that a restart resumes it."""
        limit = self._running_max
        if sum(1 for job in self._jobs.values() if not job.ended.is_set()) >= limit:
            raise LimitExceeded(
                what="The number of redrives at a time", limit=limit, advice="Wait for one, or cancel it"
            )
        namespace = request.dead_queue[0]
        self._cell.quotas.check(namespace, Quota.REDRIVES, self.running(namespace))
        if request.to.queue:
            self._queues.get((request.dead_queue[0], request.to.queue))  # a misspelt name must not become a queue
        now = self._cell.clock()
        self._made += 1
        request = replace(request, started_at=now, before_id=self._cell.engine.ids.floor)
        job = RunningRedrive(f"{now // 1000}-{self._made}", request)
        self._jobs[job.id] = job
        try:
            if not request.dry_run:
                await self._cell.write_records(job.records() + self._forget())
        except asyncio.CancelledError:
            self._begin(job)  # the caller gave up, and its request is written
            raise
        except Exception:
            del self._jobs[job.id]
            job.ended.set()
            raise
        self._begin(job)
        return job

    def running(self, namespace: str) -> int:
        """How many are under way in a namespace."""
        return sum(
            1 for job in self._jobs.values() if not job.ended.is_set() and job.request.dead_queue[0] == namespace
        )

    def _begin(self, job: RunningRedrive) -> None:
        task = asyncio.create_task(self._run(job))
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.id))

    def _forget(self) -> list[Op]:
        """Forget the oldest jobs that ended, of a namespace that has too many."""
        ended: dict[str, list[RunningRedrive]] = {}
        for known in self._jobs.values():
            if known.ended.is_set():
                ended.setdefault(known.request.dead_queue[0], []).append(known)
        old = [job for jobs in ended.values() for job in jobs[:-KEPT]]
        for job in old:
            del self._jobs[job.id]
        return [(Table.META, kind + job.key, None) for job in old for kind in (REQUESTS, PROGRESS)]

    def of(self, dead_queue: QueueName, source: str = "", *, moving: bool = False) -> list[RunningRedrive]:
        """Jobs on a dead queue, newest first: on all its dead letters, or on those of one queue. `moving`: those that
        move the messages of an ordinary queue."""
        return [job for job in reversed(self._jobs.values()) if _is_on(job, dead_queue, source, moving)]

    def get(self, dead_queue: QueueName, job_id: str, source: str = "", *, moving: bool = False) -> RunningRedrive:
        job = self._jobs.get(job_id)
        if job is None or not _is_on(job, dead_queue, source, moving):
            raise RedriveNotFound(redrive=job_id)
        return job

    async def stop(self) -> None:
        """Interrupt all jobs, each after its current step."""
        for job in self._jobs.values():
            job.interrupt()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _run(self, job: RunningRedrive) -> None:
        try:
            while not await self._run_pass(job):
                await job.sleep(PAUSE_SECONDS)
            await self._end(job, JobState.DONE, job.progress.problem)
        except _Stopped:
            if job.cancelled:
                await self._end(job, JobState.CANCELLED, job.progress.problem)
        except HoldfastError as error:
            await self._end(job, JobState.FAILED, str(error))
        except Exception as error:
            log.exception("a redrive failed", redrive=job.id)
            await self._end(job, JobState.FAILED, repr(error))
        finally:
            job.ended.set()

    async def _end(self, job: RunningRedrive, state: JobState, problem: str) -> None:
        job.progress = replace(job.progress, state=state, problem=problem, ended_at=self._cell.clock())
        try:
            if not job.request.dry_run:
                await self._cell.write_records(job.note(job.progress))
        except HoldfastError as error:
            # The next start resumes it, and finds nothing more to do, or what is left.
            log.warning("the end of a redrive could not be written", redrive=job.id, error=str(error))

    def _stored(self, job: RunningRedrive) -> JobProgress:
        """Its progress as stored: a step whose commit failed may have been written or not."""
        if job.request.dry_run:
            return JobProgress()
        value = self._cell.store.get(Table.META, PROGRESS + job.key)
        return replace(job.progress if value is None else _decode_progress(value), looked_at=0, skipped=0)

    async def _run_pass(self, job: RunningRedrive) -> bool:
        """Go through the dead letters. False: pause, then go through them again."""
        request = job.request
        try:
            job.progress = self._stored(job)
            if 0 < request.limit <= job.progress.moved:
                return True
            before_id = request.before_id or due_stamp(0, request.started_at + MILLISECOND)  # of an earlier version
            work = self._dead_letters.redrive(
                request.dead_queue,
                replace(request.letters, before_id=before_id),
                to=request.to,
                limit=request.limit - job.progress.moved if request.limit else 0,
                rate=request.rate,
                dry_run=request.dry_run,
                require=_require(request.allowed),
                note=lambda step: job.note(job.progress.after(step)),
                pause=job.sleep,
            )
            async with aclosing(work) as steps:
                async for step in steps:
                    job.progress = job.progress.after(step)
                    if any(error.retryable for error in step.refused.values()):
                        return False
        except QueueNotFound as error:
            if error.details.get("queue") != request.dead_queue[1]:
                raise
            return True  # it appears with the first dead letter
        except HoldfastError as error:
            if not error.retryable:
                raise
            job.progress = replace(job.progress, problem=str(error))
            return False
        return True


def _is_on(job: RunningRedrive, dead_queue: QueueName, source: str, moving: bool) -> bool:
    request = job.request
    return request.dead_queue == dead_queue and source in ("", request.queue) and request.to.moving is moving


def _require(allowed: tuple[str, ...] | None) -> Require:
    """Refuses the queues that none of the filters matches."""
    if allowed is None:
        return anywhere
    known = [patterns.parse(one) for one in allowed]

    def require(queue: str) -> None:
        levels = queue.split("/")
        if not any(patterns.matches(pattern, levels) for pattern in known):
            raise Forbidden(action="produce", resource=queue, scope=f"produce:{queue}")

    return require
