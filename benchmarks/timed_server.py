"""`holdfast serve`, with the processor time of each step of a message's life written to a file when it stops.

    python -m benchmarks.timed_server FILE serve ...

A step is a few functions of the server. Its time is that of its thread while one of them runs, without the steps that
they call. The server's own code has no part in this: the functions are wrapped before it starts.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from holdfast.broker.commit.group_commit import GroupCommit
from holdfast.broker.commit.syncer import Syncer
from holdfast.broker.dispatch.dispatcher import Dispatcher
from holdfast.broker.parts.messages import Messages
from holdfast.cli.main import main
from holdfast.engine.engine import Engine
from holdfast.mqtt.codec import Decoder
from holdfast.mqtt.net.link import Link
from holdfast.mqtt.queues.bridge import QueueBridge
from holdfast.mqtt.queues.consumers import Feed
from holdfast.store.rocks import RocksStore

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

STEPS: dict[str, tuple[Callable[..., object], ...]] = {
    "read": (Link.data_received,),
    "decode": (Decoder.feed,),
    "enqueue": (QueueBridge.publish, Messages.enqueue),
    "turn": (GroupCommit.run_turn,),
    "lease": (Dispatcher.lease,),
    "write": (Engine.write,),
    "sync": (Syncer.start, RocksStore.sync),
    "encode": (Feed.pump,),
    "send": (Link.send,),
    "ack": (QueueBridge.acknowledged, Messages.settle),
}


class StepClock(threading.local):
    """The steps that run on a thread, the innermost last, and what each has taken so far."""

    def __init__(self, every: list[Counter[str]]) -> None:
        self.steps: list[str] = []
        self.since = 0
        self.nanoseconds: Counter[str] = Counter()
        every.append(self.nanoseconds)

    def wrap(self, step: str, function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @wraps(function)
        def timed(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            if self.steps:
                self.nanoseconds[self.steps[-1]] += time.thread_time_ns() - self.since
            self.steps.append(step)
            self.since = time.thread_time_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.nanoseconds[step] += time.thread_time_ns() - self.since
                self.steps.pop()
                self.since = time.thread_time_ns()

        return timed


def run(result: Path) -> None:
    every: list[Counter[str]] = []
    clock = StepClock(every)
    for step, functions in STEPS.items():
        for function in functions:
            owner = getattr(sys.modules[function.__module__], function.__qualname__.partition(".")[0])
            setattr(owner, function.__name__, clock.wrap(step, function))
    try:
        main()
    finally:
        on_loop, *on_threads = every  # this thread made the first
        loop = {step: on_loop[step] for step in STEPS}
        result.write_text(json.dumps({"loop": loop, "threads": sum(map(Counter.total, on_threads))}))


if __name__ == "__main__":
    run(Path(sys.argv.pop(1)))
