"""Queues that also take what is published on ordinary topics (`topics` in their configuration)."""

from __future__ import annotations

from holdfast.broker.parts.queues import Queues
from holdfast.engine.catalog import QueueName
from holdfast.mqtt.topics import SubscriptionTrie


class Captures:
    """Finds the queues of a topic. The tries are built again when a queue's `topics` change, which is rare."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._version: object = None
        self._tries: dict[str, SubscriptionTrie[QueueName, QueueName]] = {}

    def of(self, namespace: str, topic: str) -> tuple[QueueName, ...]:
        version, captures = self._queues.captures()
        if not captures:
            return ()
        if self._version != version:
            self._version = version
            self._tries = {}
            for name, filters in captures.items():
                trie = self._tries.setdefault(name[0], SubscriptionTrie())
                for one in filters:
                    trie.add(one, name, name)
        found = self._tries.get(namespace)
        # A topic may match several filters of one queue, which takes it once.
        return () if found is None else tuple(dict.fromkeys(found.match(topic)))
