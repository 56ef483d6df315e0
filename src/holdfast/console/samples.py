"""Rates and depths of the last hour, day and week: rings of fixed size, for plots.

A `Series` is one queue, or a namespace as a whole. It has three rings of 240 samples each: one sample is 15 seconds,
6 minutes and 42 minutes. A sample of the longer two is the mean of what fell into it, of times the greatest. Where the
server did not run, a ring has gaps (NaN).

All of it is written to a file now and then and when the server stops, and read when it starts: a crash loses the last
minutes of plots. A file that cannot be read is left aside.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from holdfast.files import make_directory
from holdfast.units import MINUTE, SECOND

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

FIELDS: Final = ("depth", "enqueued", "acked", "failed", "dead", "wait", "work")
"""Messages in the queue; enqueued, acked, failed and dead-lettered by the second; and in seconds how long most messages
(95 of 100) waited for their first lease, and took from lease to ack."""

GREATEST: Final = frozenset(("wait", "work"))
LENGTH: Final = 240
STEP: Final = 15 * SECOND
RANGES: Final = {"1h": STEP, "24h": 6 * MINUTE, "7d": 42 * MINUTE}
"""By the name of a range, the duration of one of its samples."""

FORMAT: Final = 1
NAN: Final = math.nan

SeriesName = tuple[str, str]
"""Namespace and queue; the queue is empty for the namespace as a whole."""

Values = dict[str, float]


class Ring(msgspec.Struct):
    """The samples of one range; `slot` is the number of the last one, counted from 1970."""

    step: int
    slot: int = 0
    count: int = 0  # readings in the last sample
    columns: dict[str, array[float]] = msgspec.field(
        default_factory=lambda: {field: array("f", [NAN]) * LENGTH for field in FIELDS}
    )

    def add(self, now: int, values: Values) -> None:
        """Take a reading into the sample of this moment. A clock that was set back adds to the last one."""
        slot = max(now // self.step, self.slot)
        gap = min(slot - self.slot, LENGTH)
        if gap:
            self.count = 0
        for field, column in self.columns.items():
            if gap:
                del column[:gap]
                column.extend([NAN] * gap)
            last, value = column[-1], values.get(field, NAN)
            if self.count == 0 or math.isnan(last):
                column[-1] = value
            elif field in GREATEST:
                column[-1] = last if math.isnan(value) else max(last, value)
            elif not math.isnan(value):
                column[-1] = last + (value - last) / (self.count + 1)
        self.slot, self.count = slot, self.count + 1

    def at(self, now: int) -> dict[str, list[float]]:
        """The samples up to this moment, by field."""
        gap = min(max(now // self.step - self.slot, 0), LENGTH)
        return {field: [*column[gap:], *[NAN] * gap] for field, column in self.columns.items()}

    def times(self, now: int) -> list[int]:
        """When each began, in seconds since 1970."""
        last = max(now // self.step, self.slot)
        return [(last - LENGTH + 1 + index) * self.step // SECOND for index in range(LENGTH)]


class Series:
    """See the module."""

    __slots__ = ("active_at", "rings")

    def __init__(self) -> None:
        self.rings = {name: Ring(step) for name, step in RANGES.items()}
        self.active_at = 0

    def add(self, now: int, values: Values) -> None:
        for ring in self.rings.values():
            ring.add(now, values)

    def recent(self, field: str, count: int, now: int) -> list[float]:
        """The last samples of the shortest range, without gaps."""
        return [value for value in self.rings["1h"].at(now)[field][-count:] if not math.isnan(value)]


class Samples:
    """All series of a node; of queues no more than `queues_max`: the one that was idle for longest makes room."""

    def __init__(self, queues_max: int) -> None:
        self._queues_max = queues_max
        self.series: dict[SeriesName, Series] = {}
        self.taken_at = 0

    def add(self, name: SeriesName, now: int, values: Values, *, active: bool = True) -> None:
        """Take a reading. Of a queue that has no series and is idle none is kept."""
        series = self.series.get(name)
        if series is None:
            if not active or (name[1] and not self._make_room()):
                return
            series = self.series[name] = Series()
        if active:
            series.active_at = now
        series.add(now, values)

    def _make_room(self) -> bool:
        queues = [name for name in self.series if name[1]]
        if len(queues) >= self._queues_max > 0:
            del self.series[min(queues, key=lambda name: self.series[name].active_at)]
        return self._queues_max > 0

    def queues(self) -> list[SeriesName]:
        return [name for name in self.series if name[1]]

    def get(self, name: SeriesName) -> Series | None:
        return self.series.get(name)

    def drop(self, name: SeriesName) -> None:
        self.series.pop(name, None)

    def count(self, names: Iterable[SeriesName], field: str, time_range: str, now: int) -> int:
        """How often something happened in a range of time, of which there are rates."""
        found = 0.0
        for name in names:
            series = self.series.get(name)
            if series is not None:
                rates = series.rings[time_range].at(now)[field]
                found += sum(rate for rate in rates if not math.isnan(rate))
        return round(found * RANGES[time_range] / SECOND)

    def plot(self, names: Iterable[SeriesName], time_range: str, now: int) -> dict[str, list[float | None]]:
        """Times and values for a plot: sums over these series, of times the greatest; None where there is nothing."""
        total: dict[str, list[float]] = {field: [NAN] * LENGTH for field in FIELDS}
        for name in names:
            series = self.series.get(name)
            if series is None:
                continue
            for field, column in series.rings[time_range].at(now).items():
                total[field] = [_join(field, *pair) for pair in zip(total[field], column, strict=True)]
        found: dict[str, list[float | None]] = {
            field: [None if math.isnan(value) else round(value, 4) for value in column]
            for field, column in total.items()
        }
        found["at"] = [float(at) for at in Ring(RANGES[time_range]).times(now)]
        return found


def _join(field: str, one: float, other: float) -> float:
    if math.isnan(one) or math.isnan(other):
        return other if math.isnan(one) else one
    return max(one, other) if field in GREATEST else one + other


# --- the file -------------------------------------------------------------------------------------------------------


class _StoredRing(msgspec.Struct, array_like=True):
    slot: int
    count: int
    columns: dict[str, bytes]


class _StoredSeries(msgspec.Struct, array_like=True):
    name: SeriesName
    active_at: int
    rings: dict[str, _StoredRing]


class _Stored(msgspec.Struct, array_like=True):
    format: int
    series: list[_StoredSeries]


_decode = msgspec.msgpack.Decoder(_Stored).decode


def encoded(samples: Samples) -> bytes:
    """What the file holds."""
    stored = [
        _StoredSeries(
            name,
            series.active_at,
            {
                range_name: _StoredRing(
                    ring.slot, ring.count, {field: column.tobytes() for field, column in ring.columns.items()}
                )
                for range_name, ring in series.rings.items()
            },
        )
        for name, series in samples.series.items()
    ]
    return msgspec.msgpack.encode(_Stored(FORMAT, stored))


def write(path: Path, content: bytes) -> None:
    """Replace the file. It need not be on disk: what is lost with the machine is a plot."""
    make_directory(path.parent, mode=0o700)
    new = path.with_suffix(".new")
    new.write_bytes(content)
    os.replace(new, path)  # noqa: PTH105 - pathlib's has another name, and does the same


def load(path: Path, queues_max: int) -> Samples:
    """What was written, or nothing."""
    samples = Samples(queues_max)
    try:
        stored = _decode(path.read_bytes())
        if stored.format == FORMAT:
            for one in stored.series:
                if one.name[1] and len(samples.queues()) >= queues_max:
                    continue
                samples.series[one.name] = _series(one)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.DecodeError, ValueError) as error:
        log.warning("the console's samples cannot be read; plots begin now", path=str(path), error=str(error))
        return Samples(queues_max)
    return samples


def _series(stored: _StoredSeries) -> Series:
    series = Series()
    series.active_at = stored.active_at
    for name, ring in series.rings.items():
        old = stored.rings[name] if name in stored.rings else _StoredRing(0, 0, {})
        ring.slot, ring.count = old.slot, old.count
        for field in FIELDS:
            column = array("f")
            column.frombytes(old.columns.get(field, b""))
            if len(column) == LENGTH:
                ring.columns[field] = column
    return series
