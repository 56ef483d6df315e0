"""A node under load, to be killed.

Producers and consumers run as fast as they can. What the node confirmed goes to standard output, one line each, written
only after the confirmation and at once. A line that is there was confirmed; what is not there may or may not have
happened. The parent kills this process at a random moment and checks the directory against the lines.

    e QUEUE NAME KEY    enqueue of NAME confirmed
    d QUEUE GROUP NAME  NAME was delivered (written before it is settled)
    a QUEUE GROUP NAME  ack of NAME confirmed
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
from holdfast.config.settings import JournalSettings, NodeSettings
from holdfast.core.commands import Draft, Settlement, Verb
from holdfast.core.records import Extra
from holdfast.store import Remote, Store, open_store
from tests.waiting import PATIENCE_SECONDS

QUEUES: dict[str, dict[str, object]] = {
    "keyed": {"partitions": 4, "max_depth": 0, "retry.initial_backoff": "2ms", "retry.max_backoff": "20ms"},
    "plain": {"partitions": 2, "ordering": "none", "max_depth": 0, "retry.max_retries": 1, "retry.initial_backoff": 0},
    "strict": {"ordering": "strict", "max_depth": 0, "retry.initial_backoff": 0},
}
DEPTH = 1_500
GROUPS = {"keyed": ("one", "two"), "plain": ("one",), "strict": ("one",)}


class Lines:
    """Confirmed facts, out of the process as soon as they are known: a pipe keeps them when the process dies."""

    def write(self, lines: list[str]) -> None:
        data = "".join(line + "\n" for line in lines).encode()
        while data:
            data = data[os.write(1, data) :]


def open_data(path: Path) -> Store:
    """The store of a directory: in the database that its file `url` names, or else embedded."""
    url = path / "url"
    if not url.exists():
        return open_store("rocks", path / "store", write_buffer_bytes=2 << 20)
    remote = Remote(url.read_text(), read_timeout_seconds=PATIENCE_SECONDS, patience_seconds=PATIENCE_SECONDS)
    return open_store("postgres", path / "store", remote=remote)


def config(path: Path) -> Config:
    return Config(
        node=NodeSettings(data_dir=path),
        journal=JournalSettings(segment_age=150_000, segment_rows=20_000),
    )


async def produce(node: Node, queue: str, dice: random.Random, lines: Lines) -> None:
    number = 0
    while True:
        while (await node.inspection.stats(("default", queue))).depth > DEPTH:  # noqa: ASYNC110 - a producer that has no event
            # So that draining what is left at the end takes seconds, not minutes.
            await asyncio.sleep(0.002)
        names = [f"{os.getpid()}-{queue}-{dice.getrandbits(32):08x}-{number + n}" for n in range(dice.randint(1, 40))]
        number += len(names)
        keys = [f"k{dice.randint(0, 99)}" if queue == "keyed" else "" for _ in names]
        drafts = [
            Draft(name.encode(), extra=Extra(key=key or None, message_id=name if dice.random() < 0.2 else None))
            for name, key in zip(names, keys, strict=True)
        ]
        receipt = await node.messages.enqueue(("default", queue), drafts)
        lines.write(
            [f"e {queue} {name} {key or '-'}" for name, key, i in zip(names, keys, receipt.ids, strict=True) if i]
        )


async def consume(node: Node, queue: str, group: str, dice: random.Random, lines: Lines) -> None:
    while True:
        leased = await node.messages.lease(
            ("default", queue), group, dice.randint(1, 50), wait=1_000_000, consumer=f"c-{group}"
        )
        lines.write([f"d {queue} {group} {item.message.payload.decode()}" for item in leased])
        settlements = [
            Settlement(item.message.id, item.token, _verb(dice), partition=item.partition, error="no")
            for item in leased
        ]
        results = await node.messages.settle(("default", queue), group, settlements)
        lines.write(
            [
                f"a {queue} {group} {item.message.payload.decode()}"
                for item, settlement, result in zip(leased, settlements, results, strict=True)
                if settlement.verb is Verb.ACK and result is None
            ]
        )


def _verb(dice: random.Random) -> Verb:
    return dice.choices([Verb.ACK, Verb.NACK, Verb.RELEASE, Verb.REJECT], [90, 6, 3, 1])[0]


async def run(path: Path, seed: int) -> None:
    store = open_data(path)
    node = Node(config(path), store)
    await node.start()
    lines = Lines()
    dice = random.Random(seed)
    existing = {record.name for record in node.queues.in_namespace("default")}
    for queue, fields in QUEUES.items():
        if queue not in existing:
            await node.queues.create(("default", queue), fields)
        for group in GROUPS[queue]:
            if node.queues.get(("default", queue)).group(group) is None:
                await node.groups.create(("default", queue), group, earliest=True)
    lines.write(["ready"])
    async with asyncio.TaskGroup() as tasks:
        for queue in QUEUES:
            tasks.create_task(produce(node, queue, random.Random(dice.random()), lines))
            for group in GROUPS[queue]:
                for _ in range(2):
                    tasks.create_task(consume(node, queue, group, random.Random(dice.random()), lines))


def main(path: Path, seed: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(path, seed))
