"""One queue on a memory store, for tests of what lies between the lines of a transcript: windows, bounds, restarts."""

from __future__ import annotations

from typing import TypeVar

from holdfast.core.commands import Command, Draft, Leased, Settlement, Verb
from holdfast.core.groups import LeaseGroup
from holdfast.core.queue import GroupKind
from holdfast.core.records import NO_EXTRA, Extra
from holdfast.core.shard import Shard
from holdfast.engine.catalog import Queue
from holdfast.engine.engine import Engine, Limits
from holdfast.engine.groups import create_group
from holdfast.engine.queues import create_queue
from holdfast.errors import HoldfastError
from holdfast.store.memory import MemoryDisk, MemoryStore

R = TypeVar("R")

NAME = ("default", "tasks")


class Bench:
    """A queue of one partition with a leasing group `g` unless the test says otherwise."""

    def __init__(self, groups: tuple[str, ...] = ("g",), hot_bytes: int = 1 << 20, **fields: object) -> None:
        self.now = 1_772_323_200_000_000
        self.disk = MemoryDisk()
        self.limits = Limits(hot_bytes=hot_bytes)
        self.reopen()
        create_queue(self.engine, NAME, {"partitions": 1, **fields}, self.now)
        for group in groups:
            self.add_group(group)

    def reopen(self) -> None:
        self.engine = Engine(MemoryStore(self.disk), cell=1, limits=self.limits)
        self.engine.open(self.now)

    @property
    def queue(self) -> Queue:
        return self.engine.queue(NAME, self.now)

    @property
    def shard(self) -> Shard:
        return self.queue.shards[0]

    @property
    def group(self) -> LeaseGroup:
        return self.shard.groups["g"]

    def add_group(self, name: str, kind: GroupKind = GroupKind.LEASE, earliest: bool = True, max_lag: int = 0) -> None:
        create_group(self.engine, NAME, name, kind, self.now, earliest, max_lag, 0)
        self.engine.write()

    def step(self, command: Command[R]) -> R:
        reply = self.engine.step(self.queue, self.shard, command, self.now)
        self.engine.write()
        return reply

    def enqueue(
        self, *payloads: str, key: str | None = None, priority: int = 128, delay: int = 0, ttl: int = -1
    ) -> list[int]:
        extra = NO_EXTRA if key is None else Extra(key=key)
        deliver_at = self.now + delay if delay else 0
        drafts = [Draft(payload.encode(), priority, deliver_at, ttl, extra) for payload in payloads]
        ids = self.engine.enqueue(NAME, drafts, "", self.now).ids
        self.engine.write()
        return ids

    def lease(self, limit: int = 1, group: str = "g", consumer: str = "") -> list[Leased]:
        found = self.engine.lease(NAME, group, limit, -1, consumer, "", self.now)
        self.engine.write()
        return found

    def settle(
        self, leased: list[Leased], verb: Verb = Verb.ACK, delay: int = -1, group: str = "g"
    ) -> list[int | HoldfastError | None]:
        settlements = [Settlement(item.message.id, item.token, verb, delay) for item in leased]
        results = self.engine.settle(NAME, group, settlements, self.now)
        self.engine.write()
        return results

    def advance(self, microseconds: int) -> None:
        self.now += microseconds
        self.engine.tick(self.now)
        self.engine.write()


def payloads(leased: list[Leased]) -> list[str]:
    return [item.message.payload.decode() for item in leased]
