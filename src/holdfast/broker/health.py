"""Whether the parts of a node work. The store is tried out when somebody asks; who ask at a time share one trial."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import HoldfastError
from holdfast.units import SECOND

if TYPE_CHECKING:
    from holdfast.broker.node import Node

PROBE_SECONDS = 5.0  # a sync that takes longer is no longer a store to rely on
PROBE_EVERY_SECONDS = 1.0  # asking more often syncs no more often: anybody may ask
LAG_EVERY_SECONDS = 0.5


class ComponentHealth(msgspec.Struct, frozen=True):
    """One part. `facts` are for people. `ready`: the node can do its work in spite of the problem."""

    name: str
    problem: str = ""
    facts: dict[str, object] = {}
    ready: bool = True


class LoopLag:
    """How late the event loop is: a timer that says when it was meant to ring."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.worst_seconds = 0.0
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + LAG_EVERY_SECONDS
        self._timer = loop.call_at(self._due, self._fire)

    def _fire(self) -> None:
        self.seconds = max(asyncio.get_running_loop().time() - self._due, 0.0)
        self.worst_seconds = max(self.worst_seconds, self.seconds)
        self.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Health:
    """The health of one node."""

    def __init__(self, node: Node) -> None:
        self.lag = LoopLag()
        self._node = node
        self._probed_at = -PROBE_EVERY_SECONDS
        self._probe: asyncio.Task[str] | None = None
        self._probe_result = ""

    async def parts(self) -> list[ComponentHealth]:
        """All parts, the store tried out."""
        return [await self._store(), self._disk(), self._loop(), self._journal(), self._webhooks()]

    async def _store(self) -> ComponentHealth:
        loop = asyncio.get_running_loop()
        if self._probe is None and loop.time() - self._probed_at >= PROBE_EVERY_SECONDS:
            self._probe = loop.create_task(self._probe_store())
        if self._probe is not None:
            await asyncio.shield(self._probe)
        commit = self._node.commit
        facts: dict[str, object] = {
            "kind": self._node.config.store.kind,
            "batches": commit.batches,
            "syncs": commit.syncs,
            "sync_seconds_mean": round(commit.sync_seconds / commit.syncs, 6) if commit.syncs else 0.0,
        }
        refusal = self._node.refusal
        problem = str(refusal) if refusal is not None else self._probe_result
        return ComponentHealth("store", problem, facts, not problem)

    async def _probe_store(self) -> str:
        """Have everything synced. What is wrong, or nothing."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._node.probe()
            self._probe_result = ""
        except TimeoutError:
            self._probe_result = f"a sync took more than {PROBE_SECONDS:g} s"
        except HoldfastError as error:
            self._probe_result = str(error)
        finally:
            self._probed_at = asyncio.get_running_loop().time()
            self._probe = None
        return self._probe_result

    def _disk(self) -> ComponentHealth:
        settings = self._node.config.store
        try:
            room = self._node.store.room()
        except HoldfastError as error:
            return ComponentHealth("disk", str(error), ready=False)
        facts: dict[str, object] = {"free_bytes": room, "min_free_bytes": settings.min_free_bytes}
        if room is not None and room < settings.min_free_bytes:
            return ComponentHealth("disk", f"{room} bytes are left, less than store.min_free_bytes", facts, False)
        return ComponentHealth("disk", facts=facts)

    def _loop(self) -> ComponentHealth:
        limit = self._node.config.node.max_loop_lag / SECOND
        lag = self.lag.seconds
        facts: dict[str, object] = {"lag_seconds": round(lag, 4), "worst_lag_seconds": round(self.lag.worst_seconds, 4)}
        late = lag > limit
        return ComponentHealth(
            "loop", f"it is {lag:.1f} s late, more than node.max_loop_lag" if late else "", facts, not late
        )

    def _journal(self) -> ComponentHealth:
        node = self._node
        limit = node.config.journal.max_behind
        behind = node.export_scheduler.behind
        facts: dict[str, object] = {"rows_behind": behind, "enabled": node.config.journal.enabled}
        problem = node.export_scheduler.failed
        if behind > limit:
            problem = f"{behind} rows are not exported yet, more than journal.max_behind. {problem}".rstrip()
        return ComponentHealth("journal", problem, facts, behind <= limit)

    def _webhooks(self) -> ComponentHealth:
        counters = self._node.webhooks.counters
        return ComponentHealth("webhooks", facts={"waiting": counters.waiting, "dropped": counters.dropped})
