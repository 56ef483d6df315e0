"""Redrives as jobs: begun and left to themselves, with progress to ask for, and to be cancelled.

The moving itself is redrive.py's. A job takes the letters that were there when it began; those that die again meanwhile
are left for the next one. Where a destination is full it waits. Jobs live in memory: one that a restart interrupts is
begun again by asking again, and goes on with the letters that are left.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import structlog
from msgspec.structs import replace

from holdfast.broker.catalog import QueueName
from holdfast.broker.redrive import Letters
from holdfast.errors import HoldfastError, LimitExceeded, QueueNotFound, RedriveNotFound

if TYPE_CHECKING:
    from holdfast.broker.node import Node

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

KEPT = 100  # finished jobs that can still be asked for
PAUSE_SECONDS = 1.0  # before a destination that is full is tried again


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is to do."""

    queue: str  # whose dead letters, for the record
    dead_queue: QueueName
    letters: Letters = Letters()
    to: str = ""  # empty: each to where it came from
    rate: float = 0.0
    limit: int = 0
    dry_run: bool = False


class JobState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class _Cancelled(Exception):
    """Somebody cancelled the job."""


class Job:
    """A redrive under way, or how it ended."""

    def __init__(self, job_id: str, wish: Wish, started_at: int) -> None:
        self.id = job_id
        self.wish = wish
        self.started_at = started_at
        self.ended_at = 0
        self.state = JobState.RUNNING
        self.looked_at = 0
        self.moved = 0  # in a dry run: what would be
        self.skipped = 0
        self.problem = ""
        self.ended = asyncio.Event()
        self._stop = asyncio.Event()

    def cancel(self) -> None:
        """What it has moved stays moved."""
        self._stop.set()

    async def rest(self, seconds: float) -> None:
        """Sleep. Ends at once, with an error, when the job is cancelled."""
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return
        raise _Cancelled


class Redrives:
    """The jobs of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._made = 0

    def start(self, wish: Wish) -> Job:
        """Begin a job."""
        limit = self._node.config.limits.max_redrives
        if len(self._tasks) >= limit:
            raise LimitExceeded(
                what="The number of redrives at a time", limit=limit, advice="Wait for one, or cancel it"
            )
        if wish.to:
            self._node.queue((wish.dead_queue[0], wish.to))  # a name that is misspelt must not become a queue
        now = self._node.clock()
        self._made += 1
        job = Job(f"{now // 1000}-{self._made}", wish, now)
        self._jobs[job.id] = job
        task = asyncio.create_task(self._run(job))
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.id))
        for old in [known.id for known in self._jobs.values() if known.ended.is_set()][:-KEPT]:
            del self._jobs[old]
        return job

    def of(self, dead_queue: QueueName) -> list[Job]:
        """Jobs on a dead queue, newest first."""
        return [job for job in reversed(self._jobs.values()) if job.wish.dead_queue == dead_queue]

    def get(self, dead_queue: QueueName, job_id: str) -> Job:
        job = self._jobs.get(job_id)
        if job is None or job.wish.dead_queue != dead_queue:
            raise RedriveNotFound(redrive=job_id)
        return job

    async def stop(self) -> None:
        """End all jobs, each after the step it is at."""
        for job in self._jobs.values():
            job.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _run(self, job: Job) -> None:
        try:
            while not await self._pass(job):
                await job.rest(PAUSE_SECONDS)
            job.state = JobState.DONE
        except _Cancelled:
            job.state = JobState.CANCELLED
        except HoldfastError as error:
            job.state = JobState.FAILED
            job.problem = str(error)
        except Exception as error:
            log.exception("a redrive failed", redrive=job.id)
            job.state = JobState.FAILED
            job.problem = repr(error)
        finally:
            job.ended_at = self._node.clock()
            job.ended.set()

    async def _pass(self, job: Job) -> bool:
        """Go through the letters. False: something must be waited for, and then gone through again."""
        wish = job.wish
        before = min(wish.letters.before or job.started_at + 1, job.started_at + 1)
        work = self._node.redrive(
            wish.dead_queue,
            replace(wish.letters, before=before),
            target=wish.to,
            limit=wish.limit - job.moved if wish.limit else 0,
            rate=wish.rate,
            dry_run=wish.dry_run,
            pause=job.rest,
        )
        job.looked_at = job.skipped = 0
        try:
            async with aclosing(work) as steps:
                async for step in steps:
                    job.looked_at += step.looked
                    job.moved += len(step.moved)
                    job.skipped += step.leased + len(step.refused)
                    for error in step.refused.values():
                        job.problem = str(error)
                        if error.retryable:
                            return False
        except QueueNotFound as error:
            if error.details.get("queue") != wish.dead_queue[1]:
                raise
            return True  # it appears with the first dead letter
        except HoldfastError as error:
            if not error.retryable:
                raise
            job.problem = str(error)
            return False
        return True
