"""Sends the audit log to other places: `audit.webhook`, `audit.syslog`.

Each entry is sent at least once, in order, and only when it is on disk. The number of the last entry that a place has
taken is kept beside the log (`audit.log.shipped`), so that a restart continues after it; a place that is new gets all
entries that there are. New entries are sent from memory, which holds the youngest; others are read from the files.

A place that cannot be reached holds up nobody: it is tried again with pauses, for as long as the server runs. How each
place is spoken to is in `audit_places`.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain, takewhile
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import structlog

from holdfast import threads
from holdfast.auth import audit_chain, files
from holdfast.auth.audit import AuditLog, numbered_files
from holdfast.auth.audit_places import NotTaken, Place, Syslog
from holdfast.config import Config
from holdfast.units import MIB

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

BATCH_LINES_MAX: Final = 500
BATCH_BYTES_MAX: Final = MIB
MEMORY_LINES_MAX: Final = 10_000
MEMORY_BYTES_MAX: Final = 16 * MIB
SEND_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 1.0
PAUSE_SECONDS_MAX: Final = 60.0
STOP_SECONDS: Final = 2.0  # for the last entries to be sent when the server stops
WARN_EVERY_SECONDS: Final = 60.0

Entry = tuple[int, bytes]
"""A line without its end, and its number."""


class Shipment:
    """What one place has got, and how it goes."""

    def __init__(self, name: str, place: Place) -> None:
        self.name = name
        self.place = place
        self.shipped = 0
        self.wakeup = asyncio.Event()
        self.from_files: Iterator[Entry] = iter(())
        self._warned_at: float | None = None

    def warn(self, event: str, now: float, **details: object) -> None:
        """Once a minute."""
        if self._warned_at is None or now - self._warned_at >= WARN_EVERY_SECONDS:
            self._warned_at = now
            log.warning(event, place=self.name, **details)


class AuditShipping:
    """See the module. It belongs to the event loop that entries are written on."""

    def __init__(
        self,
        config: Config,
        audit: AuditLog,
        pause_seconds: float = PAUSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = config.audit
        self._audit = audit
        self._path = config.node.data_dir / settings.file
        self._shipped_path = self._path.with_name(f"{self._path.name}.shipped")
        self._pause_seconds = pause_seconds
        self._clock = clock
        self._memory: OrderedDict[int, bytes] = OrderedDict()
        self._memory_bytes = 0
        self._last = 0
        self._stopping = asyncio.Event()
        self._remembering = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._shipments: list[Shipment] = []
        if settings.enabled and settings.webhook:
            from holdfast.auth.audit_webhook import Webhook  # noqa: PLC0415 - few servers need HTTP's client

            self._shipments.append(Shipment("webhook", Webhook(settings.webhook.reveal())))
        if settings.enabled and settings.syslog:
            self._shipments.append(Shipment("syslog", Syslog(settings.syslog)))

    async def start(self) -> None:
        """Find out where to continue, and begin. No place is waited for."""
        if not self._shipments:
            return
        self._audit.shippers.append(self)
        last, shipped = await threads.run_in_thread("holdfast-audit-shipping", self._read_start)
        self._last = max(self._last, last)
        for shipment in self._shipments:
            shipment.shipped = shipped.get(shipment.name, 0)
            task = asyncio.create_task(self._ship(shipment), name=f"audit-{shipment.name}")
            task.add_done_callback(_log_failure)
            self._tasks.append(task)

    async def stop(self) -> None:
        """Send what is left to places that take it, for a moment; the rest is sent after the next start."""
        self._stopping.set()
        for shipment in self._shipments:
            shipment.wakeup.set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=STOP_SECONDS)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        for shipment in self._shipments:
            await shipment.place.close()

    def wrote(self, number: int, line: bytes) -> None:
        """Keep an entry for all places, and the number of the last one."""
        self._memory[number] = line
        self._memory_bytes += len(line)
        while len(self._memory) > MEMORY_LINES_MAX or self._memory_bytes > MEMORY_BYTES_MAX:
            _, dropped = self._memory.popitem(last=False)
            self._memory_bytes -= len(dropped)
        self._last = number
        for shipment in self._shipments:
            shipment.wakeup.set()

    @property
    def unshipped(self) -> int:
        """Entries that the place furthest behind has yet to get."""
        return max((self._last - shipment.shipped for shipment in self._shipments), default=0)

    # --- one place --------------------------------------------------------------------------------------------------

    async def _ship(self, shipment: Shipment) -> None:
        pause = self._pause_seconds
        while True:
            while shipment.shipped < self._last:
                try:
                    await self._ship_batch(shipment)
                except (OSError, NotTaken) as error:  # a timeout is an OSError
                    await shipment.place.close()
                    problem = str(error) or "no answer in time"
                    shipment.warn(
                        "audit log is not shipped", self._clock(), problem=problem, entries_waiting=self.unshipped
                    )
                    if await self._stops_within(pause):
                        return
                    pause = min(pause * 2, PAUSE_SECONDS_MAX)
                else:
                    pause = self._pause_seconds
                    await self._remember()
            if self._stopping.is_set():
                return
            shipment.wakeup.clear()
            await shipment.wakeup.wait()

    async def _ship_batch(self, shipment: Shipment) -> None:
        batch = self._from_memory(shipment.shipped + 1)
        if not batch:
            batch = await threads.run_in_thread("holdfast-audit-shipping", self._from_files, shipment)
        if not batch:  # somebody has removed the files
            batch = self._from_memory(next(iter(self._memory), 0))
        last = batch[-1][0] if batch else self._last
        missing = last - shipment.shipped - len(batch)
        if batch:
            await self._audit.synced()  # else a number could be given twice, and its second entry would not be sent
            async with asyncio.timeout(SEND_SECONDS):
                await shipment.place.send([line for _, line in batch])
        shipment.shipped = last
        if missing:
            log.error("audit entries were deleted before they were shipped", place=shipment.name, count=missing)

    async def _stops_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True

    # --- what is next -----------------------------------------------------------------------------------------------

    def _from_memory(self, number: int) -> list[Entry]:
        numbers = takewhile(self._memory.__contains__, range(number, self._last + 1))
        return _batch((number, self._memory[number]) for number in numbers)

    def _from_files(self, shipment: Shipment) -> list[Entry]:
        """The next ones after what was shipped. On a thread: reading may take long."""
        wanted = shipment.shipped + 1
        first = next(shipment.from_files, None)  # where the last batch ended
        if first is None or first[0] != wanted:
            shipment.from_files = _entries(self._path, wanted)
            first = next(shipment.from_files, None)
        return [] if first is None else _batch(chain([first], shipment.from_files))

    # --- what was shipped -------------------------------------------------------------------------------------------

    def _read_start(self) -> tuple[int, dict[str, int]]:
        last = audit_chain.last_link(numbered_files(self._path)).number
        try:
            shipped = msgspec.json.decode(self._shipped_path.read_bytes(), type=dict[str, int])
        except FileNotFoundError:
            shipped = {}
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("audit log is shipped from its start", path=str(self._shipped_path), error=str(error))
            shipped = {}
        # Beyond the last one: this is another log than the one that was shipped.
        return last, {name: number for name, number in shipped.items() if number <= last}

    async def _remember(self) -> None:
        async with self._remembering:
            content = msgspec.json.encode({shipment.name: shipment.shipped for shipment in self._shipments})
            try:
                await threads.run_in_thread("holdfast-audit-shipping", files.replace, self._shipped_path, content)
            except OSError as error:  # they are sent once more after a restart
                log.error("what was shipped cannot be remembered", path=str(self._shipped_path), error=str(error))


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("audit log is no longer shipped", task=task.get_name(), exc_info=error)


def _batch(entries: Iterator[Entry]) -> list[Entry]:
    """The first ones, at most as many as are sent together. One that does not fit is lost from the iterator."""
    batch: list[Entry] = []
    size = 0
    for number, line in entries:
        size += len(line) + 1
        if size > BATCH_BYTES_MAX:
            break
        batch.append((number, line))
        if len(batch) == BATCH_LINES_MAX:
            break
    return batch


def _entries(path: Path, wanted: int) -> Iterator[Entry]:
    """The entries from `wanted` on, as they are in the files. The files are opened first, and may be numbered anew
    meanwhile."""
    with ExitStack() as stack:
        for file in _open_files(path, wanted, stack):
            for raw in file:
                if not raw.endswith(b"\n"):  # it is being written
                    break
                line = audit_chain.read_line(raw.rstrip(b"\n"))
                if not line.broken and line.link.number >= wanted:
                    wanted = line.link.number + 1
                    yield line.link.number, raw.rstrip(b"\n")


def _open_files(path: Path, wanted: int, stack: ExitStack) -> list[BinaryIO]:
    """Those that hold the wanted entry and what follows it, the oldest first."""
    while True:
        opened: list[BinaryIO] = []
        try:
            before = _inodes(path)
            for file in numbered_files(path):
                opened.insert(0, stack.enter_context(file.open("rb")))
                first = audit_chain.read_line(opened[0].readline().rstrip(b"\n"))
                opened[0].seek(0)
                if not first.broken and first.link.number <= wanted:
                    break
            if before == _inodes(path):
                return opened
        except FileNotFoundError:
            pass  # as below: they were numbered anew while they were opened
        stack.pop_all().close()


def _inodes(path: Path) -> list[int]:
    return [file.stat().st_ino for file in numbered_files(path)]
