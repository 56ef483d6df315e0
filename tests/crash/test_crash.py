"""SIGKILL at random moments under load: nothing confirmed is lost, nothing acked comes back, the journal has no hole.

One directory lives through all kills. After each, everything the process had confirmed is compared with what the node
says when it is opened again; at the end everything is drained and compared with the lake.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from holdfast.broker.node import Node, wall_clock
from holdfast.core.commands import Leased, Settlement
from holdfast.journal.verify import verify
from holdfast.units import MINUTE
from tests.crash.killing import kill_under_load
from tests.crash.load import GROUPS, config, open_data

KILLS = 22


class Facts:
    """What was confirmed before the kills, as the process said it."""

    def __init__(self) -> None:
        self.enqueued: dict[str, dict[str, str]] = {queue: {} for queue in GROUPS}
        self.acked: dict[tuple[str, str], set[str]] = {(q, g): set() for q, groups in GROUPS.items() for g in groups}
        self.delivered: dict[tuple[str, str], list[str]] = {key: [] for key in self.acked}

    def take(self, text: str) -> None:
        # The last line may be torn: it was being written when the process died.
        for line in text.splitlines(keepends=True):
            if not line.endswith("\n"):
                continue
            kind, *rest = line.split()
            if kind == "e":
                self.enqueued[rest[0]][rest[1]] = rest[2]
            elif kind == "a":
                self.acked[rest[0], rest[1]].add(rest[2])
            elif kind == "d":
                name = rest[2]
                assert name not in self.acked[rest[0], rest[1]], f"{name} came back after its ack"
                self.delivered[rest[0], rest[1]].append(name)


async def drain(path: Path, facts: Facts) -> None:
    """Open what is left, consume all of it, and account for every message."""
    store = open_data(path)
    node = Node(config(path), store, lambda: wall_clock() + MINUTE)  # the leases of those that were killed are over
    await node.start()
    ended: dict[tuple[str, str], set[str]] = {key: set() for key in facts.acked}
    for queue, groups in GROUPS.items():
        for group in groups:
            ended[queue, group] = await _empty(node, queue, group, facts)
    dead = await _dead_letters(node)
    await node.cell.export()
    lsn = node.cell.engine.record.next_lsn - 1
    await node.stop()
    store.close()
    for (queue, group), names in ended.items():
        for name in facts.enqueued[queue]:
            fates = (name in facts.acked[queue, group]) + (name in names) + ((queue, group, name) in dead)
            assert fates or _unconfirmed_end(path, queue, group, name), f"{name} is lost in {queue}/{group}"
            assert fates <= 1, f"{name} ended twice in {queue}/{group}"
    assert not [d for d, times in dead.items() if times > 1], "a dead letter was stored twice"
    _check_lake(path, lsn)


async def _empty(node: Node, queue: str, group: str, facts: Facts) -> set[str]:
    names: set[str] = set()
    last_of_key: dict[str, tuple[int, int]] = {}
    while True:
        leased = await node.messages.lease(
            ("default", queue), group, 1000, wait=500_000 if await _left(node, queue, group) else 0
        )
        if not leased:
            if await _left(node, queue, group):
                continue
            return names
        for item in leased:
            name = item.message.payload.decode()
            assert name not in facts.acked[queue, group], f"{name} was acked and came back"
            assert name not in names, f"{name} was delivered twice though acked"
            names.add(name)
            if queue == "keyed":
                _check_key_order(item, last_of_key)
        await node.messages.settle(
            ("default", queue),
            group,
            [Settlement(i.message.id, i.token, partition=i.partition) for i in leased],
        )


def _check_key_order(item: Leased, last: dict[str, tuple[int, int]]) -> None:
    key = item.message.extra.key
    assert key is not None
    assert last.get(key, (0, 0)) < (item.message.seq, 0), f"messages of key {key} out of order"
    last[key] = (item.message.seq, 0)


async def _left(node: Node, queue: str, group: str) -> int:
    stats = await node.inspection.stats(("default", queue))
    found = next(g for g in stats.groups if g.name == group)
    return found.ready + found.scheduled + found.leased


async def _dead_letters(node: Node) -> Counter[tuple[str, str, str]]:
    dead: Counter[tuple[str, str, str]] = Counter()
    for record in node.queues.in_namespace("default", prefix="dlq/"):
        cursor = ""
        while True:
            page = await node.inspection.browse(("default", record.name), 1000, cursor)
            for _, message, _ in page.messages:
                origin = message.extra.origin
                assert origin is not None
                dead[origin.source_queue, origin.source_group, message.payload.decode()] += 1
            cursor = page.cursor
            if not cursor:
                break
    return dead


_ENDS: dict[Path, set[tuple[str, str, str]]] = {}


def _unconfirmed_end(path: Path, queue: str, group: str, name: str) -> bool:
    """An ack that was made durable, but whose confirmation the process did not live to give: the journal knows it."""
    if path not in _ENDS:
        rows = pq.read_table(path / "lake" / "journal", columns=["event", "queue", "group", "message_id", "payload"])
        names = {
            row["message_id"]: row["payload"].decode()
            for row in rows.to_pylist()
            if row["event"] == "enqueued" and row["payload"] is not None
        }
        _ENDS[path] = {
            (row["queue"], row["group"], names[row["message_id"]])
            for row in rows.to_pylist()
            if row["event"] == "acked"
        }
    return (queue, group, name) in _ENDS[path]


def _check_lake(path: Path, lsn: int) -> None:
    assert verify(path / "lake") == []
    lsns = pq.read_table(path / "lake" / "journal", columns=["lsn"])["lsn"].to_pylist()
    assert sorted(lsns) == list(range(1, lsn + 1)), "the lake has a hole or a double"


async def test_kill_minus_nine_at_random_moments_loses_and_resurrects_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    record_property("seed", seed)
    dice = random.Random(seed)
    facts = Facts()
    for number in range(KILLS):
        facts.take(kill_under_load(tmp_path, seed + number, dice.randrange(100, 4_000), "tests.crash.load"))
    assert sum(map(len, facts.enqueued.values())) > 1000
    await drain(tmp_path, facts)
