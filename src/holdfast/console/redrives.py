"""Redrives of a cluster at a pace: a few dead letters first (canaries), and the rest only if none of these dies again.

They run while the server does, through the API, with the rights of who began them. What a redrive has moved is in its
audit, and can be undone; what it has not moved when the server stops is a dead letter still, and can be redriven again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

import msgspec
import structlog

from holdfast import wire
from holdfast.console.caller import ApiProblem, Caller, api_call, link, problem_of
from holdfast.console.refusals import PageRefused
from holdfast.errors import HoldfastError
from holdfast.units import SECOND

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

RUNNING_MAX: Final = 10
"""At a time. Each has up to 2,000 ids in memory, and makes a request a second or two."""

KEPT: Final = 50
"""Redrives that are shown after their end."""

PER_MOVE: Final = 1_000
MOVES_A_SECOND: Final = 2
FULL_SECONDS: Final = 60.0
"""How long a queue may be full before the redrive stops."""

LOOK_SECONDS: Final = 0.5
"""Between two looks at the canaries."""

CANARIES, RUNNING, DONE, STOPPED, CANCELLED = "canaries", "running", "done", "stopped", "cancelled"


class Pace(msgspec.Struct, frozen=True):
    """`rate`: dead letters a second, 0: no limit; `wait`: microseconds that canaries may take."""

    rate: float = 0.0
    canaries: int = 0
    wait: int = 60 * SECOND


class PacedRedrive(msgspec.Struct):
    """One redrive and its progress. `id` is that of its audit."""

    id: str
    namespace: str
    queue: str
    """Whose dead letters: as in the address of the page."""
    note: str
    pace: Pace
    total: int
    started_at: int
    state: str = RUNNING
    moved: int = 0
    stayed: int = 0
    """Gone meanwhile, leased by a consumer of the dead queue, or refused by their queue."""
    problem: str = ""

    @property
    def running(self) -> bool:
        return self.state in (CANARIES, RUNNING)


class _Stop(Exception):
    """It goes no further; the text says why."""


class PacedRedrives:
    """See the module."""

    def __init__(self) -> None:
        self._runs: list[PacedRedrive] = []  # the oldest first
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def of(self, namespace: str, queue: str) -> list[PacedRedrive]:
        """Those of a queue's dead letters, newest first."""
        return [run for run in reversed(self._runs) if (run.namespace, run.queue) == (namespace, queue)]

    def begin(self, caller: Caller, run: PacedRedrive, ids: list[str]) -> None:
        """Begin to move these, in this order."""
        if len(self._tasks) >= RUNNING_MAX:
            raise PageRefused(429, "Too many redrives", "Wait until one of those under way has ended, or cancel one.")
        ended = [one for one in self._runs if not one.running]
        for old in ended[: max(len(ended) - KEPT + 1, 0)]:
            self._runs.remove(old)
        self._runs.append(run)
        task = asyncio.get_running_loop().create_task(self._run(caller, run, ids))
        self._tasks[run.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(run.id, None))

    def cancel(self, namespace: str, queue: str, run_id: str) -> bool:
        """Stop one; what it has moved stays moved. False: there is none under way."""
        for run in self.of(namespace, queue):
            if run.id == run_id and run.running:
                run.state = CANCELLED
                self._tasks[run.id].cancel()
                return True
        return False

    async def stop(self) -> None:
        """The server stops."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, caller: Caller, run: PacedRedrive, ids: list[str]) -> None:
        try:
            canaries = ids[: run.pace.canaries]
            if canaries:
                run.state = CANARIES
                await self._move(caller, run, canaries, 0.0)
                await self._watch(caller, run, len(canaries))
                run.state = RUNNING
            await self._move(caller, run, ids[len(canaries) :], run.pace.rate)
            run.state = DONE
        except asyncio.CancelledError:
            run.state = CANCELLED
            raise
        except _Stop as stop:
            run.state, run.problem = STOPPED, str(stop)
        except (HoldfastError, ApiProblem) as error:
            run.state, run.problem = STOPPED, problem_of(error)[2]
        except Exception as error:
            run.state, run.problem = STOPPED, "Something went wrong: the server's log says what."
            log.exception("a redrive of the console failed", redrive=run.id, exc_info=error)

    async def _move(self, caller: Caller, run: PacedRedrive, ids: list[str], rate: float) -> None:
        size = min(max(int(rate / MOVES_A_SECOND), 1), PER_MOVE) if rate else PER_MOVE
        left, full_for = list(ids), 0.0
        while left:
            batch, left = left[:size], left[size:]
            if not caller.console.gate.valid(caller.principal):
                raise _Stop("The credential of who began it does not hold any more.")
            move = wire.AuditedMove(
                dead_letters=[wire.AuditedDeadLetter(id=one) for one in batch],
                note=run.note,
            )
            raw = await self._call(caller, "POST", self._audit(run), move)
            outcomes = msgspec.json.decode(raw, type=wire.RedriveOutcomes).dead_letters
            later = [one.dead_letter for one in outcomes if one.retryable]
            moved = sum(one.outcome in ("moved", "repeated") for one in outcomes)
            run.moved += moved
            run.stayed += len(outcomes) - moved - len(later)
            run.problem = next((one.problem for one in outcomes if one.problem), run.problem)
            if later:  # their queue is full
                left = later + left
                full_for += 1.0
                if full_for > FULL_SECONDS:
                    raise _Stop(run.problem)
                await asyncio.sleep(1.0)
            else:
                full_for = 0.0
                await asyncio.sleep(moved / rate if rate and left else 0)

    async def _watch(self, caller: Caller, run: PacedRedrive, count: int) -> None:
        """Until the canaries are done. Raises if one has died again, or if they take too long."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + run.pace.wait / SECOND
        while True:
            raw = await self._call(caller, "GET", self._audit(run, "dead-letters"))
            found = Counter(one.outcome for one in msgspec.json.decode(raw, type=wire.RedriveOutcomes).dead_letters)
            if found["dead"]:
                raise _Stop(f"{found['dead']} of {count} canaries died again. The rest stays where it is.")
            waiting = sum(found[outcome] for outcome in ("waiting", "leased", "partly"))
            if not waiting:
                return
            if loop.time() >= ends:
                raise _Stop(f"{waiting} of {count} canaries are not done in time. The rest stays where it is.")
            await asyncio.sleep(LOOK_SECONDS)

    def _audit(self, run: PacedRedrive, *rest: str) -> str:
        return link("api", "v1", "queues", run.queue, "dlq", "audits", run.id, *rest)

    async def _call(self, caller: Caller, method: str, target: str, body: object = None) -> bytes:
        return await api_call(caller.request.api, caller.principal, method, target, body, peer=caller.request.peer)
