"""Queues that also take what is published on ordinary topics (`topics` in their configuration)."""

from __future__ import annotations

from holdfast.broker.node import Node
from holdfast.engine.engine import Engine
from holdfast.mqtt.topics import SubscriptionTrie

QueueName = tuple[str, str]


class Captures:
    """Finds the queues of a topic. The tries are rebuilt when a queue's `topics` change, which is rare."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._known: tuple[Engine | None, int] = (None, 0)
        self._tries: dict[str, SubscriptionTrie[QueueName, QueueName]] = {}

    def of(self, namespace: str, topic: str) -> tuple[QueueName, ...]:
        engine = self._node.cell.commit.engine
        if engine is None or not engine.catalog.captures:
            return ()
        if self._known != (
            engine,
            engine.catalog.captures_changed,
        ):  # a new engine counts anew
            self._known = (engine, engine.catalog.captures_changed)
            self._tries = {}
            for name, filters in engine.catalog.captures.items():
                trie = self._tries.setdefault(name[0], SubscriptionTrie())
                for one in filters:
                    trie.add(one, name, name)
        found = self._tries.get(namespace)
        # A topic may match several filters of one queue, which takes it once.
        return () if found is None else tuple(dict.fromkeys(found.match(topic)))
