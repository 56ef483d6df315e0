"""Limits on what may be submitted: how much may wait for its commit, and how full the disk may be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from holdfast.errors import DiskFull, Overloaded
from holdfast.quotas import Quota, Quotas
from holdfast.store.contract import Store
from holdfast.units import SECOND

log = structlog.get_logger()

CHECK_EVERY = SECOND


class Inbox:
    """Messages, settlements and payload bytes that were submitted and are not committed yet."""

    __slots__ = ("_messages_max", "_size_bytes_max", "messages", "size_bytes")

    def __init__(self, messages_max: int, size_bytes_max: int) -> None:
        self._messages_max = messages_max
        self._size_bytes_max = size_bytes_max
        self.messages = 0
        self.size_bytes = 0

    def admit(self, messages: int, size_bytes: int) -> None:
        """Raise `Overloaded` if this is too much beside what waits. What comes alone is always admitted."""
        if self.messages and (
            self.messages + messages > self._messages_max or self.size_bytes + size_bytes > self._size_bytes_max
        ):
            raise Overloaded(waiting=self.messages)


class DiskReserve:
    """Free space that the store keeps: messages are refused before the disk is full, so that settling stays
    possible."""

    __slots__ = ("_checked_at", "_logged", "_min_free_bytes", "_path", "_room", "_store")

    def __init__(self, store: Store, min_free_bytes: int, path: Path) -> None:
        self._store = store
        self._min_free_bytes = min_free_bytes
        self._path = path
        self._room: int | None = None
        self._checked_at = 0
        self._logged = False  # that there is too little room

    def look(self, now: int) -> int | None:
        """Find out how much room there is; queries the system once a second."""
        if not 0 <= now - self._checked_at < CHECK_EVERY:
            self._checked_at = now
            self._room = self._store.room()
            self._log_change()
        return self._room

    def check(self, now: int) -> None:
        """Raise `DiskFull` if there is too little room."""
        self.look(now)
        if self._room is not None and self._room < self._min_free_bytes:
            raise DiskFull(path=self._path)

    def _log_change(self) -> None:
        """Log when there begins to be too little room, and when there is enough again."""
        spent = self._room is not None and self._room < self._min_free_bytes
        if spent == self._logged:
            return
        self._logged = spent
        facts = {"path": str(self._path), "free_bytes": self._room, "min_free_bytes": self._min_free_bytes}
        if spent:
            log.error("the disk is nearly full: messages are refused until there is room", **facts)
        else:
            log.info("there is room on the disk again: messages are accepted", **facts)


class StoredBytes:
    """Payload bytes that namespaces store, against their quota.

    To count them all for each enqueue would cost too much. A sum that only grows is at least as large as what is
    stored; only when that reaches the limit is the real one counted. A namespace that was refused is counted again a
    second later.
    """

    __slots__ = ("_at_most", "_count", "_quotas", "_refused")

    def __init__(self, quotas: Quotas, count: Callable[[str], int]) -> None:
        self._quotas = quotas
        self._count = count
        self._at_most: dict[str, int] = {}
        self._refused: dict[str, tuple[int, int]] = {}  # when, and at which limit

    def of(self, namespace: str) -> int:
        """What a namespace stores now."""
        return self._count(namespace)

    def admit(self, namespace: str, size_bytes: int, now: int) -> None:
        """Count what is about to be stored. Raises QuotaExceeded."""
        limit = self._quotas.limit(namespace, Quota.STORED_BYTES)
        if not limit:
            return
        at_most = self._at_most.get(namespace, limit)
        if at_most + size_bytes > limit:
            at_most = self._counted(namespace, limit, size_bytes, now)
        self._at_most[namespace] = at_most + size_bytes

    def _counted(self, namespace: str, limit: int, size_bytes: int, now: int) -> int:
        refused_at, refused_limit = self._refused.get(namespace, (0, 0))
        if refused_limit != limit or not 0 <= now - refused_at < CHECK_EVERY:
            stored = self._count(namespace)
            if stored + size_bytes <= limit:
                self._refused.pop(namespace, None)
                return stored
            self._refused[namespace] = (now, limit)
        raise self._quotas.exceeded(namespace, Quota.STORED_BYTES, limit)
