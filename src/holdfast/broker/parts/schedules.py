"""Schedules: stored, looked at, paused, run and deleted. The cell's timer acts on their ticks."""

from __future__ import annotations

from holdfast.broker.cell import Cell
from holdfast.broker.submission import Submission
from holdfast.engine.schedules.records import Run, Schedule
from holdfast.engine.schedules.schedules import Scheduled, ScheduleName


class Schedules:
    """See the module."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def get(self, name: ScheduleName) -> Scheduled:
        return self._cell.engine.schedules.get(name)

    def find(self, name: ScheduleName) -> Scheduled | None:
        return self._cell.engine.schedules.find(name)

    def in_namespace(self, namespace: str, prefix: str = "", after: str = "") -> list[Scheduled]:
        """Schedules of a namespace by name."""
        return self._cell.engine.schedules.in_namespace(namespace, prefix, after)

    def count(self) -> int:
        """How many there are; none while the store is away."""
        engine = self._cell.open_engine
        return 0 if engine is None else len(engine.schedules)

    def outcomes(self) -> dict[str, int]:
        """What became of ticks since the store was opened; nothing while it is away."""
        engine = self._cell.open_engine
        return {} if engine is None else {outcome.value: count for outcome, count in engine.schedules.outcomes.items()}

    def runs(self, name: ScheduleName) -> list[Run]:
        """What became of the last ticks, newest first."""
        with self._cell.read_guard as engine:
            return engine.schedules.runs(name)

    def put(self, schedule: Schedule) -> Submission[Scheduled]:
        """Store a schedule, in the place of the one that has its name."""
        cell = self._cell
        with cell.guard as engine:
            found = engine.schedules.put(schedule, cell.clock())
        return cell.submission(found)

    def pause(self, name: ScheduleName, paused: bool) -> Submission[Scheduled]:
        """Pause or resume a schedule."""
        cell = self._cell
        with cell.guard as engine:
            found = engine.schedules.pause(name, paused, cell.clock())
        return cell.submission(found)

    def delete(self, name: ScheduleName) -> Submission[None]:
        """Delete a schedule. Messages that it enqueued stay."""
        cell = self._cell
        with cell.guard as engine:
            engine.schedules.delete(name)
        return cell.submission(None)

    def run(self, name: ScheduleName) -> Submission[Run]:
        """Enqueue a schedule's message now."""
        cell = self._cell
        with cell.guard as engine:
            run = engine.schedules.run(name, cell.clock())
        return cell.submission(run)
