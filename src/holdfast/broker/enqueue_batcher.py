"""Batches the enqueues of small requests: those that arrive in one pass of the loop are one enqueue per queue.

A request with a message or two costs the node about as much as one with a dozen. So small requests do not enqueue by
themselves: at the beginning of a turn all their messages for a queue are enqueued together, and each request gets its
part of the receipt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import structlog

from holdfast.broker.commit.group_commit import COMMIT_MESSAGES_MIN, notify
from holdfast.broker.node import Node
from holdfast.broker.parts.messages import Receipt
from holdfast.core.commands import Draft
from holdfast.core.effects import Op
from holdfast.engine.catalog import QueueName
from holdfast.errors import HoldfastError, StoreUnavailable

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class PendingEnqueue(Protocol):
    """A request whose messages are to be enqueued."""

    @property
    def drafts(self) -> Sequence[Draft]:
        """Its messages."""

    def enqueued(self, receipt: Receipt) -> bool:
        """The messages are applied, but not durable. False: the request is answered already."""

    def on_done(self, error: HoldfastError | None) -> None:
        """They are durable, or the store failed."""


class EnqueueBatcher:
    """A participant in the turns of the cell: see the module."""

    def __init__(self, node: Node, protocol: str) -> None:
        self._node = node
        self._protocol = protocol
        self._requests: dict[QueueName, list[PendingEnqueue]] = {}
        self._messages = 0

    def add(self, name: QueueName, request: PendingEnqueue) -> None:
        """Enqueue in the next turn. Raises if the node accepts no work."""
        if (refusal := self._node.cell.refusal) is not None:
            raise refusal
        self._requests.setdefault(name, []).append(request)
        self._messages += len(request.drafts)
        if self._messages < COMMIT_MESSAGES_MIN:
            self._node.cell.commit.schedule_after_sync()
        else:
            self._node.cell.commit.schedule()

    def collect_ops(self, now: int) -> list[Op]:  # noqa: ARG002 - the protocol's signature
        """Enqueue what has arrived."""
        for name, requests in self._drain().items():
            self._enqueue(name, requests)
        return []

    def _drain(self) -> dict[QueueName, list[PendingEnqueue]]:
        requests, self._requests, self._messages = self._requests, {}, 0
        return requests

    def _enqueue(self, name: QueueName, requests: list[PendingEnqueue]) -> None:
        together = requests[0].drafts if len(requests) == 1 else [draft for one in requests for draft in one.drafts]
        try:
            submission = self._node.messages.enqueue(name, together, self._protocol)
        except HoldfastError as error:
            if len(requests) == 1:
                notify([requests[0].on_done], error)
                return
            for request in requests:  # together they may exceed a limit that each of them keeps
                self._enqueue(name, [request])
            return
        receipt = submission.result
        waiting: list[PendingEnqueue] = []
        start = 0
        for request in requests:
            end = start + len(request.drafts)
            if _take(request, receipt if len(requests) == 1 else _part(receipt, start, end)):
                waiting.append(request)
            start = end
        if waiting:
            submission.on_done(lambda error: notify([request.on_done for request in waiting], error))

    def written(self) -> None:
        """Requests wait for their submission."""

    def delivered(self) -> None:
        """It has no members."""

    def failed(self, error: HoldfastError) -> None:
        """Fail what was not enqueued yet."""
        for requests in self._drain().values():
            for request in requests:
                request.on_done(error)

    def load(self) -> None:
        """There is no state to load."""

    def opened(self) -> None:
        """There is no state to use."""


def _take(request: PendingEnqueue, receipt: Receipt) -> bool:
    """Have a request take its receipt. A bug in that is the request's alone: its messages are stored, which it cannot
    be told, and so are those of the others."""
    try:
        return request.enqueued(receipt)
    except Exception as error:
        log.exception("a request could not take its receipt")
        notify([request.on_done], StoreUnavailable(problem=f"internal error: {error!r}"))
        return False


def _part(receipt: Receipt, start: int, end: int) -> Receipt:
    """The receipt of some of the messages."""
    ids = receipt.ids[start:end]
    if not receipt.duplicates and not receipt.errors:
        return Receipt(ids, {}, {}, receipt.durability)
    duplicates = {at - start: first for at, first in receipt.duplicates.items() if start <= at < end}
    errors = {at - start: error for at, error in receipt.errors.items() if start <= at < end}
    return Receipt(ids, duplicates, errors, receipt.durability)
