"""Enqueues of several requests made one: what came in one pass of the loop, by queue.

A request with a message or two costs the node about as much as one with a dozen. So those that are served at once do
not enqueue by themselves: at the beginning of the node's turn all messages for a queue are given to it together, and
each request gets its own part of the receipt.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.broker.commit.group_commit import notify
from holdfast.broker.node import Node
from holdfast.broker.parts.messages import Receipt
from holdfast.core.commands import Draft
from holdfast.core.effects import Op
from holdfast.engine.catalog import QueueName
from holdfast.errors import HoldfastError

PROTOCOL = "http"

COMMIT_MESSAGES_MIN = 64
"""So many are worth a turn of the node while a sync runs. Fewer wait for its end, and are written with what comes until
then: they share the next sync anyway."""


class PendingEnqueue(Protocol):
    """Who wants something enqueued."""

    drafts: list[Draft]

    def enqueued(self, receipt: Receipt) -> bool:
        """The messages are enqueued, but not safe. False: there is nothing to wait for."""

    def on_done(self, error: HoldfastError | None) -> None:
        """They are safe, or there was an error."""


class EnqueueBatcher:
    """A participant in the turns of the cell: see the module."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._requests: dict[QueueName, list[PendingEnqueue]] = {}
        self._messages = 0

    def add(self, name: QueueName, request: PendingEnqueue) -> None:
        """Enqueue in the next turn. Raises, and does nothing, if the node takes no calls."""
        if (refusal := self._node.cell.refusal) is not None:
            raise refusal
        self._requests.setdefault(name, []).append(request)
        self._messages += len(request.drafts)
        if self._messages < COMMIT_MESSAGES_MIN:
            self._node.cell.commit.schedule_after_sync()
        else:
            self._node.cell.commit.schedule()

    def collect_ops(self, now: int) -> list[Op]:  # noqa: ARG002 - the protocol's signature
        """Enqueue what came."""
        for name, requests in self._drain().items():
            self._enqueue(name, requests)
        return []

    def _drain(self) -> dict[QueueName, list[PendingEnqueue]]:
        requests, self._requests, self._messages = self._requests, {}, 0
        return requests

    def _enqueue(self, name: QueueName, requests: list[PendingEnqueue]) -> None:
        together = requests[0].drafts if len(requests) == 1 else [draft for one in requests for draft in one.drafts]
        try:
            submission = self._node.messages.enqueue(name, together, PROTOCOL)
        except HoldfastError as error:
            if len(requests) == 1:
                requests[0].on_done(error)
                return
            for request in requests:  # too much together, perhaps; each may fare better
                self._enqueue(name, [request])
            return
        receipt = submission.result
        waiting: list[PendingEnqueue] = []
        start = 0
        for request in requests:
            end = start + len(request.drafts)
            if request.enqueued(receipt if len(requests) == 1 else _part(receipt, start, end)):
                waiting.append(request)
            start = end
        if waiting:
            submission.on_done(lambda error: notify([request.on_done for request in waiting], error))

    def written(self) -> None:
        """Requests hear of their sync."""

    def delivered(self) -> None:
        """It has no members."""

    def failed(self, error: HoldfastError) -> None:
        """Nothing was enqueued yet, and nothing will be."""
        for requests in self._drain().values():
            for request in requests:
                request.on_done(error)

    def opened(self) -> None:
        """There is nothing to take up."""


def _part(receipt: Receipt, start: int, end: int) -> Receipt:
    """The receipt of some of the messages."""
    ids = receipt.ids[start:end]
    if not receipt.duplicates and not receipt.errors:
        return Receipt(ids, {}, {}, receipt.durability)
    duplicates = {at - start: first for at, first in receipt.duplicates.items() if start <= at < end}
    errors = {at - start: error for at, error in receipt.errors.items() if start <= at < end}
    return Receipt(ids, duplicates, errors, receipt.durability)
