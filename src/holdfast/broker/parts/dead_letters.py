"""Dead letters: redrive them, discard them, and redrive them under an id (audited)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

from holdfast.broker.cell import Cell
from holdfast.core.audits import Audit
from holdfast.core.effects import Op
from holdfast.core.queue import dead_queue_of
from holdfast.engine import audited_redrive
from holdfast.engine.audited_redrive import ALL_RIGHTS, Payloads, RedriveResult, Rights
from holdfast.engine.catalog import QueueName
from holdfast.engine.dead_letters import DeadLetterFilter
from holdfast.engine.redrive import STEP, TO_SOURCE, Destination, Redriven, Require, anywhere, redrive
from holdfast.errors import InvalidArgument, StoreUnavailable

ALL_DEAD_LETTERS = DeadLetterFilter()
STEPS_A_SECOND = 10  # of a redrive with a rate: it proceeds evenly, not in bursts


class DeadLetters:
    """See the module."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def queue_of(self, name: QueueName) -> QueueName | None:
        """The queue that takes the dead letters of a queue, None if they are dropped. It may not exist yet."""
        record = self._cell.engine.queue(name, self._cell.clock()).record
        dead = dead_queue_of(record.name, record.config)
        return (name[0], dead) if dead is not None else None

    def is_used(self, name: QueueName) -> bool:
        """Whether other queues of the namespace have named this one as their dead queue."""
        queues = self._cell.engine.queues.items()
        return any(other[0] == name[0] and queue.config.dlq.queue == name[1] for other, queue in queues)

    async def redrive(
        self,
        name: QueueName,
        which: DeadLetterFilter = ALL_DEAD_LETTERS,
        *,
        to: Destination = TO_SOURCE,
        limit: int = 0,
        rate: float = 0.0,
        dry_run: bool = False,
        discard: bool = False,
        require: Require = anywhere,
        note: Callable[[Redriven], list[Op]] | None = None,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> AsyncGenerator[Redriven, None]:
        """Move dead letters of the dead queue `name` to the destination `to`; with `discard`, delete them. `require`
        raises for queues that the caller may not send to.

        Yields the result of each step, when it is durable. `rate` bounds the dead letters moved in a second. Closing
        the iterator stops it: what was moved stays moved, and another call continues with the rest. `note` returns
        records that are written in the batch of a step. `pause` is called between two steps, with the seconds to sleep.
        """
        if rate < 0 or limit < 0:
            raise InvalidArgument(field="rate and limit", problem="cannot be negative")
        first = self._cell.engine
        step = min(max(int(rate / STEPS_A_SECOND), 1), STEP) if rate else STEP
        work = redrive(
            first,
            name,
            which,
            self._cell.clock,
            to=to,
            step=step,
            limit=limit,
            dry_run=dry_run,
            discard=discard,
            require=require,
        )
        while True:
            if self._cell.engine is not first:
                raise StoreUnavailable(problem="it was opened again while dead letters were being redriven")
            if not dry_run and not discard:
                self._cell.disk_reserve.admit(self._cell.clock())
            with self._cell.guard as engine:
                done = next(work, None)
                if done is not None and note is not None:
                    engine.add(note(done))
            if engine.pending:
                await self._cell.commit.durable()
            if done is None:
                return
            yield done
            await pause(len(done.moved) / rate if rate and not dry_run else 0)

    # --- audited ----------------------------------------------------------------------------------------------------

    async def audited_redrive(
        self,
        name: QueueName,
        audit: str,
        dead_letters: Payloads,
        *,
        to: str = "",
        by: str = "",
        note: str = "",
        source: str = "",
        rights: Rights = ALL_RIGHTS,
    ) -> list[RedriveResult]:
        """Redrive dead letters of the dead queue `name` under an id, each once however often it is requested.

        With `source` those of that queue only; the id is then one of that queue's. A payload that is not None replaces
        that of the dead letter. Returns the result for each dead letter, when it is durable.
        """
        self._cell.disk_reserve.admit(self._cell.clock())
        work = audited_redrive.move(
            self._cell.engine,
            name,
            audit,
            dead_letters,
            to=to,
            by=by,
            note=note,
            clock=self._cell.clock,
            source=source,
            rights=rights,
        )
        return await self._collect_results(work)

    async def undo_redrive(
        self, name: QueueName, audit: str, after: int, limit: int, *, source: str = "", rights: Rights = ALL_RIGHTS
    ) -> list[RedriveResult]:
        """Move redriven messages that were not leased or settled yet back to the dead queue."""
        self._cell.disk_reserve.admit(self._cell.clock())
        return await self._collect_results(
            audited_redrive.undo(
                self._cell.engine, name, audit, after, limit, self._cell.clock, source=source, rights=rights
            )
        )

    async def _collect_results(self, work: Iterator[list[RedriveResult]]) -> list[RedriveResult]:
        found: list[RedriveResult] = []

        def steps() -> Iterator[int]:
            for redrive_results in work:
                found.extend(redrive_results)
                yield len(redrive_results)

        await self._cell.in_steps(steps())
        return found

    async def redriven(
        self, name: QueueName, audit: str, after: int, limit: int, *, source: str = ""
    ) -> list[RedriveResult]:
        """The dead letters that were redriven under an id, and the current status of their messages."""
        with self._cell.guard as engine:
            found = audited_redrive.redrive_results(engine, name, audit, after, limit, self._cell.clock(), source)
        await self._cell.wait_clean()
        return found

    def audits(self, name: QueueName, source: str = "") -> list[Audit]:
        """Audited redrives of a dead queue, newest first."""
        return self._cell.engine.audits.of(name, source)

    def audit(self, name: QueueName, audit: str, source: str = "") -> Audit:
        return self._cell.engine.audits.get(name, audit, source)
