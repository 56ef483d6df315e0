"""Enqueues of several requests made one: what came in one pass of the loop, by queue.

A request with a message or two costs the node about as much as one with a dozen. So those that are served at once do
not enqueue by themselves: at the beginning of the node's turn all messages for a queue are given to it together, and
each request gets its own part of the receipt.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from holdfast.broker.commit.group_commit import tell
from holdfast.broker.node import Node, Receipt
from holdfast.core.commands import Draft
from holdfast.core.effects import Op
from holdfast.engine.catalog import QueueName
from holdfast.errors import HoldfastError

PROTOCOL = "http"

TURN_MESSAGES = 64
"""So many are worth a turn of the node while a sync runs. Fewer wait for its end, and are written with what comes until
then: they share the next sync anyway."""


class Request(Protocol):
    """Who wants something enqueued."""

    drafts: list[Draft]

    def enqueued(self, receipt: Receipt) -> bool:
        """The messages are enqueued, but not safe. False: there is nothing to wait for."""

    def hear(self, error: HoldfastError | None) -> None:
        """They are safe, or there was an error."""


class Gathering:
    """A companion of the node's: see the module."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._requests: dict[QueueName, list[Request]] = {}
        self._messages = 0

    def add(self, name: QueueName, request: Request) -> None:
        """Enqueue in the next turn. Raises, and does nothing, if the node takes no calls."""
        if (refusal := self._node.refusal) is not None:
            raise refusal
        self._requests.setdefault(name, []).append(request)
        self._messages += len(request.drafts)
        if self._messages < TURN_MESSAGES:
            self._node.commit.later()
        else:
            self._node.commit.soon()

    def gather(self, now: int) -> list[Op]:  # noqa: ARG002 - the companion's contract
        """Enqueue what came."""
        for name, requests in self._taken().items():
            self._enqueue(name, requests)
        return []

    def _taken(self) -> dict[QueueName, list[Request]]:
        requests, self._requests, self._messages = self._requests, {}, 0
        return requests

    def _enqueue(self, name: QueueName, requests: list[Request]) -> None:
        together = requests[0].drafts if len(requests) == 1 else [draft for one in requests for draft in one.drafts]
        try:
            receipt = self._node.enqueue_soon(name, together, PROTOCOL)
        except HoldfastError as error:
            if len(requests) == 1:
                requests[0].hear(error)
                return
            for request in requests:  # too much together, perhaps; each may fare better
                self._enqueue(name, [request])
            return
        waiting = []
        start = 0
        for request in requests:
            end = start + len(request.drafts)
            if request.enqueued(receipt if len(requests) == 1 else _part(receipt, start, end)):
                waiting.append(request)
            start = end
        if waiting:
            safe = _Waiting(self._node, waiting, len(together), receipt.size_bytes)
            self._node.when_safe(receipt.durability, safe.hear, len(together), receipt.size_bytes)

    def written(self) -> None:
        """Requests hear of their sync."""

    def failed(self, error: HoldfastError) -> None:
        """Nothing was enqueued yet, and nothing will be."""
        for requests in self._taken().values():
            for request in requests:
                request.hear(error)

    def opened(self) -> None:
        """There is nothing to take up."""


class _Waiting(NamedTuple):
    """Requests whose messages were enqueued together: so many, of so many bytes."""

    node: Node
    requests: list[Request]
    messages: int
    size_bytes: int

    def hear(self, error: HoldfastError | None) -> None:
        self.node.heard(self.messages, self.size_bytes)
        tell([request.hear for request in self.requests], error)


def _part(receipt: Receipt, start: int, end: int) -> Receipt:
    """The receipt of some of the messages."""
    ids = receipt.ids[start:end]
    if not receipt.duplicates and not receipt.errors:
        return Receipt(ids, {}, {}, receipt.durability)
    duplicates = {at - start: first for at, first in receipt.duplicates.items() if start <= at < end}
    errors = {at - start: error for at, error in receipt.errors.items() if start <= at < end}
    return Receipt(ids, duplicates, errors, receipt.durability)
