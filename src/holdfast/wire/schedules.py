"""Schedules: messages that the server enqueues by the clock."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from holdfast.wire.messages import Draft
from holdfast.wire.times import Duration, Instant

CatchUp: TypeAlias = Literal["skip", "one", "all"]
Overlap: TypeAlias = Literal["skip", "queue", "replace"]


class ScheduleDefinition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A schedule to store. Exactly one of `cron` and `every` says when it ticks."""

    queue: str
    """Where its messages go."""
    message: Draft = Draft()
    """What is enqueued at each tick, without `message_id`, `delay` and `deliver_at`; at most 16 KiB. Its `message_id`
    is made from the schedule's name and the tick; its properties get `holdfast-schedule` and `holdfast-tick`."""
    cron: str = ""
    """Minute, hour, day of month, month, day of week: `30 9 * * MON-FRI`. Or `@hourly`, `@daily` and the like."""
    every: Duration | None = None
    """An interval, 1 s to 366 days."""
    timezone: str = "UTC"
    """The time zone of `cron`, by its name in the IANA database: `Europe/Berlin`."""
    starts_at: Instant | None = None
    """No tick before this. Intervals are counted from it; without it from when the schedule was stored."""
    ends_at: Instant | None = None
    """No tick at or after this."""
    jitter: Duration = 0
    """Enqueue up to this much later than the tick, at most 1 h: the same for one tick, others for others."""
    catch_up: CatchUp = "skip"
    """What to do with ticks that were missed, because the server was down or the queue full. `skip`: nothing, if the
    last of them is more than a minute late; `one`: enqueue the last of them; `all`: enqueue each."""
    overlap: Overlap = "queue"
    """What to do if the message of the tick before is still in the queue. `skip`: enqueue nothing; `queue`: enqueue
    another; `replace`: delete it, unless it is leased, and enqueue another."""
    paused: bool | None = None
    """Whether it is paused; null: as it was."""


class ScheduleRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a tick."""

    at: str
    """When the server acted on it."""
    tick: str | None = None
    """Null: it was run by a request."""
    outcome: str
    """`enqueued`; `duplicate`: the queue had a message of its id; `overlap` or `missed`: skipped; `refused`: the queue
    took no message, and it is tried again."""
    message: str | None = None
    """The id of the message that was enqueued, or that was in the way."""
    error: str = ""


class Schedule(ScheduleDefinition, frozen=True, kw_only=True, omit_defaults=False):
    """A schedule: what was stored, and where it is."""

    name: str
    namespace: str
    created_at: str
    changed_at: str
    changed_by: str = ""
    next: list[str] = []
    """The next ten ticks, in a list of schedules the next one; empty: it is paused, or has ended."""
    enqueued: int = 0
    """How many messages it has enqueued."""
    runs: list[ScheduleRun] = []
    """The last hundred ticks, newest first; not in a list of schedules."""


class ScheduleList(msgspec.Struct, frozen=True):
    """A page of schedules by name. Continue with `cursor`; empty: there are no more."""

    schedules: list[Schedule]
    cursor: str = ""
