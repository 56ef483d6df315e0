"""Pauses a queue whose dead letters are too many within a time: its consumers, or what they depend on, are broken.

A person resumes it. What has died is in the dead queue and can be redriven then; what waits has lost no attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from holdfast.core.effects import DeadLetterCandidate
from holdfast.core.states import Reason
from holdfast.engine.catalog import Queue

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine


class Tripped(msgspec.Struct, frozen=True):
    """A queue was paused by its circuit breaker."""

    url: str  # of its webhook, if it has one
    namespace: str
    queue: str
    dead_letters: int
    window: int
    reason: str  # of the last one
    error: str
    at: int


def count_dead_letters(engine: Engine, queue: Queue, items: list[DeadLetterCandidate], now: int) -> None:
    """These have died. The pause is part of the same batch."""
    breaker = queue.config.breaker
    failed = [item for item in items if item.reason != Reason.EXPIRED]
    if not breaker.dead_letters or not failed or queue.config.paused or queue.record.closing:
        return
    times = queue.deaths
    times.extend([now] * len(failed))
    while now - times[0] > breaker.window:
        times.popleft()
    if len(times) < breaker.dead_letters:
        return
    times.clear()
    engine.operation.before_queue(queue.name)
    queue.change(replace(queue.record, config=replace(queue.config, paused=True)))
    engine.save_queue(queue)
    last = failed[-1]
    engine.tripped.append(
        Tripped(
            queue.config.dlq.alert_webhook,
            *queue.name,
            breaker.dead_letters,
            breaker.window,
            str(last.reason),
            last.delivery.error,
            now,
        )
    )
