"""Processes of workers, as they announce themselves: for people who want to know who works. Nothing depends on it.

They are kept in memory. A process that has not announced itself for a while is forgotten; after a restart of the server
all come again with their next announcement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.errors import LimitExceeded
from holdfast.units import SECOND

KEPT: Final = 45 * SECOND
"""After its last announcement. Clients announce themselves every 15 seconds: two may be lost."""

PROCESSES_MAX: Final = 1_000
"""Over all callers: at 16 KiB, the largest announcement, they are 16 MiB."""

OF_ONE_CALLER_MAX: Final = 250

ProcessName = tuple[str, str, str]
"""Namespace, whose credential, and the consumer's name."""


class AnnouncedWorker(msgspec.Struct, frozen=True, gc=False):
    name: str
    queue: str
    group: str
    concurrency: int
    jobs: tuple[tuple[int, int], ...]
    """Ids of messages, and when it began with each."""


class AnnouncedProcess(msgspec.Struct, frozen=True):
    """A process. `at`: when it announced itself last, `since`: first."""

    name: ProcessName
    host: str
    pid: int
    version: str
    draining: bool
    workers: tuple[AnnouncedWorker, ...]
    at: int
    since: int


class AnnouncedProcesses:
    """See the module."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._known: dict[ProcessName, AnnouncedProcess] = {}  # those that announced themselves last are last

    def announce(
        self, name: ProcessName, host: str, pid: int, version: str, draining: bool, workers: tuple[AnnouncedWorker, ...]
    ) -> None:
        """Remember what a process says of itself. Raises if there are too many."""
        self._forget()
        now = self._clock()
        before = self._known.pop(name, None)
        if before is None:
            own = sum(known[:2] == name[:2] for known in self._known)
            for count, most, what in (
                (own, OF_ONE_CALLER_MAX, "One caller"),
                (len(self._known), PROCESSES_MAX, "A node"),
            ):
                if count >= most:
                    raise LimitExceeded(what=what, limit=f"{most} announced processes", advice="Announce fewer")
        since = now if before is None else before.since
        self._known[name] = AnnouncedProcess(name, host, pid, version, draining, workers, now, since)

    def withdraw(self, name: ProcessName) -> bool:
        """Forget a process. False: it is not known."""
        return self._known.pop(name, None) is not None

    def in_namespace(self, namespace: str) -> list[AnnouncedProcess]:
        """Those of a namespace, by host and name."""
        self._forget()
        found = [known for known in self._known.values() if known.name[0] == namespace]
        return sorted(found, key=lambda known: (known.host, known.name[2]))

    def _forget(self) -> None:
        oldest = self._clock() - KEPT
        for name, known in list(self._known.items()):
            if known.at > oldest:
                break
            del self._known[name]
