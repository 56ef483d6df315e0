"""A node that publishes transactions and reads logs, to be killed.

Transactions are staged by parts, with attempts that do not count and chunks that are sent twice, and are published in
many small steps. What happened goes to standard output, as in load.py:

    b TRANSACTION COUNT         COUNT messages are staged that will count; publishing begins
    p TRANSACTION               it was confirmed
    r QUEUE PARTITION SEQ NAME  a reader of the log was shown NAME there
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import structlog
import uvloop

from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.settings import JournalSettings, NodeSettings, TransactionSettings
from holdfast.core.commands import Draft
from holdfast.core.queue import GroupKind
from holdfast.core.records import Extra
from holdfast.core.transactions import TransactionName
from holdfast.store import open_store
from tests.crash.load import Lines

QUEUES = ("left", "right")
PARTITIONS = 3
READER, AUDIT = "reader", "audit"


def config(path: Path) -> Config:
    return Config(
        node=NodeSettings(data_dir=path),
        journal=JournalSettings(segment_age=150_000, segment_rows=20_000),
        transactions=TransactionSettings(step_messages=40),
    )


async def publish(node: Node, dice: random.Random, lines: Lines, prefix: str) -> None:
    number = 0
    while True:
        number += 1
        name = TransactionName("default", f"{prefix}-{number}")
        parts: dict[str, str] = {}
        count = 0
        for part in range(dice.randint(1, 4)):
            staged = 0
            for attempt in range(dice.randint(1, 2)):
                staged = await _stage_part(node, dice, name, str(part), str(attempt))
                parts[str(part)] = str(attempt)
            count += staged
        lines.write([f"b {name[1]} {count}"])
        await node.transactions.publish(name, parts)
        lines.write([f"p {name[1]}"])


async def _stage_part(node: Node, dice: random.Random, name: TransactionName, part: str, attempt: str) -> int:
    count = 0
    for chunk in range(dice.randint(1, 4)):
        batches = []
        for queue in QUEUES:
            names = [f"{name[1]}/{part}/{attempt}/{chunk}/{queue}/{n}" for n in range(dice.randint(0, 30))]
            batches.append((queue, [Draft(text.encode(), extra=Extra(key=f"k{dice.randint(0, 9)}")) for text in names]))
            count += len(names)
        for _ in range(dice.choice((1, 1, 2))):  # an answer that was lost: the same chunk again
            await node.transactions.stage(name, batches, part=part, attempt=attempt, chunk=chunk)
    return count


async def read(node: Node, queue: str, dice: random.Random, lines: Lines) -> None:
    name = ("default", queue)
    while True:
        for end in await node.cursors.ends(name, READER):
            found = await node.cursors.read(name, READER, end.partition, limit=dice.randint(1, 200))
            lines.write([f"r {queue} {end.partition} {m.seq} {m.payload.decode()}" for m in found.messages])
            await node.cursors.commit(name, READER, end.partition, found.next_seq - 1)
        await asyncio.sleep(0.001)


async def run(path: Path, seed: int) -> None:
    store = open_store("rocks", path / "store", write_buffer_bytes=2 << 20)
    node = Node(config(path), store)
    await node.start()
    existing = {record.name for record in node.queues.in_namespace("default")}
    for queue in QUEUES:
        if queue not in existing:
            await node.queues.create(("default", queue), {"partitions": PARTITIONS, "max_depth": 0})
        for group in (READER, AUDIT):
            if node.queues.get(("default", queue)).group(group) is None:
                await node.groups.create(("default", queue), group, GroupKind.CURSOR, earliest=True)
    lines = Lines()
    dice = random.Random(seed)
    lines.write(["ready"])
    async with asyncio.TaskGroup() as tasks:
        for producer in range(3):
            tasks.create_task(publish(node, random.Random(dice.random()), lines, f"{os.getpid()}-{producer}"))
        for queue in QUEUES:
            tasks.create_task(read(node, queue, random.Random(dice.random()), lines))


def main(path: Path, seed: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(path, seed))
