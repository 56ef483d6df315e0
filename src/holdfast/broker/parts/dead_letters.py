"""Dead letters: calls of a node that bring them back or throw them away."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

from holdfast.broker.parts.part import Calls
from holdfast.core.audits import Audit
from holdfast.core.effects import Op
from holdfast.core.queue import dead_queue_of
from holdfast.engine import audited_redrive
from holdfast.engine.audited_redrive import Demand, LetterFate, Payloads
from holdfast.engine.catalog import QueueName
from holdfast.engine.dead_letters import Letters
from holdfast.engine.redrive import HOME, STEP, Destination, Redriven, redrive
from holdfast.errors import InvalidArgument, StoreUnavailable

ALL_LETTERS = Letters()
STEPS_A_SECOND = 10  # of a redrive with a rate: it goes evenly, not in bursts


class DeadLetterCalls(Calls):
    """See the module."""

    @abstractmethod
    def _check_room(self, now: int) -> None:
        """Refuse if the disk is nearly full."""

    async def redrive(
        self,
        name: QueueName,
        which: Letters = ALL_LETTERS,
        *,
        to: Destination = HOME,
        limit: int = 0,
        rate: float = 0.0,
        dry_run: bool = False,
        discard: bool = False,
        note: Callable[[Redriven], list[Op]] | None = None,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> AsyncGenerator[Redriven, None]:
        """Move dead letters of the dead queue `name` to where `to` says; with `discard`, away.

        Yields what each step did, when it is durable. `rate` bounds the letters moved in a second. Closing the
        iterator stops it: what was moved stays moved, and another call goes on with the rest. `note` gives records that
        become durable together with what a step did. `pause` is called between two steps, with how long it should last.
        """
        if rate < 0 or limit < 0:
            raise InvalidArgument(field="rate and limit", problem="cannot be negative")
        first = self.engine
        step = min(max(int(rate / STEPS_A_SECOND), 1), STEP) if rate else STEP
        work = redrive(first, name, which, self.clock, to=to, step=step, limit=limit, dry_run=dry_run, discard=discard)
        while True:
            with self._guard() as engine:
                if engine is not first:
                    raise StoreUnavailable(problem="it was opened anew while letters were being redriven")
                if not dry_run and not discard:
                    self._check_room(self.clock())
                done = next(work, None)
                if done is not None and note is not None:
                    engine.add(note(done))
            if engine.pending:
                await self._durable()
            if done is None:
                return
            yield done
            await pause(len(done.moved) / rate if rate and not dry_run else 0)

    # --- under an id ------------------------------------------------------------------------------------------------

    async def audited_redrive(
        self,
        name: QueueName,
        audit: str,
        letters: Payloads,
        *,
        to: str = "",
        by: str = "",
        note: str = "",
        demand: Demand = lambda _queue: None,
    ) -> list[LetterFate]:
        """Bring letters of the dead queue `name` back under an id, each once however often it is asked for.

        A payload that is not None replaces the letter's own; `demand` is asked whether the caller may send such to a
        queue. What became of each letter is answered when it is durable.
        """
        self._check_room(self.clock())
        work = audited_redrive.move(
            self.engine, name, audit, letters, to=to, by=by, note=note, demand=demand, now=self.clock()
        )
        return await self._fates(work)

    async def undo_redrive(self, name: QueueName, audit: str, after: int, limit: int) -> list[LetterFate]:
        """Make dead letters again of messages that were brought back and that nobody has begun with or settled."""
        self._check_room(self.clock())
        return await self._fates(audited_redrive.undo(self.engine, name, audit, after, limit, self.clock()))

    async def _fates(self, work: Iterator[list[LetterFate]]) -> list[LetterFate]:
        found: list[LetterFate] = []

        def steps() -> Iterator[int]:
            for fates in work:
                found.extend(fates)
                yield len(fates)

        await self._in_pieces(steps())
        return found

    async def redriven(self, name: QueueName, audit: str, after: int, limit: int) -> list[LetterFate]:
        """The letters that were brought back under an id, and how their messages stand now."""
        with self._guard() as engine:
            found = audited_redrive.fates(engine, name, audit, after, limit, self.clock())
        await self._shown()
        return found

    def audits(self, name: QueueName) -> list[Audit]:
        """Redrives under an id of a dead queue, newest first."""
        return self.engine.audits.of(name)

    def audit(self, name: QueueName, audit: str) -> Audit:
        return self.engine.audits.get(name, audit)

    async def keep(self, ops: list[Op]) -> None:
        """Make records durable that a part of the broker has beside the queues'."""
        with self._guard() as engine:
            engine.add(ops)
        await self._durable()

    def dead_queue(self, name: QueueName) -> QueueName | None:
        """The queue that takes the dead letters of a queue, None if they are dropped. It may not be there yet."""
        record = self.engine.queue(name, self.clock()).record
        dead = dead_queue_of(record.name, record.config)
        return (name[0], dead) if dead is not None else None
