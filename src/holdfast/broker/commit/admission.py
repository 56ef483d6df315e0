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

COPIES = 2
"""What is stored is on the disk twice for a while: in the log, and in a table before that log is deleted."""

MESSAGE_BYTES = 512
"""What a message takes beside its payload, at most: its record, its places in the index, its rows of the journal."""


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
    possible.

    The system is asked once a second. What is admitted until then is counted, and the system is asked again before
    something is refused because of that count.
    """

    __slots__ = (
        "_admitted", "_checked_at", "_inbox", "_logged", "_min_free_bytes", "_path", "_refused", "_room", "_store",
    )  # fmt: skip

    def __init__(self, store: Store, min_free_bytes: int, path: Path, inbox: Inbox) -> None:
        self._store = store
        self._min_free_bytes = min_free_bytes
        self._path = path
        self._inbox = inbox
        self._room: int | None = None
        self._admitted = 0  # bytes of the disk that were not taken of it when it was looked at
        self._checked_at = 0
        self._refused = 0  # bytes of the disk that were asked for in vain
        self._logged = False  # that there is too little room

    def admit(self, now: int, messages: int = 0, size_bytes: int = 0) -> None:
        """Count what is about to be stored. Raises `DiskFull` if there is too little room for it."""
        self.look(now)
        needed = _on_disk(messages, size_bytes)
        if self._admitted and self._lacks(needed):
            self._look(now)
        if self._lacks(needed):
            self._refused = needed
            self._log(full=True)
            raise DiskFull(path=self._path)
        self._admitted += needed

    def look(self, now: int) -> int | None:
        """Find out how much room there is; queries the system once a second."""
        if not 0 <= now - self._checked_at < CHECK_EVERY:
            self._look(now)
        return self._room

    def _lacks(self, needed: int) -> bool:
        return self._room is not None and self._room - self._admitted - needed < self._min_free_bytes

    def _look(self, now: int) -> None:
        self._checked_at = now
        self._admitted = _on_disk(self._inbox.messages, self._inbox.size_bytes)
        self._room = self._store.room()
        self._log(full=self._lacks(self._refused))

    def _log(self, *, full: bool) -> None:
        """Log when there begins to be too little room, and when there is enough again."""
        if full == self._logged:
            return
        self._logged = full
        self._refused = self._refused if full else 0
        facts = {"path": str(self._path), "free_bytes": self._room, "min_free_bytes": self._min_free_bytes}
        if full:
            log.error("the disk is nearly full: messages are refused until there is room", **facts)
        else:
            log.info("there is room on the disk again: messages are accepted", **facts)


def _on_disk(messages: int, size_bytes: int) -> int:
    return COPIES * (size_bytes + messages * MESSAGE_BYTES)


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
