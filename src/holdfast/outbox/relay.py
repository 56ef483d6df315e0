"""Enqueues what waits in an outbox."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Final, NamedTuple, Protocol

import msgspec

from holdfast import wire
from holdfast.client import SyncClient
from holdfast.errors import HoldfastError, InvalidArgument, ServerUnreachable

log = logging.getLogger("holdfast.outbox")

BATCH: Final = 500
POLL_SECONDS: Final = 0.5
PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds between tries while the database or the server is away, or a queue takes nothing."""
THE_MESSAGE_ITSELF: Final = frozenset({400, 413, 422})
"""HTTP statuses of errors that say that this message will never be taken. Others (no right, no such queue, a full one)
are about the queue: its messages wait."""


class Waiting(NamedTuple):
    """A row of the table."""

    id: int
    queue: str
    message: str


class Table(Protocol):
    """The table of an outbox, with its connection. Each change is committed when it returns."""

    def leading(self) -> AbstractContextManager[bool]:
        """Whether this relay is the one that works, until the block ends. Of several the others wait, so that messages
        stay in order."""

    def waiting(self, limit: int, except_queues: Collection[str]) -> list[Waiting]: ...

    def remove(self, ids: Collection[int]) -> None: ...

    def refuse(self, row: int, problem: str) -> None: ...


class Relay:
    """Moves messages from an outbox to the server: enqueued first, removed then."""

    def __init__(self, table: Table, client: SyncClient, *, batch: int = BATCH) -> None:
        if batch < 1:
            raise InvalidArgument(field="batch", problem=f"is at least 1, not {batch}")
        self._table = table
        self._client = client
        self._batch = batch
        self._held: dict[str, str] = {}
        """Queues that take nothing now, and why."""
        self._said: dict[str, str] = {}
        """What was logged of that already."""

    def relay(self) -> int:
        """Send what waits. Returns how many messages the server has taken. Raises if it is away."""
        self._said, self._held = self._held, {}
        total = 0
        with self._table.leading() as leading:
            while leading:
                rows = self._table.waiting(self._batch, tuple(self._held))
                for queue, some in groupby(rows, key=lambda row: row.queue):
                    total += self._send(queue, list(some))
                if len(rows) < self._batch:
                    break
        return total

    def run(self, stop: threading.Event, poll_seconds: float = POLL_SECONDS) -> None:
        """Relay until `stop` is set. A database or server that is away is waited for."""
        failures = 0
        while not stop.is_set():
            try:
                sent = self.relay()
            except Exception as error:
                pause = PAUSES[min(failures, len(PAUSES) - 1)]
                log.warning("the outbox waits %g s: %s", pause, error, exc_info=not isinstance(error, HoldfastError))
                failures += 1
            else:
                if sent:
                    log.debug("relayed %d messages", sent)
                pause = PAUSES[0] if self._held else poll_seconds
                failures = 0
            stop.wait(pause)

    def _send(self, queue: str, rows: list[Waiting]) -> int:
        """Enqueue messages of one queue that follow each other."""
        if queue in self._held:
            return 0
        rows, drafts = self._read(rows)
        if not rows:
            return 0
        try:
            result = self._client.send_many(queue, drafts, check=False)
        except HoldfastError as error:
            return self._refused_together(queue, rows, error)
        stored = [row.id for index, row in enumerate(rows) if index not in result.errors]
        if stored:
            self._table.remove(stored)
        for index, problem in sorted(result.errors.items()):
            self._refused(queue, rows[index], problem)
        return len(stored)

    def _read(self, rows: list[Waiting]) -> tuple[list[Waiting], list[wire.Draft]]:
        """The drafts; what others have written into the table and is none is refused."""
        read: list[tuple[Waiting, wire.Draft]] = []
        for row in rows:
            try:
                read.append((row, msgspec.json.decode(row.message, type=wire.Draft)))
            except (msgspec.MsgspecError, UnicodeError) as error:
                self._table.refuse(row.id, f"the column message is no draft of a message: {error}")
        return [row for row, _ in read], [draft for _, draft in read]

    def _refused_together(self, queue: str, rows: list[Waiting], error: HoldfastError) -> int:
        """A request that failed as a whole: because of the server, of the queue, or of one message in it."""
        if error.http not in THE_MESSAGE_ITSELF:
            self._refused(queue, rows[0], error)
            return 0
        if len(rows) == 1:
            self._refused(queue, rows[0], error)
            return 0
        return sum(self._send(queue, [row]) for row in rows)

    def _refused(self, queue: str, row: Waiting, error: HoldfastError) -> None:
        if error.http in THE_MESSAGE_ITSELF:
            log.error("message %d of the outbox is refused, and stays there with the reason: %s", row.id, error)
            self._table.refuse(row.id, str(error))
            return
        if isinstance(error, ServerUnreachable):
            raise error
        self._held[queue] = str(error)
        if self._said.get(queue) != str(error):
            log.warning("messages for %s wait in the outbox: %s", queue, error)
