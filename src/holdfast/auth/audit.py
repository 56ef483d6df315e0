"""The audit log: one JSON line for each administrative act and each login, who did what, when, and how it ended.

    {"number": 17, "at": "2026-01-31T12:00:00.000Z", "who": "ops", "namespace": "default", "method": "password",
     "front": "http", "act": "queue.delete", "resource": "orders", "result": "ok", "peer": "10.0.0.7",
     "details": {"messages": 17}, "chain": "9f2c..."}

`result` is `ok` or the code of the error. Fronts write an entry for everything that needs `admin`, refusals included,
the gate one for each credential that it checks: it is about people, not about messages. The lines are a chain of hashes
(see `audit_chain`). A line is in the operating system's hands before the act
is answered, so it survives the process. An act that was done is answered only when its line is on disk; lines of
refusals are synced within moments, on a thread.

Refusals and logins are written at a bounded rate, and the rest of them counted. Files are numbered when they are full
(`audit.log.1` is the youngest); the oldest is deleted when there are enough and it is old enough: nobody can displace
the entries of what was done by doing, or being refused, many things.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from holdfast.auth import audit_chain
from holdfast.auth.principal import Principal
from holdfast.auth.syncing import FileSyncer
from holdfast.config import Config
from holdfast.config.secret import HIDDEN, is_secret_name
from holdfast.errors import HoldfastError
from holdfast.units import MINUTE, SECOND, format_instant
from holdfast.web_address import hide_credentials

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

OK: Final = "ok"
LOGIN: Final = "login"

TEXT_MAX: Final = 1_000
LINE_BYTES_MAX: Final = 131_072
"""What callers give is cut to this, so that nobody can fill the log with one act. The longest configuration of a queue
is shorter."""

VALUES_MAX: Final = 2_000
"""The same, by the number of values: each is looked at, and a body of 256 KiB may have a hundred thousand. A queue's
configuration has some 150 at most, a hundred of them topics."""


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line, without its hash."""

    number: int
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
    previous: str = ""
    """The hash before it, in the first line of a file."""


class Shipper(Protocol):
    """Sends entries to another place."""

    def wrote(self, number: int, line: bytes) -> None: ...

    @property
    def unshipped(self) -> int: ...


class AuditLog:
    """Appends entries to the file. It is opened at the first one."""

    def __init__(self, config: Config, clock: Callable[[], int]) -> None:
        self._settings = config.audit
        self._path = config.node.data_dir / config.audit.file
        self._clock = clock
        self.shippers: list[Shipper] = []
        self._descriptor: int | None = None
        self._syncer = FileSyncer(self._path)
        self._torn = False
        self._last: audit_chain.Link | None = None  # of the chain; read from the files at the first entry
        self._minute = 0
        self._in_minute: Counter[str] = Counter()
        self._unwritten: Counter[str] = Counter()

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
        if not self._settings.enabled or self._too_many(act, result, now):
            return
        for kind, count in self._unwritten.items():
            details[f"{kind}_not_written"] = count
        self._unwritten.clear()
        entry = AuditEntry(
            number=0,
            at=format_instant(now),
            who=_cut(principal.name) if principal else "",
            namespace=principal.namespace if principal else "",
            method=principal.method if principal else "",
            front=front,
            act=act,
            resource=_cut(resource),
            result=result,
            peer=_cut(peer),
            details=_redacted_all(details),
        )
        size = len(msgspec.json.encode(entry))
        if size > LINE_BYTES_MAX:
            entry = msgspec.structs.replace(entry, details={"cut": f"{size} bytes"})
        try:
            self._append(entry)
        except OSError as error:
            # The act itself has happened or is about to: the other log is the next best place.
            text = msgspec.json.encode(entry).decode()
            log.error("audit log cannot be written", path=str(self._path), error=str(error), entry=text)

    def _too_many(self, act: str, result: str, now: int) -> bool:
        """Whether it is one more in this minute than is written of what callers can do without a right."""
        if result == OK and act != LOGIN:
            return False
        minute = now // MINUTE
        if minute != self._minute:
            self._minute = minute
            self._in_minute.clear()
        kind, limit = (
            ("logins", self._settings.logins_per_minute)
            if result == OK
            else ("refusals", self._settings.refusals_per_minute)
        )
        self._in_minute[kind] += 1
        if self._in_minute[kind] <= limit:
            return False
        self._unwritten[kind] += 1
        return True

    @property
    def unshipped(self) -> int:
        """Entries that are yet to be sent, to the place that is furthest behind."""
        return max((shipper.unshipped for shipper in self.shippers), default=0)

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

    def _append(self, entry: AuditEntry) -> None:
        size = self._open()
        last = self._last or audit_chain.last_link(numbered_files(self._path))
        entry = msgspec.structs.replace(entry, number=last.number + 1, previous="" if size else last.chain)
        line, chain = audit_chain.seal(msgspec.json.encode(entry), last.chain)
        if size and size + len(line) + 1 > self._settings.file_bytes:
            self._rotate()
            self._open()
            entry = msgspec.structs.replace(entry, previous=last.chain)
            line, chain = audit_chain.seal(msgspec.json.encode(entry), last.chain)
        assert self._descriptor is not None
        line += b"\n"
        if self._torn:  # a line cut off by a full disk or a crash must not swallow this one
            line = b"\n" + line
        self._torn = True
        self._last = last
        self._torn = os.write(self._descriptor, line) != len(line)
        if self._torn:
            raise OSError("the disk is full")
        self._last = audit_chain.Link(entry.number, chain)
        for shipper in self.shippers:
            shipper.wrote(entry.number, line.strip())
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
        """Number the files anew, and delete those at the end that are too many and old enough."""
        self._close_file()
        files = numbered_files(self._path)
        old = self._clock() / SECOND - self._settings.keep / SECOND
        while len(files) >= self._settings.files and files[-1].stat().st_mtime < old:
            files.pop().unlink()
        if len(files) >= self._settings.files:
            log.warning("audit log grows: its files are younger than audit.keep", files=len(files) + 1)
        for number, path in reversed(list(enumerate(files, 1))):
            path.replace(self._path.with_name(f"{self._path.name}.{number}"))


def numbered_files(path: Path) -> list[Path]:
    """The files of a log that exist, the newest first."""
    numbers = [one.name.removeprefix(f"{path.name}.") for one in path.parent.glob(f"{path.name}.*")]
    older = sorted(int(number) for number in numbers if number.isascii() and number.isdigit())
    files = [path, *[path.with_name(f"{path.name}.{number}") for number in older]]
    return [file for file in files if file.exists()]


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"


def _redacted_all(details: Mapping[str, object]) -> dict[str, object]:
    waiting: list[object] = [details]
    count = 0
    while waiting:
        value = waiting.pop()
        inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        count += len(inside)
        if count > VALUES_MAX:
            return {"cut": f"more than {VALUES_MAX} values"}
        waiting.extend(inside)
    return {name: _redacted(name, value) for name, value in details.items()}


def _redacted(name: str, value: object) -> object:
    """A detail as it is written: what was given, in full, but for secrets."""
    if is_secret_name(name):
        return HIDDEN
    if isinstance(value, Mapping):
        return {str(key): _redacted(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(name, item) for item in value]
    if isinstance(value, bool | int | float) or value is None:
        return value
    return hide_credentials(_cut(str(value))) if "://" in str(value) else _cut(str(value))
