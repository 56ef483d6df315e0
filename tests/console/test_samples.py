"""The samples behind the plots: rings of fixed size, that a restart keeps."""

from __future__ import annotations

import math
from pathlib import Path

from holdfast.config.console_settings import ConsoleSettings
from holdfast.console import samples as files
from holdfast.console.samples import FIELDS, LENGTH, RANGES, STEP, Ring, Samples, SeriesName
from tests.console.rig import Served, config_with, serving
from tests.waiting import until

NAME = ("default", "q")
ALL = ("default", "")
SLOT = 1_000_000  # any


def at(slot: int) -> int:
    return slot * STEP


def test_a_ring_has_the_newest_samples_and_no_more() -> None:
    ring = Ring(STEP)
    for slot in range(SLOT, SLOT + LENGTH + 5):
        ring.add(at(slot), {"depth": float(slot - SLOT)})
    assert ring.at(at(SLOT + LENGTH + 4))["depth"] == [float(value) for value in range(5, LENGTH + 5)]


def test_a_sample_is_the_mean_of_its_readings_and_of_times_the_greatest() -> None:
    ring = Ring(4 * STEP)
    for depth, wait in ((1.0, 5.0), (2.0, math.nan), (6.0, 4.0)):
        ring.add(at(4 * SLOT), {"depth": depth, "wait": wait})
    found = ring.at(at(4 * SLOT))
    assert found["depth"][-1] == 3.0
    assert found["wait"][-1] == 5.0


def test_where_nothing_was_read_there_is_a_gap() -> None:
    ring = Ring(STEP)
    ring.add(at(SLOT), {"depth": 1.0})
    ring.add(at(SLOT + 3), {"depth": 2.0})
    values = ring.at(at(SLOT + 4))["depth"]
    assert [math.isnan(value) for value in values[-5:]] == [False, True, True, False, True]


def test_a_clock_that_was_set_back_breaks_nothing() -> None:
    ring = Ring(STEP)
    ring.add(at(SLOT), {"depth": 1.0})
    ring.add(at(SLOT - 100), {"depth": 3.0})
    assert ring.at(at(SLOT))["depth"][-1] == 2.0


def test_the_queue_that_was_idle_for_longest_makes_room() -> None:
    kept = Samples(2)
    for second, queue in enumerate(("a", "b", "a", "c")):
        kept.add(("default", queue), at(SLOT + second), {"depth": 1.0})
    assert sorted(kept.queues()) == [("default", "a"), ("default", "c")]


def test_without_queues_only_sums_are_kept() -> None:
    kept = Samples(0)
    kept.add(NAME, at(SLOT), {"depth": 1.0})
    kept.add(("default", ""), at(SLOT), {"depth": 1.0})
    assert list(kept.series) == [("default", "")]


def test_a_plot_adds_up_what_one_may_see() -> None:
    kept = Samples(10)
    kept.add(("default", "a"), at(SLOT), {"depth": 1.0, "wait": 3.0})
    kept.add(("default", "b"), at(SLOT), {"depth": 2.0, "wait": 1.0})
    plot = kept.plot([("default", "a"), ("default", "b"), ("default", "gone")], "1h", at(SLOT))
    assert (plot["depth"][-1], plot["wait"][-1], plot["acked"][-1]) == (3.0, 3.0, None)
    assert plot["at"][-1] == SLOT * STEP / 1_000_000


def test_a_restart_keeps_them(tmp_path: Path) -> None:
    kept = Samples(10)
    for slot in range(SLOT, SLOT + 10):
        kept.add(NAME, at(slot), {"depth": float(slot)})
    path = tmp_path / "console" / "samples"
    files.write(path, files.encoded(kept))
    again = files.load(path, 10)
    now = at(SLOT + 10)
    assert again.plot([NAME], "1h", now) == kept.plot([NAME], "1h", now)
    assert again.plot([NAME], "7d", now) == kept.plot([NAME], "7d", now)
    assert files.load(path, 0).queues() == []


def test_a_file_that_cannot_be_read_is_no_reason_not_to_start(tmp_path: Path) -> None:
    path = tmp_path / "samples"
    for content in (b"", b"rubbish", b"\x92\x01\x91\x93"):
        path.write_bytes(content)
        assert files.load(path, 10).series == {}


async def test_a_reading_has_what_happened_since_the_one_before(tmp_path: Path) -> None:
    config = config_with(tmp_path)
    assert config.console == ConsoleSettings()
    async with serving(config) as served, served.client() as client:
        sampler = served.console.sampler
        await sampler.take()  # from now on it is known which queues are active
        await client.send("q", "one")
        await _sampled(served)
        await sampler.take()
        await client.send("q", "two")
        for message in await client.receive("q"):
            await message.ack()
        await _sampled(served)
        await sampler.take()
        known = _known(served, NAME)
        assert known["depth"][-1] == 1.0
        assert max(known["enqueued"]) > 0
        assert max(known["acked"]) > 0
        assert _known(served, ALL)["depth"][-1] == 1.0
        await client.delete_queue("q")
        await sampler.take()
        assert sampler.samples.queues() == []
        kept = _known(served, ALL)
    async with serving(config) as served:
        assert _known(served, ALL) == kept


def _known(served: Served, name: SeriesName) -> dict[str, list[float]]:
    """What a plot shows, without gaps: when a test takes its readings is not for it to say."""
    plot = served.console.sampler.samples.plot([name], "1h", served.node.clock())
    return {field: [value for value in plot[field] if value is not None] for field in FIELDS}


async def _sampled(served: Served) -> None:
    """Until the queue counts as active, a second after something happened in it."""
    await until(lambda: served.node.cell._rate_sampler.active)


def test_how_often_something_happened_is_the_sum_of_its_rates() -> None:
    kept = Samples(10)
    step = RANGES["24h"]
    for slot in range(5):
        kept.add(NAME, (SLOT + slot) * step, {"dead": 1.0})
    assert kept.count([NAME, ("default", "none")], "dead", "24h", (SLOT + 4) * step) == 5 * 360
    assert kept.count([NAME], "dead", "24h", (SLOT + LENGTH + 3) * step) == 360
