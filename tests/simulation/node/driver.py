"""The node under simulation: how it is built, and every call that actors make to it. No other file knows its API."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from holdfast.auth.gate import Gate
from holdfast.broker.enqueue_batcher import EnqueueBatcher
from holdfast.broker.node import Node
from holdfast.broker.parts.messages import Receipt
from holdfast.broker.parts.subscriptions import Subscription
from holdfast.broker.submission import Moment
from holdfast.broker.webhooks import Webhooks
from holdfast.config import Config
from holdfast.config.audit_settings import AuditSettings
from holdfast.config.settings import JournalSettings, MqttSettings, NodeSettings
from holdfast.config.store_settings import StoreSettings
from holdfast.core.commands import CursorRange, Draft, Leased, Settlement
from holdfast.core.queue import Durability, GroupKind, QueueRecord
from holdfast.core.transactions import TransactionName
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError, StoreError
from holdfast.mqtt.net import MqttFront
from tests.simulation.node.loop import SimulatedLoop
from tests.simulation.node.store import SimulatedStore

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")

NAMESPACE = "default"
SECOND = 1_000_000
START = 1_780_000_000 * SECOND


class Enqueued(NamedTuple):
    """An answered enqueue."""

    ids: list[int]
    duplicates: dict[int, int]
    errors: dict[int, HoldfastError]
    durable: bool


class Settled(NamedTuple):
    """An answered settle."""

    results: list[int | HoldfastError | None]
    durable: bool


class Driver:
    """One process: a node with its MQTT front and an HTTP batcher, on one store."""

    def __init__(self, loop: SimulatedLoop, store: SimulatedStore, *, sync_in_place: bool, segment_age: int) -> None:
        self._loop = loop
        config = Config(
            node=NodeSettings(data_dir=Path("/nonexistent")),
            journal=JournalSettings(enabled=False, segment_age=segment_age, segment_rows=500),
            store=StoreSettings(sync_in_place_max=SECOND if sync_in_place else 0, min_free_bytes=1 << 20),
            mqtt=MqttSettings(listen="127.0.0.1:1883", keep_alive_max=0),
            audit=AuditSettings(enabled=False),
        )
        webhooks = Webhooks(config.webhooks, lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        self.node = Node(config, store, self.clock, webhooks)
        self.failures: list[HoldfastError] = []
        self.torn: list[str] = []  # what was written in the middle of
        self._disk = store.disk
        self.mqtt = MqttFront(config, self.node, Gate(config, self.clock))
        self.batcher = EnqueueBatcher(self.node, "http")

    def clock(self) -> int:
        return START + round(self._loop.time() * SECOND)

    async def start(self) -> None:
        await self.node.start()
        commit = self.node.cell.commit
        failed = commit._on_failure

        def on_failure(error: StoreError) -> None:
            self.failures.append(error)
            failed(error)

        commit._on_failure = on_failure
        await self.mqtt.start()
        self.node.cell.participants.append(self.batcher)
        self.mqtt.collect_ops = self._whole("a turn of MQTT", self.mqtt.collect_ops)  # type: ignore[method-assign]
        self.batcher.collect_ops = self._whole("a turn of HTTP", self.batcher.collect_ops)  # type: ignore[method-assign]

    def _whole(self, what: str, unit: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
        """What is stored by this is one write: nothing may be written in the middle of it, where a crash would tear
        it."""

        def whole(*args: _Args.args, **named: _Args.kwargs) -> _Result:
            before = self._disk.writes
            result = unit(*args, **named)
            if self._disk.writes > before:
                self.torn.append(what)
            return result

        return whole

    async def stop(self) -> None:
        await self.mqtt.stop()
        await self.node.stop()

    @property
    def ended(self) -> HoldfastError | None:
        """Why the process would end by itself."""
        broken = self.node.cell.broken
        return broken.result() if broken is not None and broken.done() else None

    # --- messages ---------------------------------------------------------------------------------------------------

    async def enqueue(self, queue: str, drafts: Sequence[Draft], *, atomic: bool = False) -> Enqueued:
        enqueue = self._whole("an enqueue", self.node.messages.enqueue)
        submission = enqueue((NAMESPACE, queue), drafts, "sim", atomic=atomic)
        return _enqueued(await submission)

    def enqueue_with_callback(self, queue: str, drafts: Sequence[Draft], done: Callable[[Enqueued], None]) -> None:
        """Enqueue; `done` is called inside the turn that makes it good."""
        submission = self.node.messages.enqueue((NAMESPACE, queue), drafts, "sim")
        submission.on_done(lambda error: done(_enqueued(submission.result)) if error is None else None)

    def enqueue_in_batcher(
        self, queue: str, drafts: list[Draft], done: Callable[[Enqueued | HoldfastError], None]
    ) -> None:
        self.batcher.add((NAMESPACE, queue), _Pending(drafts, done))

    async def lease(
        self, queue: str, group: str, limit: int, *, wait: int, lease_timeout: int, consumer: str
    ) -> list[Leased]:
        return await self.node.messages.lease(
            (NAMESPACE, queue), group, limit, wait=wait, timeout=lease_timeout, consumer=consumer, protocol="sim"
        )

    async def settle(self, queue: str, group: str, settlements: list[Settlement]) -> Settled:
        settle = self._whole("a settlement", self.node.messages.settle)
        submission = settle((NAMESPACE, queue), group, settlements)
        return Settled(await submission, submission.moment is Moment.DURABLE)

    async def acknowledge(self, queue: str, group: str, leased: list[Leased]) -> Settled:
        return await self.settle(queue, group, [Settlement(item.message.id, item.token) for item in leased])

    async def put_state(self, queue: str, group: str, leased: Leased, data: bytes) -> int:
        state = await self.node.workflow_state.put((NAMESPACE, queue), group, leased.message.id, leased.token, data)
        return state.etag

    async def join(
        self, queue: str, group: str, member: str, deliver: Callable[[list[Leased]], None], credit: int
    ) -> Subscription:
        name = (NAMESPACE, queue)
        return await self.node.subscriptions.join(name, group, member, deliver, credit=credit, protocol="sim")

    # --- cursors and transactions -----------------------------------------------------------------------------------

    async def read(self, queue: str, group: str, partition: int, limit: int) -> CursorRange:
        return await self.node.cursors.read((NAMESPACE, queue), group, partition, limit=limit)

    async def commit(self, queue: str, group: str, partition: int, seq: int) -> None:
        await self.node.cursors.commit((NAMESPACE, queue), group, partition, seq)

    async def stage(self, transaction: str, queue: str, drafts: list[Draft]) -> None:
        await self.node.transactions.stage(TransactionName(NAMESPACE, transaction), [(queue, drafts)])

    async def publish(self, transaction: str) -> None:
        await self.node.transactions.publish(TransactionName(NAMESPACE, transaction))

    # --- administration ---------------------------------------------------------------------------------------------

    def record(self, queue: str) -> QueueRecord | None:
        """A queue as it is in memory, durable or not."""
        engine = self.node.cell.open_engine
        return None if engine is None else engine.catalog.record((NAMESPACE, queue))

    async def create_queue(self, queue: str, fields: Mapping[str, object]) -> None:
        await self.node.queues.create((NAMESPACE, queue), fields)

    async def update_queue(self, queue: str, fields: Mapping[str, object]) -> None:
        await self.node.queues.update((NAMESPACE, queue), fields)
        await self.node.queues.grown((NAMESPACE, queue))

    async def delete_queue(self, queue: str) -> None:
        await self.node.queues.delete((NAMESPACE, queue))

    async def purge(self, queue: str) -> None:
        await self.node.queues.purge((NAMESPACE, queue))

    async def create_group(self, queue: str, group: str, *, cursor: bool, earliest: bool) -> None:
        kind = GroupKind.CURSOR if cursor else GroupKind.LEASE
        await self.node.groups.create((NAMESPACE, queue), group, kind, earliest=earliest)

    async def delete_group(self, queue: str, group: str) -> None:
        await self.node.groups.delete((NAMESPACE, queue), group)

    async def redrive(self, queue: str) -> None:
        async for _ in self.node.dead_letters.redrive((NAMESPACE, queue)):
            pass


def _enqueued(receipt: Receipt) -> Enqueued:
    return Enqueued(receipt.ids, receipt.duplicates, receipt.errors, receipt.durability is Durability.FSYNC)


class _Pending:
    """A request in the HTTP batcher."""

    def __init__(self, drafts: list[Draft], done: Callable[[Enqueued | HoldfastError], None]) -> None:
        self.drafts = drafts
        self._done = done
        self._enqueued = Enqueued([], {}, {}, durable=True)

    def enqueued(self, receipt: Receipt) -> bool:
        self._enqueued = _enqueued(receipt)
        return True

    def on_done(self, error: HoldfastError | None) -> None:
        self._done(self._enqueued if error is None else error)


@contextmanager
def before_steps(*calls: Callable[[], None]) -> Iterator[None]:
    """Have these called before every step of a shard."""
    right = Engine.step

    def step(*args: Any) -> Any:
        for call in calls:
            call()
        return right(*args)

    Engine.step = step  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Engine.step = right  # type: ignore[method-assign]
