"""Takes the console's samples, every 15 seconds.

A reading costs nothing for queues in which nothing has happened. For those that were active, the counters are compared
with the reading before; for the first 200 of them the histograms too, since these are many numbers.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

import structlog

from holdfast.broker.node import Node
from holdfast.console import samples
from holdfast.console.samples import STEP, SeriesName, Values
from holdfast.engine.stats import Histogram, QueueStats
from holdfast.errors import HoldfastError
from holdfast.units import MINUTE, SECOND

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

TIMED_MAX: Final = 200
"""Active queues of which times are read too: each takes half a millisecond with ten partitions."""

SLICE: Final = 100  # queues, before others have a turn
WRITE_EVERY: Final = 5 * MINUTE
MOST: Final = 0.95  # of all messages


class Sampler:
    """See the module."""

    def __init__(self, node: Node, queues_max: int) -> None:
        self._node = node
        self._path = node.config.node.data_dir / "console" / "samples"
        self.samples = samples.load(self._path, queues_max)
        self._counters: dict[SeriesName, dict[str, int]] = {}
        self._times: dict[SeriesName, dict[str, list[int]]] = {}
        self._read_at = 0
        self._written_at = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._read_at = self._written_at = self._node.clock()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            await self._write()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(STEP / SECOND)
            try:
                await self.take()
                if self._node.clock() - self._written_at >= WRITE_EVERY:
                    await self._write()
            except HoldfastError as error:  # the store has failed, say; the next reading may succeed
                log.debug("no sample was taken", error=str(error))
            except Exception:
                log.exception("no sample was taken")

    async def take(self) -> None:
        """Take a sample of everything."""
        inspection, now = self._node.inspection, self._node.clock()
        seconds = max(now - self._read_at, SECOND) / SECOND
        self._read_at = now
        active = inspection.take_active()
        sums: dict[str, Values] = defaultdict(lambda: dict.fromkeys(samples.FIELDS, 0.0))
        depths = inspection.depths()
        for index, name in enumerate(active):
            if name not in depths:
                continue
            try:
                values = await self._reading(name, seconds, timed=index < TIMED_MAX)
            except HoldfastError:  # it is gone
                continue
            self.samples.add(name, now, values)
            _add(sums[name[0]], values)
            if index % SLICE == SLICE - 1:
                await asyncio.sleep(0)
        for name in self.samples.queues():
            if name not in depths:
                self.samples.drop(name)
                self._counters.pop(name, None)
                self._times.pop(name, None)
            elif name not in active:
                self.samples.add(name, now, {**_IDLE, "depth": depths[name]}, active=False)
        for (namespace, _), depth in depths.items():
            sums[namespace]["depth"] += depth
        for namespace, values in sums.items():
            self.samples.add((namespace, ""), now, values)
        self.samples.taken_at = now

    async def _reading(self, name: SeriesName, seconds: float, *, timed: bool) -> Values:
        """What has happened in a queue since the last reading."""
        inspection = self._node.inspection
        depth, counters = inspection.counters(name)
        values: Values = {"depth": float(depth)}
        if timed:
            stats = await inspection.stats(name)
            counters["dead"] = sum(sum(group.dead.values()) for group in stats.groups)
            values |= self._times_of(name, stats)
        before = self._counters.get(name, {})
        # The first reading of a queue has nothing to compare with: what it counted may have been weeks ago.
        values |= {key: max(count - before.get(key, count), 0) / seconds for key, count in counters.items()}
        self._counters[name] = {**before, **counters}
        return values

    def _times_of(self, name: SeriesName, stats: QueueStats) -> Values:
        """How long messages waited, and took, since the last reading."""
        histograms = {
            "wait": [group.delivery_latency for group in stats.groups],
            "work": [group.processing_latency for group in stats.groups],
        }
        before = self._times.get(name, {})
        found: Values = {}
        self._times[name] = {}
        for field, parts in histograms.items():
            longest = max(parts, key=lambda part: len(part.counts), default=Histogram([], []))
            counts = [
                sum(part.counts[at] for part in parts if at < len(part.counts)) for at in range(len(longest.counts))
            ]
            self._times[name][field] = counts
            if field in before:
                old = before[field]
                new = [max(count - (old[at] if at < len(old) else 0), 0) for at, count in enumerate(counts)]
                if any(new):
                    found[field] = Histogram(longest.bounds_ms, new).quantile_ms(MOST) / 1000
        return found

    async def _write(self) -> None:
        self._written_at = self._node.clock()
        content = samples.encoded(self.samples)
        try:
            await asyncio.to_thread(samples.write, self._path, content)
        except OSError as error:
            log.warning("the console's samples cannot be written", path=str(self._path), error=str(error))


_IDLE: Final[Values] = {"enqueued": 0.0, "acked": 0.0, "failed": 0.0, "dead": 0.0}


def _add(total: Values, values: Values) -> None:
    for field in samples.FIELDS:
        value = values.get(field)
        if value is not None and field != "depth":
            total[field] = max(total[field], value) if field in samples.GREATEST else total[field] + value
