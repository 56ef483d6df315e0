"""Reads of the lake: a few at a time, each for so long, on threads that nobody waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.broker.lake_reader import LakeReads
from holdfast.config import Config
from holdfast.config.settings import JournalSettings, NodeSettings
from holdfast.errors import LakeUnreadable
from tests.waiting import PATIENCE_SECONDS


class Disk:
    """It answers when it is told to."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.answers = threading.Event()

    def read(self, what: str) -> str:
        self.asked.release()
        self.answers.wait()
        return what


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.answers.set()


def reads(path: Path, most: int = 2, timeout: int = 60_000_000) -> LakeReads:
    settings = JournalSettings(max_reads=most, read_timeout=timeout)
    return LakeReads(Config(node=NodeSettings(data_dir=path), journal=settings))


async def freed(lake: LakeReads) -> None:
    """Wait until a read is taken again: the threads end in their own time."""
    while True:
        try:
            assert await lake.read(str.upper, "x") == "X"
        except LakeUnreadable:
            await asyncio.sleep(0.001)
        else:
            return


async def test_more_than_so_many_at_a_time_are_refused_until_one_ends(tmp_path: Path, disk: Disk) -> None:
    lake = reads(tmp_path)
    both = [asyncio.create_task(lake.read(disk.read, what)) for what in "ab"]
    await asyncio.sleep(0)
    with pytest.raises(LakeUnreadable, match=r"2 reads are under way, the limit \(journal\.max_reads\)") as refused:
        await lake.read(disk.read, "c")
    assert refused.value.retryable
    disk.answers.set()
    assert [await one for one in both] == ["a", "b"]
    await freed(lake)


async def test_a_read_that_takes_too_long_is_an_error_and_counts_until_it_ends(tmp_path: Path, disk: Disk) -> None:
    lake = reads(tmp_path, most=1, timeout=100_000)
    with pytest.raises(LakeUnreadable, match=r"it took more than 100ms \(journal\.read_timeout\)"):
        await lake.read(disk.read, "a")
    with pytest.raises(LakeUnreadable, match="1 reads are under way"):
        await lake.read(disk.read, "b")
    disk.answers.set()
    await freed(lake)


async def test_so_does_one_for_whom_nobody_waits(tmp_path: Path, disk: Disk) -> None:
    lake = reads(tmp_path, most=1)
    reading = asyncio.create_task(lake.read(disk.read, "a"))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    with pytest.raises(LakeUnreadable, match="1 reads are under way"):
        await lake.read(disk.read, "b")
    disk.answers.set()
    await freed(lake)


async def test_a_lake_that_is_away_is_a_clear_error_and_other_errors_are_themselves(tmp_path: Path) -> None:
    lake = reads(tmp_path, most=1)
    with pytest.raises(LakeUnreadable, match="No such file or directory"):
        await lake.read((tmp_path / "lake").read_bytes)
    await freed(lake)
    with pytest.raises(ValueError, match="invalid literal"):
        await lake.read(int, "x")


def test_a_loop_that_ends_waits_for_none(tmp_path: Path, disk: Disk) -> None:
    async def leave() -> None:
        reading = asyncio.create_task(reads(tmp_path).read(disk.read, "a"))
        await asyncio.sleep(0)
        assert not reading.done()

    asyncio.run(leave())  # were it to wait, it would wait for ever
    assert disk.asked.acquire(timeout=PATIENCE_SECONDS)
