"""Workers: processes that say of themselves what they work on."""

from __future__ import annotations

import msgspec

from holdfast.wire.numbers import Count32


class WorkerJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message that a worker works on now."""

    id: str
    """The message's id."""
    since: str = ""
    """When the worker began with it."""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker of a process: the function that works on the messages of a queue."""

    name: str
    queue: str
    group: str = "default"
    concurrency: Count32 = 1
    """How many messages it works on at a time, at most."""
    jobs: list[WorkerJob] = []
    """What it works on now."""


class WorkerAnnouncement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a process says of itself: it is shown for 45 seconds, unless it says so again."""

    host: str
    pid: Count32 = 0
    version: str = ""
    """Of the client library, and its language."""
    draining: bool = False
    """It takes no more messages, and ends when it has finished those that it has."""
    workers: list[WorkerStatus] = []


class WorkerProcess(WorkerAnnouncement, frozen=True, kw_only=True):
    """A process of workers that is connected."""

    consumer: str
    """The name under which it holds its leases."""
    by: str
    """Whose credential it uses."""
    started_at: str
    """When it was first heard of."""
    seen_at: str


class WorkerList(msgspec.Struct, frozen=True):
    """Processes of workers."""

    processes: list[WorkerProcess]
