"""Who uses the node: producers, consumers, readers, administrators. Each reports its answers to the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from itertools import count
from random import Random

from holdfast.core.commands import Draft, Leased, Settlement, Verb
from holdfast.core.records import Extra
from holdfast.errors import GroupExists, HoldfastError, QueueExists
from tests.simulation.mail import Violation
from tests.simulation.node.driver import SECOND, Driver, Enqueued
from tests.simulation.node.ledger import Call, Ledger
from tests.simulation.node.loop import PowerCut

QUEUES = ("jobs", "mail", "logs")
TEMPORARY = "temp"
GROUPS = ("work", "audit")
WIDE = "wide"
WIDE_PARTITIONS = 1_024
FLOOD = 1_500
"""Messages for which something falls due together."""
CALL_MESSAGES = 500
DEPTHS = {False: (90_000, 100_000), True: (50, 100_000)}


def _cut() -> None:
    raise PowerCut


class Violations:
    """What was found wrong. Callbacks run inside the node, which must not swallow it."""

    def __init__(self) -> None:
        self.found: list[Violation] = []

    def guarded(self, call: Callable[..., None]) -> Callable[..., None]:
        def guarded(*args: object) -> None:
            try:
                call(*args)
            except Violation as violation:
                self.found.append(violation)

        return guarded


class Actors:
    """All actors of one process's life. `payloads` numbers messages over all lives; `mortal`: the power may be cut;
    `bounded`: queues may be full; `wide`: there are large queues, in which much falls due together."""

    def __init__(
        self,
        random: Random,
        driver: Driver,
        ledger: Ledger,
        violations: Violations,
        payloads: count[int],
        *,
        mortal: bool,
        bounded: bool,
        wide: bool,
    ) -> None:
        self._random = random
        self._driver = driver
        self._ledger = ledger
        self._violations = violations
        self._payloads = payloads
        self._held: dict[tuple[str, str], list[Leased]] = {}
        self.refusals = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._mortal = mortal
        self._bounded = bounded
        self._wide = wide

    def start(self) -> None:
        random = self._random
        work: list[Callable[[], Awaitable[None]]] = [
            *[self.produce] * 3,
            self.produce_with_callback,
            self.produce_in_batcher,
            *[self.consume] * 3,
            *[self.settle] * 3,
            self.be_pushed,
            self.read,
            self.transact,
            self.administer,
            *[self.act_together] * 2,
        ]
        if self._wide:
            work += [self.flood, self.administer_wide]
        for operation in work:
            self.spawn(self._repeat(operation, random.choice((0.05, 0.2, 0.5))))

    async def act_together(self) -> None:
        """Several callers in one pass of the loop, which share a turn."""
        operations = (self.produce, self.produce, self.produce_in_batcher, self.consume, self.settle, self.transact)
        chosen = self._random.choices(operations, k=self._random.randint(2, 6))
        for outcome in await asyncio.gather(*[operation() for operation in chosen], return_exceptions=True):
            if isinstance(outcome, HoldfastError):
                self.refusals += 1
            elif isinstance(outcome, BaseException):
                raise outcome

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def _repeat(self, operation: Callable[[], Awaitable[None]], pause: float) -> None:
        """Do something again and again. Some callers give up before they are answered."""
        random = self._random
        while True:
            await asyncio.sleep(random.random() * pause)
            try:
                if random.random() < 0.1:
                    async with asyncio.timeout(random.choice((0.0, 0.0001, 0.001, 0.05))):
                        await operation()
                else:
                    await operation()
            except HoldfastError:
                self.refusals += 1
            except TimeoutError:
                pass

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def check(self) -> None:
        """An actor that ended has found something, or the node raised what is no answer."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and not isinstance(task.exception(), HoldfastError):
                task.result()

    # --- producing --------------------------------------------------------------------------------------------------

    def _queue(self) -> str:
        return self._random.choice((*QUEUES, *QUEUES, TEMPORARY))

    def _drafts(self, most: int) -> list[Draft]:
        random = self._random
        drafts = []
        for _ in range(random.randint(1, most)):
            number = next(self._payloads)
            extra = Extra(
                key=random.choice((None, "a", "b", "c")),
                message_id=random.choice((None, f"m{random.randrange(400)}")),
            )
            delay = random.choice((0, 0, 0, SECOND // 5))
            drafts.append(Draft(b"%d" % number, deliver_at=self._driver.clock() + delay if delay else 0, extra=extra))
        return drafts

    async def produce(self) -> None:
        random = self._random
        queue, drafts = self._queue(), self._drafts(random.choice((1, 3, 12)))
        plain = random.random() < 0.4
        if plain:
            drafts = [Draft(draft.payload) for draft in drafts]
        atomic = random.random() < 0.5
        call = self._call(queue, drafts, atomic=atomic)
        self._answered(queue, call, await self._driver.enqueue(queue, drafts, atomic=atomic))

    def _call(self, queue: str, drafts: list[Draft], *, atomic: bool = False) -> Call:
        """A call that begins. Which of its messages are refused, or are duplicates, is known when it is answered."""
        certain = atomic or not self._bounded
        sure = [draft.payload for draft in drafts if certain and not draft.extra.message_id]
        call = Call(queue, [draft.payload for draft in drafts], sure)
        self._ledger.calls.append(call)
        return call

    def _answered(self, queue: str, call: Call, answer: Enqueued) -> None:
        refused = {*answer.errors, *answer.duplicates}
        call.sure = [payload for index, payload in enumerate(call.payloads) if index not in refused]
        self._ledger.enqueued(queue, [message_id for message_id in answer.ids if message_id], durable=answer.durable)

    async def produce_with_callback(self) -> None:
        self._enqueue_with_callback(self._queue())

    def _enqueue_with_callback(self, queue: str) -> None:
        """The answer comes inside a turn, and there the next call is made: what it applies is not in that turn's
        batch."""
        drafts = self._drafts(3)
        call = self._call(queue, drafts)

        @self._violations.guarded
        def answered(answer: Enqueued) -> None:
            self._answered(queue, call, answer)
            if self._random.random() < 0.5:
                with suppress(HoldfastError):
                    self._enqueue_with_callback(self._random.choice(QUEUES))

        self._driver.enqueue_with_callback(queue, drafts, answered)

    async def produce_in_batcher(self) -> None:
        """As small HTTP requests do: those of one pass of the loop are enqueued together."""
        for _ in range(self._random.choice((1, 4))):
            queue, drafts = self._queue(), self._drafts(2)
            call = self._call(queue, drafts)

            def answered(answer: Enqueued | HoldfastError, queue: str = queue, call: Call = call) -> None:
                if not isinstance(answer, HoldfastError):
                    self._answered(queue, call, answer)

            self._driver.enqueue_in_batcher(queue, drafts, self._violations.guarded(answered))

    async def flood(self) -> None:
        """Much that falls due together: delays, expiries, leases."""
        random = self._random
        queue, delay = WIDE, random.choice((0, 0, SECOND // 2))
        ttl = random.choice((-1, SECOND // 2))
        deliver_at = self._driver.clock() + delay if delay else 0
        drafts = [Draft(b"%d" % next(self._payloads), deliver_at=deliver_at, ttl=ttl) for _ in range(FLOOD)]
        for start in range(0, FLOOD, CALL_MESSAGES):
            some = drafts[start : start + CALL_MESSAGES]
            call = self._call(queue, some, atomic=True)
            self._answered(queue, call, await self._driver.enqueue(queue, some, atomic=True))
        group = random.choice(GROUPS)
        self._took(
            queue,
            group,
            await self._driver.lease(queue, group, CALL_MESSAGES, wait=0, lease_timeout=SECOND // 2, consumer="c"),
        )
        await asyncio.sleep(2 * random.random())

    async def transact(self) -> None:
        """Messages of several calls that appear together."""
        name = f"t{next(self._payloads)}"
        staged: list[bytes] = []
        queue = self._random.choice(QUEUES)
        drafts = [Draft(b"%d" % next(self._payloads)) for _ in range(self._random.randint(1, 5))]
        await self._driver.stage(name, queue, drafts)
        staged += [draft.payload for draft in drafts]
        await self._driver.publish(name)
        for payload in staged:
            self._ledger.payload_stored(queue, payload)

    # --- consuming --------------------------------------------------------------------------------------------------

    async def consume(self) -> None:
        random = self._random
        queue, group = self._queue(), random.choice(GROUPS)
        wait = random.choice((0, 0, SECOND // 10, 3 * SECOND))
        timeout = random.choice((-1, SECOND, 20 * SECOND))
        limit = random.choice((1, 2, 10))
        self._took(
            queue, group, await self._driver.lease(queue, group, limit, wait=wait, lease_timeout=timeout, consumer="c")
        )

    def _took(self, queue: str, group: str, leased: list[Leased]) -> None:
        self._ledger.leased(group, leased)
        held = self._held.setdefault((queue, group), [])
        held += leased
        del held[:-60]

    async def settle(self) -> None:
        random = self._random
        places = [place for place, held in self._held.items() if held]
        if not places:
            return
        queue, group = random.choice(places)
        held = self._held[queue, group]
        chosen = random.sample(held, random.randint(1, len(held)))
        if random.random() < 0.1:
            await self._driver.put_state(queue, group, chosen[0], b"state")
        self._held[queue, group] = [leased for leased in held if leased not in chosen]
        verb = random.choice((Verb.ACK, Verb.ACK, Verb.ACK, Verb.NACK, Verb.RELEASE, Verb.EXTEND, Verb.REJECT))
        settlements = [
            Settlement(leased.message.id, leased.token, verb, partition=random.choice((-1, leased.partition)))
            for leased in chosen
        ]
        answer = await self._driver.settle(queue, group, settlements)
        self._ledger.settled(queue, group, settlements, answer.results, durable=answer.durable)

    async def be_pushed(self) -> None:
        """Join a group for a while. What is pushed is settled later, or released by leaving."""
        random = self._random
        queue, group = self._queue(), random.choice(GROUPS)

        @self._violations.guarded
        def deliver(leased: list[Leased]) -> None:
            self._took(queue, group, leased)

        joined = await self._driver.join(queue, group, f"m{random.randrange(3)}", deliver, random.choice((1, 5, 50)))
        try:
            await asyncio.sleep(random.choice((0.01, 0.5, 3.0)))
        finally:
            joined.leave(random.choice((Verb.RELEASE, Verb.DISCONNECT, None)))

    async def read(self) -> None:
        """Read a queue as a log, and commit some of it."""
        queue = self._random.choice(QUEUES)
        found = await self._driver.read(queue, "log", 0, self._random.choice((1, 10)))
        self._ledger.read(queue, 0, found.messages)
        if found.messages and self._random.random() < 0.5:
            await self._driver.commit(queue, "log", 0, found.messages[-1].seq)

    # --- administration ---------------------------------------------------------------------------------------------

    async def administer(self) -> None:
        random = self._random
        acts: list[Callable[[], Coroutine[None, None, None]]] = [
            self._create, self._create, self._delete, self._pause, self._grow, self._purge, self._group, self._ungroup,
            self._redrive, self._configure, self._change_kind,
        ]  # fmt: skip
        await random.choice(acts)()

    async def administer_wide(self) -> None:
        """A queue of as many partitions as one may have, with many groups: made, grown, emptied, deleted."""
        random = self._random
        driver = self._driver
        with suppress(HoldfastError):
            await driver.create_queue(WIDE, {"partitions": random.choice((1, WIDE_PARTITIONS))})
        for number in range(random.choice((1, 8))):
            with suppress(HoldfastError):
                await driver.create_group(WIDE, f"g{number}", cursor=random.random() < 0.2, earliest=True)
        await asyncio.sleep(random.random())
        await driver.update_queue(WIDE, {"partitions": WIDE_PARTITIONS})
        record = self._ledger.durable.queue(WIDE)
        self._ledger.administered("growth", record is not None and len(record.shards) == WIDE_PARTITIONS)
        await driver.delete_group(WIDE, "g0")
        await random.choice((driver.purge, driver.delete_queue))(WIDE)
        await asyncio.sleep(random.random())

    async def _create(self) -> None:
        """Sometimes two do it in one turn: the second learns that the queue exists."""
        calls = [self._create_once() for _ in range(self._random.choice((1, 2)))]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for error in [one for one in outcomes if isinstance(one, BaseException)]:
            raise error

    async def _create_once(self) -> None:
        partitions = self._random.choice((1, 3))
        found = self._driver.record(TEMPORARY)
        try:
            await self._driver.create_queue(TEMPORARY, {"partitions": partitions})
        except QueueExists:
            if found is not None:
                self._ledger.exists(TEMPORARY, found.created_at)
            raise
        record = self._ledger.durable.queue(TEMPORARY)
        self._ledger.administered("a new queue", record is not None)

    async def _delete(self) -> None:
        """Deleted to its end also if the caller gives up: the run fails if the name stays taken."""
        if self._mortal and self._random.random() < 0.3:  # deletions are rare: some are to meet the end of the process
            asyncio.get_running_loop().call_later(self._random.random() * 0.1, _cut)
        patience = self._random.choice((0.0, 0.001, 0.05, 10.0))
        async with asyncio.timeout(patience):
            await self._driver.delete_queue(TEMPORARY)

    async def _pause(self) -> None:
        queue = self._random.choice(QUEUES)
        await self._driver.update_queue(queue, {"paused": True})
        record = self._ledger.durable.queue(queue)
        self._ledger.administered("a pause", record is not None and record.config.paused)
        await asyncio.sleep(self._random.random())
        await self._driver.update_queue(queue, {"paused": False})

    async def _grow(self) -> None:
        queue = self._random.choice(QUEUES)
        record = self._ledger.written.queue(queue)
        wanted = (record.config.partitions if record is not None else 1) + 1
        if wanted <= 4:
            await self._driver.update_queue(queue, {"partitions": wanted})
            record = self._ledger.durable.queue(queue)
            self._ledger.administered("growth", record is not None and record.config.partitions >= wanted)

    async def _configure(self) -> None:
        await self._driver.update_queue(
            self._random.choice(QUEUES), {"max_depth": self._random.choice(DEPTHS[self._bounded])}
        )

    async def _purge(self) -> None:
        await self._driver.purge(self._queue())

    async def _group(self) -> None:
        queue, random = self._queue(), self._random
        name = f"g{random.randrange(3)}"
        found = self._driver.record(queue)
        group = None if found is None else found.group(name)
        cursor, earliest = random.random() < 0.3, random.random() < 0.5
        try:
            await self._driver.create_group(queue, name, cursor=cursor, earliest=earliest)
        except GroupExists:
            if found is not None and group is not None:
                self._ledger.exists(queue, found.created_at, group.number)
            raise
        record = self._ledger.durable.queue(queue)
        self._ledger.administered("a new group", record is not None and record.group(name) is not None)

    async def _change_kind(self) -> None:
        """A group of a queue that was deleted becomes one of another kind in a queue of the same name; who consumed in
        it is still there."""
        await self._driver.create_group(TEMPORARY, self._random.choice(GROUPS), cursor=True, earliest=True)

    async def _ungroup(self) -> None:
        await self._driver.delete_group(self._random.choice(QUEUES), f"g{self._random.randrange(3)}")

    async def _redrive(self) -> None:
        await self._driver.redrive(f"dlq/{self._random.choice(QUEUES)}")
