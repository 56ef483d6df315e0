"""What an operator should look at first: a short list, the worst first, each with a link to where it can be solved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from holdfast.broker.health import ComponentHealth
from holdfast.broker.lookout.unattended import UNATTENDED_AFTER
from holdfast.console.caller import link
from holdfast.console.formats import duration, number, plural, size
from holdfast.console.samples import Samples
from holdfast.core.queue import QueueRecord
from holdfast.engine.catalog import QueueName
from holdfast.engine.stats import QueueStats
from holdfast.units import SECOND

SHOWN_MAX: Final = 20
SLICE: Final = 500  # queues that are looked at before others have a turn
FULL_SHARE: Final = 0.8  # of max_depth
FAILING_SHARE: Final = 0.1  # of attempts in the last minute
FAILING_RATE_MIN: Final = 0.1  # a second
GROWTH_SAMPLES: Final = 40  # ten minutes
GROWTH_MIN: Final = 100  # messages
GROWTH_SHARE: Final = 0.2
LOW_DISK_TIMES: Final = 4  # of store.min_free_bytes


class Concern(msgspec.Struct, frozen=True):
    """Something to look at. `level` is `bad` (work is lost or refused, now or soon) or `warn`."""

    level: str
    title: str
    text: str
    href: str


def node_concerns(parts: list[ComponentHealth]) -> Iterator[Concern]:
    """What is wrong with the server itself."""
    for part in parts:
        if part.problem:
            yield Concern(
                "bad" if not part.ready else "warn", f"The {part.name} has a problem", part.problem, "/health"
            )
        free, reserve = part.facts.get("free_bytes"), part.facts.get("min_free_bytes")
        if isinstance(free, int) and isinstance(reserve, int) and reserve <= free < LOW_DISK_TIMES * reserve:
            text = f"{size(free)} are left. At {size(reserve)} the server refuses new messages."
            yield Concern("warn", "The disk is nearly full", text, "/health")


async def queue_concerns(
    stats: list[QueueStats], record_of: Callable[[QueueName], QueueRecord | None], samples: Samples, now: int
) -> list[Concern]:
    """What is wrong with queues, the worst first. Others have their turns while many are looked at."""
    found: list[Concern] = []
    dead: list[QueueStats] = []
    for index, queue in enumerate(stats, 1):
        record = record_of((queue.namespace, queue.name))
        if record is not None:
            found += _of_queue(queue, record, samples, now)
            if record.automatic and queue.depth:
                dead.append(queue)
        if index % SLICE == 0:
            await asyncio.sleep(0)
    if dead:
        count = sum(queue.depth for queue in dead)
        first = max(dead, key=lambda queue: queue.depth)
        others = f" and {plural(len(dead) - 1, 'other')}" if len(dead) > 1 else ""
        text = f"In {first.name}{others}. See why they died, then redrive or purge them."
        found.append(Concern("warn", plural(count, "dead letter"), text, "/dead-letters"))
    found.sort(key=lambda concern: concern.level != "bad")
    return found[:SHOWN_MAX]


def _of_queue(queue: QueueStats, record: QueueRecord, samples: Samples, now: int) -> Iterator[Concern]:
    href, limit = link("queues", queue.name), record.config.max_depth
    if limit and queue.depth >= limit:
        yield Concern("bad", f"{queue.name} is full", f"It holds {number(limit)} messages and refuses more.", href)
    elif limit and queue.depth >= FULL_SHARE * limit:
        text = f"{number(queue.depth)} of {number(limit)} messages (max_depth). Above that it refuses more."
        yield Concern("warn", f"{queue.name} is nearly full", text, href)
    if record.config.paused and queue.depth:
        text = f"{plural(queue.depth, 'message waits', 'messages wait')} until it is resumed."
        yield Concern("warn", f"{queue.name} is paused", text, href)
    for group in queue.groups:
        if group.unattended >= UNATTENDED_AFTER:
            text = (
                f"Group {group.name} has a backlog and has had no consumer for {duration(group.unattended / SECOND)}. "
                "Start one, or delete the group."
            )
            yield Concern("bad", f"Nobody consumes {queue.name}", text, href)
    failed, acked = queue.rates.get("failed", 0.0), queue.rates.get("acked", 0.0)
    if failed >= FAILING_RATE_MIN and failed >= FAILING_SHARE * (failed + acked):
        share = failed / (failed + acked)
        text = f"{share:.0%} of the attempts of the last minute failed."
        yield Concern("bad" if share > 0.5 else "warn", f"Consumers of {queue.name} fail", text, href)
    growth = _growth(queue, samples, now)
    if growth and not record.automatic:
        text = f"{plural(growth, 'message')} more than ten minutes ago; {number(queue.depth)} wait."
        yield Concern("warn", f"{queue.name} is growing", text, href)


def _growth(queue: QueueStats, samples: Samples, now: int) -> int:
    """By how many messages it has grown, if that is much and still goes on."""
    series = samples.get((queue.namespace, queue.name))
    depths = series.recent("depth", GROWTH_SAMPLES, now) if series is not None else []
    if len(depths) < GROWTH_SAMPLES // 2:
        return 0
    grown, middle = depths[-1] - depths[0], depths[len(depths) // 2]
    much = grown >= GROWTH_MIN and grown >= GROWTH_SHARE * depths[0]
    return int(grown) if much and depths[-1] > middle > depths[0] else 0
