"""`what-if`: what would have become of a queue's deliveries under other retries, lease times or consumers.

The journal says how each attempt went. It is played again under another policy, which gives two results:

    at worst   every attempt ends as it did; one that was never made fails
    at best    an attempt that is made at another time, or was never made, fails as often as those that were made then

The truth is between: what fails because of its payload fails again, what fails because something is down does not. A
message that was rejected stays dead in both. Attempts last as long as they did, those that were never made as long as
the median. Without a number of consumers, a delivery waits for each lease as long as it did; with one, consumers lease
in the order in which deliveries are ready, one each. Leases that were released are left out, and so are deliveries that
are live, were purged, or were read through a cursor.

Spark collects the attempts; they are played in the driver, so their number is limited.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from heapq import heappop, heappush
from statistics import median
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.core.queue import RetryPolicy, backoff
from holdfast.errors import InvalidArgument
from holdfast.units import MINUTE

DELIVERIES_MAX = 500_000
"""About a minute to play, and half a GB."""

RATE_ATTEMPTS = 20
"""Attempts from which the share of failures at a time is taken: the nearest ones."""

ENDED = ("acked", "dead", "dropped", "expired")
_EVENTS = ("leased", "extended", "failed", "released", *ENDED)


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What is changed, and what is as the queue has it."""

    retry: RetryPolicy
    lease_time: int | None = None
    """Microseconds; None: leases end as they did."""
    consumers: int | None = None
    """Deliveries at work at a time; None: each waits for its leases as long as it did."""


class Attempt(NamedTuple):
    """Instants are microseconds."""

    ready_at: int
    leased_at: int
    ended_at: int
    acked: bool
    timed_out: bool
    extended: bool


class Delivery(NamedTuple):
    id: int
    enqueued_at: int
    ready_at: int
    attempts: tuple[Attempt, ...]
    outcome: str
    reason: str


class Played(msgspec.Struct, kw_only=True):
    """What became of a group's deliveries, or would have."""

    acked: int = 0
    dead: dict[str, int] = {}
    """By reason; those without a dead queue, too."""
    attempts: int = 0
    attempts_in_a_minute: int = 0
    """In the busiest one."""
    at_work: int = 0
    """At a time, at most."""
    wait_p50_ms: float | None = None
    wait_p95_ms: float | None = None
    """Until the first lease."""
    total_p50_ms: float | None = None
    total_p95_ms: float | None = None
    """Of those that were acked, from enqueue to ack."""


class WhatIf(msgspec.Struct, kw_only=True):
    namespace: str
    queue: str
    group: str
    deliveries: int
    left_out: int
    """Live, purged, or read through a cursor."""
    was: Played
    at_worst: Played
    at_best: Played


# --- what was ---------------------------------------------------------------------------------------------------------


def deliveries(messages: DataFrame, events: DataFrame) -> DataFrame:
    """Deliveries (rows of `messages`) with what happened to them, in order."""
    available = F.greatest("enqueued_at", "deliver_at", "received_at").alias("ready_at")
    wanted = messages.where(F.col("group").isNotNull() & F.col("enqueued_at").isNotNull()).select(
        "message_id", "group", "enqueued_at", available, "outcome", "reason"
    )
    chosen = events.where(F.col("event").isin(*_EVENTS) & F.col("group").isNotNull())
    entry = F.struct(
        "lsn", F.unix_micros("at").alias("at"), "event", F.unix_micros("deliver_at").alias("next"), "reason"
    )
    history = chosen.groupBy("message_id", "group").agg(F.sort_array(F.collect_list(entry)).alias("history"))
    return wanted.join(history, ["message_id", "group"], "left").select(
        "message_id",
        "group",
        F.unix_micros("enqueued_at").alias("enqueued_at"),
        F.unix_micros("ready_at").alias("ready_at"),
        "outcome",
        "reason",
        "history",
    )


def collected(rows: DataFrame) -> dict[str, tuple[list[Delivery], int]]:
    """By group, its deliveries, and how many are left out."""
    found: dict[str, tuple[list[Delivery], int]] = {}
    table = rows.limit(DELIVERIES_MAX + 1).toArrow()
    if table.num_rows > DELIVERIES_MAX:
        raise InvalidArgument(
            field="--since", problem=f"is a range of more than {DELIVERIES_MAX:,} deliveries: make it shorter"
        )
    for batch in table.to_batches(10_000):
        for row in batch.to_pylist():
            known, left_out = found.setdefault(row["group"], ([], 0))
            delivery = delivery_of(row)
            if delivery.outcome not in ENDED or (delivery.outcome == "acked" and not delivery.attempts):
                found[row["group"]] = known, left_out + 1
            else:
                known.append(delivery)
    return found


def delivery_of(row: dict[str, Any]) -> Delivery:
    """A row of `deliveries`."""
    attempts: list[Attempt] = []
    ready_at, leased_at, extended = row["ready_at"], None, False
    for one in row["history"] or ():
        at, event = one["at"], one["event"]
        if event == "leased":
            leased_at, extended = at, False
        elif event == "extended":
            extended = True
        elif event == "released":
            leased_at, ready_at = None, at
        elif leased_at is not None:
            timed_out = event == "failed" and one["reason"] == "timeout"
            attempts.append(Attempt(ready_at, leased_at, at, event == "acked", timed_out, extended))
            leased_at, ready_at = None, one["next"] or at
    first = row["ready_at"]
    outcome, reason = row["outcome"] or "", row["reason"] or ""
    return Delivery(row["message_id"], row["enqueued_at"], first, tuple(attempts), outcome, reason)


# --- playing ----------------------------------------------------------------------------------------------------------


class Rates:
    """The share of attempts that failed at a time, and what attempts that were never made take after."""

    def __init__(self, group: Iterable[Delivery]) -> None:
        made = sorted((one.leased_at, not one.acked) for each in group for one in each.attempts)
        self._at = [at for at, _ in made]
        self._failed = [0]
        for _, failed in made:
            self._failed.append(self._failed[-1] + failed)
        every = [one for each in group for one in each.attempts]
        self.duration = _middle([one.ended_at - one.leased_at for one in every])
        self.wait = _middle([one.leased_at - one.ready_at for one in every])

    def of(self, at: int) -> float:
        """Of the nearest attempts."""
        middle = bisect_right(self._at, at)
        first = max(min(middle - RATE_ATTEMPTS // 2, len(self._at) - RATE_ATTEMPTS), 0)
        last = min(first + RATE_ATTEMPTS, len(self._at))
        return (self._failed[last] - self._failed[first]) / (last - first) if last > first else 1.0


def _middle(values: list[int]) -> int:
    return max(int(median(values)), 0) if values else 0


class _Outcomes:
    def __init__(self) -> None:
        self.acked = 0
        self.dead: Counter[str] = Counter()
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.waits: list[int] = []
        self.totals: list[int] = []

    def work(self, start: int, end: int) -> None:
        self.starts.append(start)
        self.ends.append(end)

    def played(self) -> Played:
        minutes = Counter(at // MINUTE for at in self.starts)
        return Played(
            acked=self.acked,
            dead=dict(sorted(self.dead.items())),
            attempts=len(self.starts),
            attempts_in_a_minute=max(minutes.values(), default=0),
            at_work=_most(self.starts, self.ends),
            wait_p50_ms=_percentile(self.waits, 50),
            wait_p95_ms=_percentile(self.waits, 95),
            total_p50_ms=_percentile(self.totals, 50),
            total_p95_ms=_percentile(self.totals, 95),
        )


def _most(starts: list[int], ends: list[int]) -> int:
    """How many were at work at the same time."""
    now = most = 0
    for _, change in sorted([*((at, 1) for at in starts), *((at, -1) for at in ends)]):
        now += change
        most = max(most, now)
    return most


def _percentile(values: list[int], percent: int) -> float | None:
    return sorted(values)[-(-len(values) * percent // 100) - 1] / 1000 if values else None


def as_it_was(group: Iterable[Delivery]) -> Played:
    found = _Outcomes()
    for each in group:
        for one in each.attempts:
            found.work(one.leased_at, one.ended_at)
        if each.attempts:
            found.waits.append(each.attempts[0].leased_at - each.ready_at)
        if each.outcome == "acked":
            found.acked += 1
            if each.attempts:
                found.totals.append(each.attempts[-1].ended_at - each.enqueued_at)
        else:
            found.dead[each.reason] += 1
    return found.played()


def play(group: list[Delivery], policy: Policy, *, best: bool, rates: Rates | None = None) -> Played:
    """A group's deliveries under a policy."""
    rates = rates or Rates(group)
    found = _Outcomes()
    ready: list[tuple[int, int, int]] = []  # when, which delivery, failures so far
    for number, each in enumerate(group):
        if each.attempts:
            heappush(ready, (each.ready_at, number, 0))
        else:  # it expired before anybody leased it
            found.dead[each.reason] += 1
    free: list[int] = [0] * (policy.consumers or 0)
    while ready:
        ready_at, number, failures = heappop(ready)
        each = group[number]
        was = each.attempts[failures] if failures < len(each.attempts) else None
        start = ready_at + (rates.wait if was is None else was.leased_at - was.ready_at)
        if policy.consumers:
            start = max(ready_at, heappop(free))
        end, acked = _attempt(each, failures, start, policy, rates, best=best)
        found.work(start, end)
        if policy.consumers:
            heappush(free, end)
        if not failures:
            found.waits.append(start - each.ready_at)
        if acked:
            found.acked += 1
            found.totals.append(end - each.enqueued_at)
            continue
        reason = _death(each, failures + 1, end, policy)
        if reason:
            found.dead[reason] += 1
        else:
            heappush(ready, (end + backoff(policy.retry, failures + 1, each.id), number, failures + 1))
    return found.played()


def _attempt(
    each: Delivery, failures: int, start: int, policy: Policy, rates: Rates, *, best: bool
) -> tuple[int, bool]:
    """When an attempt ends, and whether it is acked."""
    was = each.attempts[failures] if failures < len(each.attempts) else None
    drawn = best and _draw(each.id, failures + 1) >= rates.of(start)
    if was is None:
        duration, acked = rates.duration, drawn
    else:
        duration, acked = was.ended_at - was.leased_at, was.acked
        last = failures + 1 == len(each.attempts)
        final = last and each.outcome != "acked" and each.reason not in ("max_retries", "total_timeout")
        if best and failures and not final and abs(start - was.leased_at) > MINUTE:
            acked = drawn  # it is made at another time
    limit = policy.lease_time
    if limit is not None and was is not None and not was.extended:
        if duration > limit:
            return start + limit, False
        if was.timed_out:  # how long it would have taken is not known
            return start + limit, drawn
    return start + duration, acked


def _draw(message: int, attempt: int) -> float:
    """A number from 0 to 1 that looks random and is the same every time."""
    return zlib.crc32(f"{message}:{attempt}".encode()) / (1 << 32)


def _death(each: Delivery, failures: int, now: int, policy: Policy) -> str:
    """Why a delivery dies after so many failures; empty if it is tried again. As `dead_reason` of the broker."""
    last = failures >= len(each.attempts)
    if last and each.outcome != "acked" and each.reason not in ("max_retries", "total_timeout"):
        return each.reason  # rejected, or expired
    if failures > policy.retry.max_retries:
        return "max_retries"
    if policy.retry.total_timeout and now - each.enqueued_at > policy.retry.total_timeout:
        return "total_timeout"
    return ""


def what_if(
    messages: DataFrame,
    events: DataFrame,
    policy: Policy,
    *,
    namespace: str,
    queue: str,
    group: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
) -> Iterator[WhatIf]:
    """Each group of a queue, with the messages that were enqueued in a range of time."""
    here = (F.col("namespace") == namespace) & (F.col("queue") == queue)
    here = here & (F.col("group") == group) if group else here
    chosen = messages.where(here)
    if since is not None:
        chosen = chosen.where(F.col("enqueued_at") >= F.lit(since))
    if until is not None:
        chosen = chosen.where(F.col("enqueued_at") < F.lit(until))
    found = collected(deliveries(chosen, events.where(here)))
    if not any(known for known, _ in found.values()):
        raise InvalidArgument(field="--queue", problem=f"names {queue!r}, of which no delivery ended in this time")
    for name, (known, left_out) in sorted(found.items()):
        rates = Rates(known)
        yield WhatIf(
            namespace=namespace,
            queue=queue,
            group=name,
            deliveries=len(known),
            left_out=left_out,
            was=as_it_was(known),
            at_worst=play(known, policy, best=False, rates=rates),
            at_best=play(known, policy, best=True, rates=rates),
        )
