"""What clients know of a server that is killed again and again, and what must be true of its data at the end.

A message is named `queue:key:number`; the numbers of a key count up. Everything that was confirmed must be delivered in
every group, nothing whose ack was confirmed may come back, the messages of a key come one after another, and the
journal has no hole.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from holdfast.broker.node import Node, wall_clock
from holdfast.config import Config
from holdfast.config.settings import JournalSettings, NodeSettings
from holdfast.core.commands import Settlement
from holdfast.journal.verify import verify
from holdfast.store import open_store
from holdfast.units import MINUTE

SPACE = "default"
ACKED_MIN = 200
"""Fewer confirmed acks than these show little."""


class Facts:
    """See the module."""

    def __init__(self, producers: tuple[str, ...], groups: tuple[str, ...]) -> None:
        self.groups = groups
        self.next: Counter[tuple[str, int]] = Counter()
        self.unconfirmed: dict[str, dict[str, None]] = {producer: {} for producer in producers}
        self.enqueued: set[str] = set()
        self.settled: dict[str, set[str]] = {group: set() for group in groups}  # an ack was sent
        self.acked: dict[str, set[str]] = {group: set() for group in groups}  # and confirmed, where acks are
        self.deliveries = 0

    def new(self, producer: str, queue: str, keys: range, dice: random.Random) -> str:
        """The next message of some key. Of one key only one producer sends."""
        key = dice.choice(keys)
        number = self.next[queue, key]
        self.next[queue, key] += 1
        name = f"{queue}:{key}:{number}"
        self.unconfirmed[producer][name] = None
        return name

    def confirmed(self, producer: str, name: str) -> None:
        self.enqueued.add(name)
        del self.unconfirmed[producer][name]

    def delivered(self, group: str, name: str) -> None:
        self.deliveries += 1
        assert name not in self.acked[group], f"{name} came back after its ack was confirmed"
        queue, key, number = name.split(":")
        if int(number):
            before = f"{queue}:{key}:{int(number) - 1}"
            assert before in self.settled[group], f"{name} came before {before} was settled in {group}"

    def events(self) -> int:
        """How much has happened."""
        return len(self.enqueued) + sum(map(len, self.acked.values())) + self.deliveries

    def rounds(self, at_least: int, *groups: str) -> Iterator[int]:
        """Numbers of rounds. A busy machine takes more of them, until these groups have acked enough."""
        for number in range(5 * at_least):
            if number >= at_least and min(len(self.acked[group]) for group in groups) > ACKED_MIN:
                return
            yield number

    @property
    def backlog(self) -> int:
        return len(self.enqueued) - min(map(len, self.settled.values()))


async def drain(path: Path, queues: tuple[str, ...], facts: Facts) -> int:
    """Open what is left, ack all of it, and export. Returns the last lsn."""
    store = open_store("rocks", path / "data" / "store")
    config = Config(node=NodeSettings(data_dir=path / "data"), journal=JournalSettings(segment_age=3_600_000_000))
    node = Node(config, store, lambda: wall_clock() + MINUTE)  # the leases of those that were killed are over
    await node.start()
    for queue in queues:
        for group in facts.groups:
            await _empty(node, queue, group, facts)
        while node.inspection.current_stats((SPACE, queue)).depth:  # noqa: ASYNC110 - it goes down by itself
            await asyncio.sleep(0.005)
    await node.cell.export()
    lsn = node.cell.engine.record.next_lsn - 1
    await node.stop()
    store.close()
    return lsn


async def _empty(node: Node, queue: str, group: str, facts: Facts) -> None:
    while True:
        stats = next(one for one in node.inspection.current_stats((SPACE, queue)).groups if one.name == group)
        if not stats.ready + stats.scheduled + stats.leased:
            return
        leased = await node.messages.lease((SPACE, queue), group, 1000, wait=200_000)
        for item in leased:
            name = item.message.payload.decode()
            facts.delivered(group, name)
            facts.settled[group].add(name)
        settlements = [Settlement(item.message.id, item.token, partition=item.partition) for item in leased]
        await node.messages.settle((SPACE, queue), group, settlements)


def check_lake(path: Path, facts: Facts, lsn: int) -> None:
    """Every message was stored once and acked once in each group, by the journal."""
    lake = path / "data" / "lake"
    assert verify(lake) == []
    columns = ["lsn", "event", "queue", "group", "message_id", "payload"]
    rows = pq.read_table(lake / "journal", columns=columns).to_pylist()
    assert sorted(row["lsn"] for row in rows) == list(range(1, lsn + 1)), "the lake has a hole or a double"
    names = {row["message_id"]: row["payload"].decode() for row in rows if row["event"] == "enqueued"}
    stored = Counter(names.values())
    assert facts.enqueued <= set(stored), "a confirmed message was not stored"
    assert set(stored.values()) == {1}, "a message was stored twice though it had its message-id"
    acked = Counter((row["group"], names[row["message_id"]]) for row in rows if row["event"] == "acked")
    assert set(acked.values()) == {1}, "a message was acked twice in a group"
    assert set(acked) == {(group, name) for group in facts.groups for name in stored}
