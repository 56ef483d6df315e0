"""An event loop without a world: its clock, its threads and its network are simulated, and a seed decides their order.

asyncio promises that callbacks run in the order of `call_soon`, so that order is kept. Everything that comes from
outside a real process (a thread that ends, bytes that arrive, a timer) comes here after a time that the seed chooses.
When nothing is ready, the clock jumps to the next timer: an hour takes as long as what happens in it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import Context
from random import Random
from typing import Any, ParamSpec, TypeVar

from holdfast import threads
from tests.simulation.mail import Violation
from tests.simulation.node.network import Listener, connect
from tests.simulation.node.work import WorkMeter

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")

PASSES_MAX = 2_000
"""Of the loop, at one moment. The longest piece of work that anybody has here takes some dozens."""

Begins = Callable[[str], None]
"""Called with the name of a thread when it begins a piece of work."""


class PowerCut(SystemExit):
    """The process dies here. asyncio passes a SystemExit through to whoever runs the loop, and nothing catches it."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module. `thread_begins` is called when a simulated thread begins its work; it does it some time later."""

    def __init__(self, random: Random, now_seconds: float, thread_begins: Begins, meter: WorkMeter) -> None:
        super().__init__()
        self.random = random
        self.meter = meter
        self.thread_begins = thread_begins
        self.problems: list[str] = []
        self.listeners: dict[int, Listener] = {}
        self._now = now_seconds
        self._dead = False
        self._passes = 0  # since time went by
        self._selector = self  # asyncio's loop waits by calling its `select`
        self._clock_resolution = 1e-9
        self.set_exception_handler(self._note)

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def select(self, timeout: float | None) -> list[object]:
        """Nothing is ready: let time pass."""
        if timeout is None:
            raise Violation("the loop has nothing left to do, and somebody waits")
        self._now += timeout
        self._passes = 0 if timeout else self._passes + 1
        if self._passes > PASSES_MAX:
            raise Violation(f"the loop spins: {PASSES_MAX} passes, and no time went by")
        return []

    def _process_events(self, event_list: list[object]) -> None:
        """There are no files to watch."""

    def _write_to_self(self) -> None:
        """There is no other thread that could have to wake this one."""

    def _note(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.problems.append(f"{context.get('message')}: {context.get('exception')!r}")

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's; after `kill` nothing is called any more."""
        handle = super().call_soon(callback, *args, context=context)
        if self._dead:
            handle.cancel()
        return handle

    def random_delay(self, longest: float) -> float:
        """How long something outside takes: often nothing, seldom long."""
        return self.random.choice((0.0, 0.0, 0.00005, 0.0003, 0.002, longest)) * self.random.random()

    def kill(self) -> None:
        """The process is gone. What waits in it is dropped without being run."""
        self._dead = True
        ended: set[asyncio.Task[Any]] = set()
        while tasks := asyncio.all_tasks(self) - ended:  # what is closed may start others in its last steps
            for task in sorted(tasks, key=_number):  # a set has them in the order of their addresses
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(Exception, SystemExit):
                    task.get_coro().close()
            ended |= tasks
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        self.close()

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str | None = None, port: int = 0, **_: object
    ) -> Listener:
        """Listen on the simulated network."""
        listener = Listener(protocol_factory, host or "", port or 1024 + len(self.listeners))
        self.listeners[listener.port] = listener
        return listener

    def connect(self, port: int, protocol: asyncio.Protocol) -> None:
        """Connect a client of the simulated network."""
        connect(self, self.listeners[port], protocol)

    def run_on_thread(self, name: str, work: Callable[[], object], done: Callable[[], None] = lambda: None) -> None:
        """Have a simulated thread begin `work` soon, and end it some time later."""

        def begin() -> None:
            self.thread_begins(name)
            self.call_later(self.random.choice((0.0, 0.0003, 0.003, 0.3, 0.3)) * self.random.random(), end)

        def end() -> None:
            self.meter.elsewhere(work)
            done()

        if self.random.random() < 0.5:
            begin()
        else:
            self.call_later(self.random_delay(0.005), begin)


def _number(task: asyncio.Task[Any]) -> int:
    """asyncio numbers the tasks that it names itself."""
    number = task.get_name().removeprefix("Task-")
    return int(number) if number.isdecimal() else 0


class SimulatedWorker:
    """`threads.WorkerThread` on a simulated loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._orders: deque[Callable[[], object]] = deque()
        self._busy = False

    def start(self, work: Callable[[], object]) -> None:
        self._orders.append(work)
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._orders)
        if self._orders:
            _running().run_on_thread(self._name, self._orders.popleft(), self._next)

    def submit(
        self, function: Callable[_Args, _Result], *args: _Args.args, **keywords: _Args.kwargs
    ) -> Future[_Result]:
        future: Future[_Result] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                threads._complete(future, function, *args, **keywords)

        self.start(work)
        return future

    def end(self, timeout_seconds: float | None = None) -> bool:
        return not self._busy


def _start_thread(
    name: str, function: Callable[_Args, _Result], *args: _Args.args, **keywords: _Args.kwargs
) -> Future[_Result]:
    future: Future[_Result] = Future()
    future.set_running_or_notify_cancel()
    _running().run_on_thread(name, lambda: threads._complete(future, function, *args, **keywords))
    return future


def _running() -> SimulatedLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return loop


@contextmanager
def simulated_threads() -> Iterator[None]:
    """No thread of Holdfast's is a real one."""
    real = threads.WorkerThread, threads.start_thread
    threads.WorkerThread, threads.start_thread = SimulatedWorker, _start_thread  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        threads.WorkerThread, threads.start_thread = real  # type: ignore[misc]
