"""Schedules: messages that the broker enqueues by the clock. What is stored of them, and when they tick.

A tick is an instant at which a schedule's rule says that a message is due. Its message is enqueued at the tick, or
later by a jitter that is the same whenever it is computed. Every tick belongs to exactly one batch: the message, if it
gets one, and the schedule's state that says that the tick is over are written together, so that a crash repeats neither
and loses neither. The message's `message_id` is made from the schedule's name and the tick, so that a consumer, and the
queue's deduplication, know it too.

    table             key                            value
    SCHEDULES         namespace NUL name             Schedule: what was asked for
    SCHEDULE_STATES   namespace NUL name             ScheduleState: where it is
    SCHEDULE_RUNS     namespace NUL name NUL slot    Run: what became of a tick; the last RUNS_KEPT

This module has the records and the rule; schedules.py keeps them and enqueues.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from holdfast import cron
from holdfast.core.codecs import write_extra
from holdfast.core.commands import Draft
from holdfast.core.enqueue import invalid
from holdfast.core.queue import check_name
from holdfast.core.records import NO_EXTRA, Extra, queue_key
from holdfast.errors import InvalidArgument
from holdfast.units import DAY, HOUR, NEVER, SECOND, format_duration, format_instant

MESSAGE_BYTES_MAX = 16_384  # payload and properties: they are in memory, for a thousand schedules of a namespace
EVERY_MIN, EVERY_MAX = SECOND, 366 * DAY
JITTER_MAX = HOUR
RUNS_KEPT = 100  # of each schedule; the journal has every message

SCHEDULE_PROPERTY = "holdfast-schedule"
"""The property of a message that a schedule enqueued: the schedule's name."""
TICK_PROPERTY = "holdfast-tick"
"""The property that has the tick it is for, as RFC 3339."""


class CatchUp(StrEnum):
    """What to do with ticks that the server missed, because it was down or could not enqueue."""

    SKIP = "skip"  # enqueue nothing for them
    ONE = "one"  # enqueue the last of them
    ALL = "all"  # enqueue all of them, one after another


class Overlap(StrEnum):
    """What to do when the message of the tick before is still in its queue, waiting or leased."""

    SKIP = "skip"  # enqueue nothing
    QUEUE = "queue"  # enqueue it behind the other
    REPLACE = "replace"  # delete the other, unless it is leased, and enqueue it


class TickOutcome(StrEnum):
    """What became of a tick."""

    ENQUEUED = "enqueued"
    DUPLICATE = "duplicate"  # the queue had a message of its id already
    OVERLAP = "overlap"  # skipped: the message before it is not done
    MISSED = "missed"  # skipped: it is too late
    REFUSED = "refused"  # the queue took no message; it is tried again


class Rule(msgspec.Struct, frozen=True, array_like=True):
    """When a schedule ticks: by a cron expression in a time zone, or after each interval."""

    cron: str = ""
    every: int = 0
    zone: str = "UTC"
    starts_at: int = 0  # no tick before; the first interval begins here. 0: when it was stored
    ends_at: int = 0  # no tick at or after; 0: it does not end
    jitter: int = 0


class Schedule(msgspec.Struct, frozen=True, array_like=True):
    """What was asked for. The message has the fields of a `Draft`."""

    namespace: str
    name: str
    queue: str
    rule: Rule
    payload: bytes
    priority: int
    ttl: int
    extra: Extra = NO_EXTRA
    catch_up: CatchUp = CatchUp.SKIP
    overlap: Overlap = Overlap.QUEUE
    paused: bool = False
    by: str = ""
    created_at: int = 0
    changed_at: int = 0


class ScheduleState(msgspec.Struct, array_like=True):
    """Where a schedule is. Every tick up to `ticked` is over; intervals are counted from `anchor`."""

    anchor: int
    ticked: int
    queue: str = ""  # of the last message
    message: int = 0
    runs: int = 0  # that were recorded, and how many of them enqueued a message
    enqueued: int = 0
    retrying: int = 0  # the tick that the last run could not enqueue


class Run(msgspec.Struct, frozen=True, array_like=True):
    """What became of a tick. `tick` is 0 if a caller asked for it; `message`: the one that was enqueued, or that was in
    the way."""

    number: int
    tick: int
    at: int
    outcome: TickOutcome
    message: int = 0
    error: str = ""


_encode = msgspec.msgpack.Encoder().encode
write_schedule = _encode
write_state = _encode
write_run = _encode
read_schedule = msgspec.msgpack.Decoder(Schedule).decode
read_state = msgspec.msgpack.Decoder(ScheduleState).decode
read_run = msgspec.msgpack.Decoder(Run).decode

schedule_key = queue_key


def run_key(namespace: str, name: str, number: int) -> bytes:
    """Of the run of that number, counted from 1: it takes the place of the one before the last RUNS_KEPT."""
    return schedule_key(namespace, name) + bytes((0, number % RUNS_KEPT))


def runs_end(namespace: str, name: str) -> bytes:
    """Behind the keys of all runs of a schedule."""
    return schedule_key(namespace, name) + b"\1"


# --- what may be stored ---------------------------------------------------------------------------------------------


def check_schedule(schedule: Schedule, now: int) -> None:
    """Raise InvalidArgument if it cannot be, before anything is changed."""
    check_name(schedule.name, "schedule")
    check_name(schedule.queue)
    _check_rule(schedule.rule, now)
    draft = draft_of(schedule, 0)
    problem = invalid(draft)
    if problem is not None:
        raise problem
    size = len(draft.payload) + len(write_extra(draft.extra))
    if size > MESSAGE_BYTES_MAX:
        raise InvalidArgument(
            field="message",
            problem=f"has {size} bytes with its properties, and a schedule's has at most {MESSAGE_BYTES_MAX}: "
            "have it name what the worker is to fetch",
        )


def _check_rule(rule: Rule, now: int) -> None:
    if bool(rule.cron) == bool(rule.every):
        raise InvalidArgument(field="cron", problem="and every: give exactly one of them")
    if rule.every and not EVERY_MIN <= rule.every <= EVERY_MAX:
        shortest, longest = format_duration(EVERY_MIN), format_duration(EVERY_MAX)
        raise InvalidArgument(field="every", problem=f"is {shortest} to {longest}")
    if not 0 <= rule.jitter <= JITTER_MAX:
        raise InvalidArgument(field="jitter", problem=f"is at most {format_duration(JITTER_MAX)}")
    if rule.ends_at and rule.ends_at <= rule.starts_at:
        raise InvalidArgument(field="ends_at", problem="is not later than starts_at")
    try:
        cron.check_zone(rule.zone)
    except ValueError as error:
        raise InvalidArgument(field="timezone", problem=str(error)) from None
    if rule.cron:
        try:
            cron.check_expression(rule.cron, rule.zone, now)
        except ValueError as error:
            raise InvalidArgument(field="cron", problem=str(error)) from None


# --- when it ticks --------------------------------------------------------------------------------------------------


def next_tick(rule: Rule, anchor: int, after: int) -> int:
    """The first tick later than an instant; NEVER if there is none."""
    after = max(after, rule.starts_at - 1)
    if rule.cron:
        tick = cron.next_tick(rule.cron, rule.zone, after)
    else:
        tick = anchor + max((after - anchor) // rule.every + 1, 0) * rule.every
    return NEVER if rule.ends_at and tick >= rule.ends_at else tick


def last_tick(rule: Rule, anchor: int, first: int, until: int) -> int:
    """The last tick that is not later than `until`, of those from the tick `first` on; `first` if there is no other."""
    if rule.ends_at:
        until = min(until, rule.ends_at - 1)
    if until <= first:
        return first
    if rule.cron:
        return cron.last_tick(rule.cron, rule.zone, first, until) or first
    return anchor + (until - anchor) // rule.every * rule.every


def next_ticks(rule: Rule, anchor: int, after: int, count: int) -> list[int]:
    """The next ticks, at most so many."""
    found: list[int] = []
    while len(found) < count and (after := next_tick(rule, anchor, after)) != NEVER:
        found.append(after)
    return found


def due_at(schedule: Schedule, tick: int) -> int:
    """When the message of a tick is to be enqueued: up to `jitter` after it."""
    jitter = schedule.rule.jitter
    if not jitter or tick == NEVER:
        return tick
    seed = b"%s\0%d" % (schedule_key(schedule.namespace, schedule.name), tick)
    return tick + int.from_bytes(blake2b(seed, digest_size=8).digest(), "big") % (jitter + 1)


def draft_of(schedule: Schedule, tick: int, now: int = 0) -> Draft:
    """The message of a tick, or, without one, of a run that a caller asked for."""
    moment = format_instant(tick or now)
    extra = schedule.extra
    properties = ((SCHEDULE_PROPERTY, schedule.name), (TICK_PROPERTY, moment))
    name = f"{schedule.name}@{moment}" if tick else f"{schedule.name}@{moment}/asked"
    extra = replace(extra, message_id=name, properties=extra.properties + properties)
    return Draft(schedule.payload, schedule.priority, 0, schedule.ttl, extra)
