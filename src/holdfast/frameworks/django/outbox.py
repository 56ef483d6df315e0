"""Adds to the outbox, and relays it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections

from holdfast.client import Client, Retries, SyncClient
from holdfast.frameworks.django.models import OutboxMessage
from holdfast.outbox.relay import Waiting
from holdfast.outbox.table import NAME, PROBLEM_LENGTH, outbox_item


def enqueue(queue: str, *messages: object, using: str = DEFAULT_DB_ALIAS) -> None:
    """Add messages to the transaction of the database `using`: payloads, or drafts as of `draft(…)` or
    `worker.draft(…)`. Outside of a transaction they are committed at once."""
    items = [outbox_item(queue, message) for message in messages]
    OutboxMessage.objects.using(using).bulk_create(
        OutboxMessage(queue=name, message=message) for name, message in items
    )


def connect() -> Client:
    """A client of the server in `settings.HOLDFAST`, or of HOLDFAST_URL."""
    return Client(**getattr(settings, "HOLDFAST", {}))


def connect_sync(retries: Retries = Retries()) -> SyncClient:
    """The same, for code that is not asynchronous."""
    return SyncClient(**getattr(settings, "HOLDFAST", {}), retries=retries)


class OutboxTable:
    """The outbox of one of Django's databases, for the relay."""

    def __init__(self, using: str = DEFAULT_DB_ALIAS) -> None:
        self._using = using
        self._rows = OutboxMessage.objects.using(using)

    @contextmanager
    def leading(self) -> Iterator[bool]:
        """On PostgreSQL one relay leads; elsewhere several may send the same message, of which the server stores
        one."""
        close_old_connections()
        try:
            leads = self._lock("SELECT pg_try_advisory_lock(hashtext(%s))")
            yield leads
            if leads:
                self._lock("SELECT pg_advisory_unlock(hashtext(%s))")
        except BaseException:
            connections[self._using].close()  # which unlocks too
            raise

    def waiting(self, limit: int, except_queues: Collection[str]) -> list[Waiting]:
        rows = self._rows.filter(problem=None).exclude(queue__in=except_queues).order_by("id")
        return [Waiting(*row) for row in rows.values_list("id", "queue", "message")[:limit]]

    def remove(self, ids: Collection[int]) -> None:
        self._rows.filter(id__in=ids).delete()

    def refuse(self, row: int, problem: str) -> None:
        self._rows.filter(id=row).update(problem=problem[:PROBLEM_LENGTH])

    def _lock(self, statement: str) -> bool:
        connection = connections[self._using]
        if connection.vendor != "postgresql":
            return True
        with connection.cursor() as cursor:
            cursor.execute(statement, [f"holdfast outbox {NAME}"])
            return bool(cursor.fetchone()[0])


@contextmanager
def usable_connections() -> Iterator[None]:
    """Around a job: what Django does around a request. A connection that broke or is too old is replaced."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()
