"""Samples the counters of queues, a second after something happened in them: rates are computed from that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.engine.catalog import QueueName
from holdfast.engine.engine import Engine

SAMPLE_SECONDS = 1.0
SAMPLED_MAX = 200  # queues at a time, which takes a few milliseconds; then others have their turn


class RateSampler:
    """See the module. The samples come after the work, so that none of it is missed when the queue is idle next."""

    def __init__(self, engine: Callable[[], Engine | None], clock: Callable[[], int]) -> None:
        self._engine = engine
        self._clock = clock
        self._due: dict[QueueName, None] = {}
        self.active: dict[QueueName, None] | None = None  # queues sampled since somebody took this; None: nobody has
        self._timer: asyncio.TimerHandle | None = None

    def changed(self, names: dict[QueueName, None]) -> None:
        """Something may have happened in these queues."""
        self._due.update(names)
        if self._due and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SAMPLE_SECONDS, self._sample)

    def _sample(self) -> None:
        engine, now = self._engine(), self._clock()
        names = list(self._due)
        for name in names[:SAMPLED_MAX]:
            del self._due[name]
            queue = engine.queues.get(name) if engine is not None else None
            if queue is not None:
                queue.sample_rates(now)
                if self.active is not None:
                    self.active[name] = None
        self._timer = asyncio.get_running_loop().call_later(0, self._sample) if self._due else None

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._due.clear()
