"""Runs workers until it is stopped.

The first SIGTERM or SIGINT drains: no further messages are leased, those that no handler has started are released, and
running handlers finish. What does not finish in time is released too. A second signal ends the process immediately; the
leases then expire.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from typing import Any

from holdfast import wire
from holdfast.client.client import Client
from holdfast.client.consumer import Consumer
from holdfast.client.messages import Message, release_unsettled
from holdfast.client.portal import Portal
from holdfast.client.times import Duration, seconds
from holdfast.client.workers.announcing import JOBS_SHOWN, Announcer, job_of
from holdfast.client.workers.context import use_client
from holdfast.client.workers.thread_pool import ThreadPool
from holdfast.client.workers.worker import Middleware, Worker, settle_reliably
from holdfast.errors import InvalidArgument

log = logging.getLogger("holdfast.client")

DRAIN = "30s"
EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_SIGNAL = 128
"""Added to the number of a second signal."""

AnyWorker = Worker[..., Any]
Connect = Callable[[], Client]
Beside = Callable[[], AbstractAsyncContextManager[object]]
Lifespan = Callable[[Client], AbstractAsyncContextManager[object]]


class Workers:
    """Several workers that run together, with `middleware` around all of them.

        app = Workers(send_email, resize_image)
        app.run()                                   # or: holdfast worker module:app

    `drain` is how long handlers may take to finish after a stop. `lifespan` is an asynchronous context manager around
    everything: it is called with the client, opens pools before the first message is taken, and closes them when the
    last handler has finished.
    """

    def __init__(
        self,
        *workers: AnyWorker,
        middleware: Sequence[Middleware] = (),
        drain: Duration = DRAIN,
        lifespan: Lifespan | None = None,
    ) -> None:
        self.workers = list(workers)
        self.middleware = tuple(middleware)
        self.lifespan = lifespan
        self.draining = False
        self.end_when_stuck = False
        """End when a worker has abandoned as many threads as it may have: a supervisor starts a new process."""
        self.stuck = asyncio.Event()
        """Set when that is so."""
        self._drain_seconds = seconds(drain, "drain")

    def add(self, worker: AnyWorker) -> AnyWorker:
        """Add a worker. As a decorator above `@worker` it registers the function."""
        self.workers.append(worker)
        return worker

    def run(self, connect: Connect = Client, beside: Beside = nullcontext, *, burst: bool = False) -> int:
        """Run until a signal arrives; with `burst` until no message is ready. Returns the process's exit code: 0 if
        everything was finished, else 1.

        `connect` makes the client; by default a client of the server that `HOLDFAST_URL` names. `beside` is an
        asynchronous context manager around everything, from before the connection until after the last job.
        """
        return asyncio.run(self._burst(connect) if burst else self._run(connect, beside))

    async def _burst(self, connect: Connect) -> int:
        async with connect() as client:
            await self.work_off(client)
        return EXIT_DONE

    async def _run(self, connect: Connect, beside: Beside) -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _on_signal, number, stop)
        try:
            async with beside(), connect() as client:
                return EXIT_DONE if await self.serve(client, stop) else EXIT_FAILED
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def serve(self, client: Client, stop: asyncio.Event | None = None) -> bool:
        """Run on a client until `stop` is set, then drain. Returns False if handlers did not finish in time.

        An error that is not retryable, such as a missing permission, stops all workers and is raised.
        """
        if not self.workers:
            raise InvalidArgument(field="workers", problem="are none: give Workers at least one")
        async with AsyncExitStack() as stack:
            await self._begin(stack, client)
            return await self._serve(client, stop or asyncio.Event())

    async def _begin(self, stack: AsyncExitStack, client: Client) -> None:
        stack.enter_context(use_client(client))
        for worker in self.workers:
            if worker.results is not None:
                await worker.results.open(client)
        if self.lifespan is not None:
            await stack.enter_async_context(self.lifespan(client))

    async def _serve(self, client: Client, stop: asyncio.Event) -> bool:
        loops = [_WorkerLoop(worker, client, self) for worker in self.workers]
        running = [asyncio.create_task(loop.run()) for loop in loops]
        self.stuck, self.draining = asyncio.Event(), False
        announcer = Announcer(client, lambda: [loop.status() for loop in loops])
        announcer.start()
        stopping = [asyncio.create_task(stop.wait())]
        if self.end_when_stuck:
            stopping.append(asyncio.create_task(self.stuck.wait()))
        try:
            await asyncio.wait((*stopping, *running), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.draining = True
            announcer.drain()
            for task in stopping:
                task.cancel()
            finished = await asyncio.gather(*(loop.drain(self._drain_seconds) for loop in loops))
            results = await asyncio.gather(*running, return_exceptions=True)
            await announcer.stop()
        for result in results:
            if result is not None:
                raise result
        return all(finished) and not self.stuck.is_set()

    async def work_off(self, client: Client) -> int:
        """Work until no message is ready. Returns how many were handled: for tests and scheduled jobs."""
        async with AsyncExitStack() as stack:
            await self._begin(stack, client)
            return await self._work_off(client)

    async def _work_off(self, client: Client) -> int:
        total = 0
        while True:
            counts = [await _work_off(worker, client, self.middleware) for worker in self.workers]
            total += sum(counts)
            if not any(counts):
                return total


class _WorkerLoop:
    """The loop of one worker."""

    def __init__(self, worker: AnyWorker, client: Client, app: Workers) -> None:
        self._worker = worker
        self._client = client
        self._app = app
        self._threads = ThreadPool(worker.concurrency, worker.name)
        self._portal = Portal.of(asyncio.get_running_loop())
        self._consumer: Consumer = client.consume(
            worker.queue,
            group=worker.group,
            prefetch=worker.concurrency if worker.prefetch is None else worker.prefetch,
            lease=worker.lease,
            hold=worker.hold,
            read_ahead=worker.prefetch is None,
        )
        self._slots = asyncio.Semaphore(worker.concurrency)
        self._stopped = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], Message] = {}
        self._began: dict[str, float] = {}  # by id, when its function was called

    def status(self) -> wire.WorkerStatus:
        """What the server is told of it."""
        worker = self._worker
        jobs = [job_of(message_id, began_at) for message_id, began_at in self._began.items()]
        return wire.WorkerStatus(
            name=worker.name,
            queue=worker.queue,
            group=worker.group,
            concurrency=worker.concurrency,
            jobs=jobs[:JOBS_SHOWN],
        )

    async def run(self) -> None:
        log.info("%r is running, %d at a time", self._worker, self._worker.concurrency)
        while True:
            await self._slots.acquire()
            await self._threads.room()
            if self._worker.rate is not None:
                await self._worker.rate.take(self._stopped)
            message = await self._consumer.next()
            if message is None:
                return
            task = asyncio.create_task(self._work_on(message))
            self._tasks[task] = message
            self._began[message.id] = time.time()
            task.add_done_callback(self._done)
            if not self._worker.asynchronous:
                message.on_lost(functools.partial(self._keep_place, task))

    async def _work_on(self, message: Message) -> None:
        """The function's place is free when it ends: the next message need not wait until this one is settled."""
        try:
            await self._threads.room()
            settle = await self._worker.handle(message, self._client, self._threads, self._portal, self._app.middleware)
        finally:
            self._slots.release()
            if self._threads.full:
                self._app.stuck.set()
                log.error("%s takes no message: all its threads hang", self._worker.name)
        if settle is not None:
            await settle_reliably(message, settle)

    def _keep_place(self, task: asyncio.Task[None]) -> None:
        """A function on a thread runs on although its lease is lost: nothing may be leased for its place."""
        if not task.done():
            self._consumer.reserve()
            task.add_done_callback(lambda _: self._consumer.free())

    def _done(self, task: asyncio.Task[None]) -> None:
        message = self._tasks.pop(task, None)
        if message is not None:
            self._began.pop(message.id, None)

    async def drain(self, timeout_seconds: float) -> bool:
        """Wait until running handlers finish, for `timeout_seconds` at most; release the rest."""
        await self._consumer.stop()
        self._stopped.set()
        if self._tasks:
            log.info("%r finishes %d messages", self._worker, len(self._tasks))
            await asyncio.wait(self._tasks, timeout=timeout_seconds)
        unfinished = dict(self._tasks)
        for task, message in unfinished.items():
            log.error("%s did not finish %r in time; it is released", self._worker.name, message)
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished)
        await self._consumer.close()
        self._threads.close()
        return not unfinished


async def _work_off(worker: AnyWorker, client: Client, around: Sequence[Middleware]) -> int:
    """Handle everything that is ready now for one worker."""
    threads = ThreadPool(worker.concurrency, worker.name)
    portal = Portal.of(asyncio.get_running_loop())
    done = 0
    try:
        while messages := await client.receive(worker.queue, group=worker.group, limit=worker.concurrency):
            await asyncio.gather(*(_work_on(worker, message, client, threads, portal, around) for message in messages))
            done += len(messages)
    finally:
        threads.close()
    return done


async def _work_on(
    worker: AnyWorker,
    message: Message,
    client: Client,
    threads: ThreadPool,
    portal: Portal,
    around: Sequence[Middleware],
) -> None:
    async with message:
        settle = await worker.handle(message, client, threads, portal, around)
        if settle is not None:
            await settle_reliably(message, settle)
    if message.settled is None and not message.lost:
        await release_unsettled(message)


def _on_signal(number: signal.Signals, stop: asyncio.Event) -> None:
    if stop.is_set():
        log.warning("second signal, ending immediately")
        os._exit(EXIT_SIGNAL + number)
    log.info("stopping after %s; a second signal ends immediately", number.name)
    stop.set()
