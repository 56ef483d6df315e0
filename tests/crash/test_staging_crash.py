"""SIGKILL while transactions are published and logs are read: all of a transaction or nothing, once, in one place."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from holdfast.broker.node import Node
from holdfast.core.transactions import TransactionName, TransactionState
from holdfast.errors import TransactionNotFound
from holdfast.store import open_store
from tests.crash.killing import kill_under_load
from tests.crash.staging import AUDIT, PARTITIONS, QUEUES, config

KILLS = 6

Place = tuple[str, int, int]


async def everything(node: Node) -> dict[Place, str]:
    """All that was ever published: the audit group has committed nothing."""
    found: dict[Place, str] = {}
    for queue in QUEUES:
        for partition in range(PARTITIONS):
            at = 0
            while True:
                page = await node.cursors.read(("default", queue), AUDIT, partition, at, 10_000)
                found |= {(queue, partition, m.seq): m.payload.decode() for m in page.messages}
                if page.next_seq >= page.high:
                    break
                at = page.next_seq
    return found


def by_transaction(found: dict[Place, str]) -> Counter[str]:
    return Counter(name.split("/")[0] for name in found.values())


async def test_a_killed_node_publishes_all_of_a_transaction_or_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    record_property("seed", seed)
    dice = random.Random(seed)
    begun: dict[str, int] = {}
    confirmed: set[str] = set()
    read: dict[Place, str] = {}
    for number in range(KILLS):
        said = kill_under_load(tmp_path, seed + number, dice.randrange(50, 400), "tests.crash.staging")
        for line in said.splitlines(keepends=True):
            match line.split() if line.endswith("\n") else []:
                case ["b", name, count]:
                    begun[name] = int(count)
                case ["p", name]:
                    confirmed.add(name)
                case ["r", queue, partition, seq, name]:
                    place = (queue, int(partition), int(seq))
                    assert read.setdefault(place, name) == name, f"{place} was {read[place]} and is {name}"
    assert confirmed, "nothing was published: there was nothing to kill"
    store = open_store("rocks", tmp_path / "store")
    node = Node(config(tmp_path), store)
    await node.start()
    for name in begun:
        try:
            view = await node.transactions.get(TransactionName("default", name))
        except TransactionNotFound:
            assert name not in confirmed, f"{name} was confirmed and is not known"
            continue
        if view.state is not TransactionState.OPEN:  # the decision was stored: it is moved to its end
            assert (await node.transactions.publish(TransactionName("default", name))).repeated
            confirmed.add(name)
    found = await everything(node)
    names = Counter(found.values())
    assert not [name for name, times in names.items() if times > 1], "a message was published twice"
    counts = by_transaction(found)
    assert counts == {name: begun[name] for name in confirmed if begun[name]}
    for place, name in read.items():
        assert found[place] == name, f"{place} was read as {name} and is {found[place]}"
    for name in confirmed:
        assert (await node.transactions.publish(TransactionName("default", name))).repeated
    assert await everything(node) == found
    await node.stop()
    store.close()
