"""Whether the components of a node work. A query probes the store; concurrent queries share one probe."""

from __future__ import annotations

import asyncio
import math

import msgspec

from holdfast.broker.cell import Cell
from holdfast.broker.webhooks import Webhooks
from holdfast.config import Config
from holdfast.errors import HoldfastError
from holdfast.units import SECOND

PROBE_SECONDS = 5.0  # a store whose sync takes longer is not healthy
PROBE_EVERY_SECONDS = 1.0  # more frequent queries do not sync more often: they need no credentials
LAG_EVERY_SECONDS = 0.5
FULL_SOON_SECONDS = 24 * 3600.0  # the time that people need to make room


class ComponentHealth(msgspec.Struct, frozen=True):
    """One component. `facts` are for people. `ready`: the node can do its work in spite of the problem."""

    name: str
    problem: str = ""
    facts: dict[str, object] = {}
    ready: bool = True


class LoopLag:
    """How late the event loop is: the delay of a timer that fires regularly."""

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

    def __init__(self, config: Config, cell: Cell, webhooks: Webhooks) -> None:
        self.lag = LoopLag()
        self._config = config
        self._cell = cell
        self._webhooks = webhooks
        self._probed_at = -PROBE_EVERY_SECONDS
        self._probe: asyncio.Task[str] | None = None
        self._probe_result = ""

    async def components(self) -> list[ComponentHealth]:
        """All components; the store is probed."""
        return [await self._store(), self._disk(), self._loop(), self._journal(), self._lake(), self._alerts()]

    async def _store(self) -> ComponentHealth:
        loop = asyncio.get_running_loop()
        if self._probe is None and loop.time() - self._probed_at >= PROBE_EVERY_SECONDS:
            self._probe = loop.create_task(self._probe_store())
        if self._probe is not None:
            await asyncio.shield(self._probe)
        commit = self._cell.commit
        facts: dict[str, object] = {
            "kind": self._config.store.kind,
            "batches": commit.batches,
            "syncs": commit.syncs,
            "sync_seconds_mean": round(commit.sync_seconds / commit.syncs, 6) if commit.syncs else 0.0,
        }
        refusal = self._cell.refusal
        problem = str(refusal) if refusal is not None else self._probe_result
        return ComponentHealth("store", problem, facts, not problem)

    async def _probe_store(self) -> str:
        """Have everything synced. Returns what is wrong, or an empty text."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._cell.probe()
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
        settings = self._config.store
        try:
            room = self._cell.store.room()
        except HoldfastError as error:
            return ComponentHealth("disk", str(error), ready=False)
        facts: dict[str, object] = {"free_bytes": room, "min_free_bytes": settings.min_free_bytes}
        if room is not None and room < settings.min_free_bytes:
            return ComponentHealth("disk", f"{room} bytes are left, less than store.min_free_bytes", facts, False)
        return ComponentHealth("disk", facts=facts)

    def _loop(self) -> ComponentHealth:
        limit = self._config.node.max_loop_lag / SECOND
        lag = self.lag.seconds
        facts: dict[str, object] = {"lag_seconds": round(lag, 4), "worst_lag_seconds": round(self.lag.worst_seconds, 4)}
        late = lag > limit
        return ComponentHealth(
            "loop", f"it is {lag:.1f} s late, more than node.max_loop_lag" if late else "", facts, not late
        )

    def _journal(self) -> ComponentHealth:
        journal, scheduler = self._config.journal, self._cell.export_scheduler
        behind = scheduler.behind
        facts: dict[str, object] = {"rows_behind": behind, "enabled": journal.enabled}
        problem = scheduler.failed
        if behind > journal.max_behind:
            problem = f"{behind} rows are not exported yet, more than journal.max_behind. {problem}".rstrip()
        return ComponentHealth("journal", problem, facts, behind <= journal.max_behind)

    def _lake(self) -> ComponentHealth:
        """A lake that fills its disk is told of in time; the node works on meanwhile."""
        lake = self._cell.export_scheduler.lake
        facts: dict[str, object] = {
            "journal_bytes": lake.journal_bytes,
            "free_bytes": lake.free_bytes,
            "removed_bytes": lake.removed_bytes,
        }
        problems = [f"old segments stay: {lake.waits_for}"] if lake.waits_for else []
        if lake.full_seconds < math.inf:
            facts["full_in_seconds"] = round(lake.full_seconds)
            if lake.full_seconds < FULL_SOON_SECONDS:
                problems.append(f"its disk will be full in {lake.full_seconds / 3600:.0f} h if it goes on like this")
        return ComponentHealth("lake", "; ".join(problems), facts)

    def _alerts(self) -> ComponentHealth:
        counters = self._webhooks.counters
        return ComponentHealth("webhooks", facts={"waiting": counters.waiting, "dropped": counters.dropped})
