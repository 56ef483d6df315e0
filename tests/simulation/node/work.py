"""How much work each callback of the loop does: no turn may exceed its bound, for then all others wait for it.

Work is counted, not timed: records that are read and written, and steps of shards. What another thread does is no
work of the loop's, and a store that is opened again is read as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from holdfast.core.effects import DeleteRun, Op
from holdfast.core.runs import RecordRun

TURN_WORK_MAX = 5_000
"""Of one callback, for all callers together: about 20 ms at 4 µs each."""


COLUMNAR = 8
"""Records that are written as columns, in the time of a single one."""


class WorkMeter:
    """See the module. Nothing is counted unless it is `armed`."""

    def __init__(self) -> None:
        self.armed = False
        self.most = 0
        self.exceeded: list[str] = []
        self._units = 0

    def add(self, units: int = 1) -> None:
        if self.armed:
            self._units += units

    def add_ops(self, ops: Sequence[Op]) -> None:
        self.add(sum([_cost(value) for _, _, value in ops]))

    def end_callback(self, callback: object) -> None:
        """What a callback of the loop did is complete."""
        units, self._units = self._units, 0
        self.most = max(self.most, units)
        if units > TURN_WORK_MAX:
            name = getattr(callback, "__qualname__", repr(callback))
            self.exceeded.append(f"{name} did {units} units of work in one callback")

    def elsewhere(self, work: Callable[[], object]) -> None:
        """Do the work of another thread."""
        before = self._units
        work()
        self._units = before


def _cost(value: object) -> int:
    return 1 + (len(value) // COLUMNAR if isinstance(value, (RecordRun, DeleteRun)) else 0)


@contextmanager
def measured_callbacks(meter: WorkMeter) -> Iterator[None]:
    """Have the meter measure every callback."""
    right = asyncio.Handle._run

    def run(handle: asyncio.Handle) -> None:
        right(handle)
        meter.end_callback(handle._callback)  # type: ignore[attr-defined]

    asyncio.Handle._run = run  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        asyncio.Handle._run = right  # type: ignore[method-assign]
