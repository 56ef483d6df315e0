"""The audit log: one JSON line for each administrative act, who did what, when, and how it ended.

    {"at": "2026-01-31T12:00:00.000Z", "who": "ops", "namespace": "default", "method": "password", "front": "http",
     "peer": "10.0.0.7", "act": "queue.delete", "resource": "orders", "result": "ok", "details": {"messages": 17}}

`result` is `ok` or the code of the error. Fronts write an entry for everything that needs `admin`, refusals included,
and for nothing else: it is about people, not about messages. A line is in the operating system's hands before the act
is answered, so it survives the process. An act that was done is answered only when its line is on disk; lines of
refusals are synced within moments, on a thread.

Refusals are written at a bounded rate, and the rest of them counted: a client must not displace the entries of what was
done by being refused many times.
Files are numbered when they are full (`audit.log.1` is the youngest) and the oldest is deleted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import structlog

from holdfast.auth.principal import Principal
from holdfast.auth.syncing import FileSyncer
from holdfast.config import Config
from holdfast.config.secret import HIDDEN, is_secret_name
from holdfast.errors import HoldfastError
from holdfast.units import MINUTE, format_instant

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

OK: Final = "ok"

TEXT_MAX: Final = 1_000
LINE_BYTES_MAX: Final = 16_384
"""What callers give is cut to this, so that nobody can fill the log with one act."""


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line."""

    at: str
    who: str
    namespace: str
    method: str
    front: str
    act: str
    resource: str
    result: str
    peer: str = ""
    details: dict[str, object] = {}


class AuditLog:
    """Appends entries to the file. It is opened at the first one."""

    def __init__(self, config: Config, clock: Callable[[], int]) -> None:
        self._settings = config.audit
        self._path = config.node.data_dir / config.audit.file
        self._clock = clock
        self._descriptor: int | None = None
        self._syncer = FileSyncer(self._path)
        self._torn = False
        self._minute = 0
        self._refusals = 0
        self._unwritten = 0

    @contextmanager
    def act(
        self, principal: Principal | None, act: str, resource: str, *, front: str, peer: str = "", **details: object
    ) -> Iterator[dict[str, object]]:
        """Around an act: writes `ok` when the block ends, the error's code when it raises. What the block puts into the
        mapping it is given joins the details."""
        found = dict(details)
        try:
            yield found
        except HoldfastError as error:
            self.record(principal, act, resource, error.code, front=front, peer=peer, **found)
            raise
        except BaseException:
            self.record(principal, act, resource, HoldfastError.code, front=front, peer=peer, **found)
            raise
        self.record(principal, act, resource, OK, front=front, peer=peer, **found)

    def record(
        self,
        principal: Principal | None,
        act: str,
        resource: str,
        result: str,
        *,
        front: str,
        peer: str = "",
        **details: object,
    ) -> None:
        """Writes one entry. No principal stands for the node itself, or for a caller that was not let in."""
        now = self._clock()
        if not self._settings.enabled or (result != OK and self._too_many(now)):
            return
        if self._unwritten:
            details["refusals_not_written"], self._unwritten = self._unwritten, 0
        entry = AuditEntry(
            at=format_instant(now),
            who=_cut(principal.name) if principal else "",
            namespace=principal.namespace if principal else "",
            method=principal.method if principal else "",
            front=front,
            act=act,
            resource=_cut(resource),
            result=result,
            peer=_cut(peer),
            details={name: _redacted(name, value) for name, value in details.items()},
        )
        line = msgspec.json.encode(entry) + b"\n"
        if len(line) > LINE_BYTES_MAX:
            entry = msgspec.structs.replace(entry, details={"cut": f"{len(line)} bytes"})
            line = msgspec.json.encode(entry) + b"\n"
        try:
            self._append(line)
        except OSError as error:
            # The act itself has happened or is about to: the other log is the next best place.
            log.error("audit log cannot be written", path=str(self._path), error=str(error), entry=line.decode())

    def _too_many(self, now: int) -> bool:
        minute = now // MINUTE
        if minute != self._minute:
            self._minute, self._refusals = minute, 0
        self._refusals += 1
        if self._refusals <= self._settings.refusals_per_minute:
            return False
        self._unwritten += 1
        return True

    async def synced(self) -> None:
        """Waits until every entry that was written before is on disk."""
        await self._syncer.synced()

    def close(self) -> None:
        """Syncs and closes the file; a later entry opens it again."""
        self._syncer.close()
        self._close_file()

    def _close_file(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, line: bytes) -> None:
        size = self._open()
        if size and size + len(line) > self._settings.file_bytes:
            self._rotate()
            self._open()
        assert self._descriptor is not None
        if self._torn:  # a line cut off by a full disk or a crash must not swallow this one
            line = b"\n" + line
        self._torn = True
        self._torn = os.write(self._descriptor, line) != len(line)
        if self._torn:
            raise OSError("the disk is full")
        self._syncer.wrote(self._descriptor)

    def _open(self) -> int:
        """Makes sure that the file by that name is open, also if somebody moved it away; returns its size."""
        if self._descriptor is not None:
            status = os.fstat(self._descriptor)
            if status.st_nlink and self._is_current(status):
                return status.st_size
            self._close_file()
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._descriptor).st_size
        self._torn = size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"
        return size

    def _is_current(self, status: os.stat_result) -> bool:
        try:
            there = self._path.stat()
        except OSError:
            return False
        return (there.st_ino, there.st_dev) == (status.st_ino, status.st_dev)

    def _rotate(self) -> None:
        self._close_file()
        kept = self._settings.files - 1  # beside the current one
        if kept == 0:
            self._path.unlink()
            return
        for number in range(kept - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))
        self._path.replace(self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"


def _redacted(name: str, value: object) -> object:
    if is_secret_name(name):
        return HIDDEN
    return value if isinstance(value, bool | int | float) or value is None else _cut(str(value))
