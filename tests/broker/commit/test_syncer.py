"""Syncs are done on a thread of their own, but for those of a caller who is alone with a fast disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from holdfast.broker.commit.syncer import QUIET_SYNCS, Syncer
from holdfast.errors import StoreUnavailable
from holdfast.store.memory import MemoryStore

FAST, SLOW = 0.0005, 0.002
IN_PLACE_MAX = 0.001


class Disk(MemoryStore):
    """A store that takes as long as it is told, by a clock that only it moves, and notes who synced it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.takes = FAST
        self.in_place: list[bool] = []
        self.failure: Exception | None = None

    def clock(self) -> float:
        return self.now

    def sync(self) -> None:
        self.now += self.takes
        self.in_place.append(threading.current_thread() is threading.main_thread())
        if self.failure is not None:
            raise self.failure


class Caller:
    """Waits for one sync after the other."""

    def __init__(self, disk: Disk, in_place_max: float = IN_PLACE_MAX) -> None:
        self.syncer = Syncer(disk, self._done, in_place_max, disk.clock)
        self.contended = False
        self._waiting: asyncio.Future[Exception | None] | None = None

    def _done(self, error: Exception | None, seconds: float) -> None:
        assert self._waiting is not None
        self._waiting.set_result(error)
        self.syncer.record_sync(seconds, self.contended)

    async def sync(self, times: int = 1) -> Exception | None:
        error: Exception | None = None
        for _ in range(times):
            self._waiting = asyncio.get_running_loop().create_future()
            self.syncer.start()
            error = await self._waiting
        return error


async def called(disk: Disk, steps: Callable[[Caller], object], in_place_max: float = IN_PLACE_MAX) -> None:
    caller = Caller(disk, in_place_max)
    await steps(caller)  # type: ignore[misc]
    caller.syncer.close()


async def test_a_lone_caller_on_a_fast_disk_needs_the_thread_but_now_and_then() -> None:
    disk = Disk()
    await called(disk, lambda caller: caller.sync(3 * QUIET_SYNCS))
    assert disk.in_place[: QUIET_SYNCS + 1] == [False] * (QUIET_SYNCS + 1)
    assert disk.in_place[QUIET_SYNCS + 1 : 2 * QUIET_SYNCS] == [True] * (QUIET_SYNCS - 1)
    assert disk.in_place[2 * QUIET_SYNCS] is False
    assert disk.in_place[2 * QUIET_SYNCS + 1 :] == [True] * (QUIET_SYNCS - 1)


async def test_one_slow_sync_sends_the_next_ones_to_the_thread() -> None:
    disk = Disk()

    async def steps(caller: Caller) -> None:
        await caller.sync(QUIET_SYNCS + 2)
        assert disk.in_place[-1] is True
        disk.takes = SLOW
        await caller.sync()
        disk.takes = FAST
        await caller.sync(QUIET_SYNCS)

    await called(disk, steps)
    assert disk.in_place[-QUIET_SYNCS:] == [False] * QUIET_SYNCS


async def test_contended_syncs_run_on_the_thread() -> None:
    disk = Disk()

    async def steps(caller: Caller) -> None:
        caller.contended = True
        await caller.sync(3 * QUIET_SYNCS)

    await called(disk, steps)
    assert disk.in_place == [False] * 3 * QUIET_SYNCS


async def test_it_can_be_switched_off() -> None:
    disk = Disk()
    await called(disk, lambda caller: caller.sync(3 * QUIET_SYNCS), in_place_max=0.0)
    assert disk.in_place == [False] * 3 * QUIET_SYNCS


async def test_a_failure_is_told_wherever_it_happens() -> None:
    disk = Disk()

    async def steps(caller: Caller) -> None:
        for times in (0, QUIET_SYNCS + 1):
            disk.failure = None
            await caller.sync(times)
            disk.failure = StoreUnavailable(problem="no disk")
            assert await caller.sync() is disk.failure

    await called(disk, steps)
    assert disk.in_place[0] is False
    assert disk.in_place[-1] is True
