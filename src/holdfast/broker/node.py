"""The running node: one cell, and the parts through which fronts use it.

A part is a small class with an explicit constructor: `node.messages.enqueue(...)`, `node.queues.create(...)`. Every
call is for a batch. A call that changes something applies it and returns a `Submission`, to be awaited or given a
callback (submission.py), or raises why it is refused. Long work (deleting a queue, publishing a transaction) is a
coroutine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.backup.source import Lake
from holdfast.broker.backups import Backups
from holdfast.broker.cell import Cell, plain_engine
from holdfast.broker.front_metrics import MetricSource
from holdfast.broker.health import Health
from holdfast.broker.lake_reader import LakeReads
from holdfast.broker.lookout.lake_size import LakeMeter
from holdfast.broker.parts.cursors import Cursors
from holdfast.broker.parts.dead_letters import DeadLetters
from holdfast.broker.parts.groups import Groups
from holdfast.broker.parts.inspection import Inspection
from holdfast.broker.parts.messages import Messages
from holdfast.broker.parts.queue_notes import QueueNotes
from holdfast.broker.parts.queues import Queues
from holdfast.broker.parts.quotas import NamespaceQuotas
from holdfast.broker.parts.redrive_jobs import RedriveJobs
from holdfast.broker.parts.requests import Requests
from holdfast.broker.parts.schedules import Schedules
from holdfast.broker.parts.subscriptions import Subscriptions
from holdfast.broker.parts.transactions import Transactions
from holdfast.broker.parts.workers import AnnouncedProcesses
from holdfast.broker.parts.workflow_state import WorkflowStates
from holdfast.broker.snapshots import Snapshots
from holdfast.broker.webhooks import Webhooks
from holdfast.config import Config
from holdfast.errors import InvalidConfig
from holdfast.store.contract import Store

if TYPE_CHECKING:
    from holdfast.broker.tracing import Tracing


def wall_clock() -> int:
    """Now, in epoch microseconds."""
    return time.time_ns() // 1000


def _tracing(config: Config, clock: Callable[[], int]) -> Tracing | None:
    if not config.tracing.enabled:
        return None
    try:
        from holdfast.broker.tracing import Tracing  # noqa: PLC0415 - most servers neither need nor have its libraries
    except ImportError as error:
        problem = f'it needs OpenTelemetry, and {error.name} is not installed (pip install "holdfast[otel]")'
        raise InvalidConfig(field="tracing.enabled", value=True, problem=problem) from None
    return Tracing(config, clock)


class Node:
    """See the module."""

    def __init__(
        self,
        config: Config,
        store: Store,
        clock: Callable[[], int] = wall_clock,
        webhooks: Webhooks | None = None,
    ) -> None:
        limits, node_id = config.limits, config.node.node_id
        self.config = config
        self.store = store
        self.clock = clock
        self.started_at = 0
        self.metric_sources: list[MetricSource] = []
        self.webhooks = webhooks or Webhooks(config.webhooks)
        self.tracing = _tracing(config, clock)
        new_engine = plain_engine if self.tracing is None else self.tracing.engine
        self.cell = cell = Cell(config, store, clock, self.webhooks.offer, new_engine)
        self.messages = Messages(cell, limits)
        self.queues = Queues(cell)
        self.queue_notes = QueueNotes(cell)
        self.groups = Groups(cell)
        self.cursors = Cursors(cell, limits)
        self.subscriptions = Subscriptions(cell, config.members)
        self.dead_letters = DeadLetters(cell)
        self.redrive_jobs = RedriveJobs(cell, self.queues, self.dead_letters, limits.max_redrives)
        self.transactions = Transactions(cell, limits.enqueue_max)
        self.schedules = Schedules(cell)
        self.workers = AnnouncedProcesses(clock)
        self.quotas = NamespaceQuotas(cell, self.transactions, self.redrive_jobs)
        self.workflow_state = WorkflowStates(cell, limits.state_bytes)
        self.requests = Requests(self.messages, self.queues, self.subscriptions, node_id, limits.max_waiters)
        self.inspection = Inspection(cell, limits, LakeReads(config), config.lake_dir / "journal")
        self.health = Health(config, cell, self.webhooks)
        self.lake_meter = LakeMeter(config.lake_dir)
        lake = Lake(config.lake_dir / "journal", node_id)
        self.backups = Backups(store, lake, config.node.data_dir / "backups-under-way", clock)
        self.snapshots = Snapshots(store, config.node.data_dir / "snapshots", node_id, clock)
        cell.on_request_failed = self.requests.fail
        cell.on_opened += [self.queue_notes.load, self.quotas.load, self.queues.resume, self.transactions.resume]

    async def start(self) -> None:
        """Open what is stored and take calls."""
        self.started_at = self.clock()
        self.snapshots.clear()
        self.backups.clear()
        self.health.lag.start()
        await self.webhooks.start()
        await self.cell.start()
        self.redrive_jobs.resume()

    async def stop(self) -> None:
        """Refuse new work, end long polls, release what push members hold, make everything durable, close."""
        await self.backups.stop()
        await self.redrive_jobs.stop()
        self.requests.stop()
        self.health.lag.stop()
        self.lake_meter.stop()
        await self.cell.stop()
        await self.webhooks.stop()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)
