"""Looks regularly at what nobody may have asked for, and has the log say what has changed: the room on the disk, and
how long syncs take. Groups without consumers are looked at more rarely (see `unattended`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from holdfast.broker.commit.admission import DiskReserve
from holdfast.broker.commit.group_commit import GroupCommit
from holdfast.broker.lookout.disk_forecast import DiskForecast
from holdfast.errors import HoldfastError

log = structlog.get_logger()

LOOK_SECONDS: Final = 5.0


class Lookout:
    """See the module."""

    def __init__(self, disk: DiskReserve, commit: GroupCommit, clock: Callable[[], int]) -> None:
        self._disk = disk
        self._commit = commit
        self._clock = clock
        self.forecast = DiskForecast()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Look once."""
        self._commit.look_at_syncs()
        try:
            now = self._clock()
            room = self._disk.look(now)
            if room is not None:
                self.forecast.add(now, room)
        except HoldfastError as error:  # the store is away, which has lines of its own
            log.debug("the room on the disk is not known", code=error.code)
