"""Attempts to receive, which a receiver of a FIFO queue may repeat."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from holdfast.broker.node import Node
from holdfast.core.commands import Leased
from holdfast.core.records import Message
from holdfast.engine.catalog import QueueName
from holdfast.errors import MessageNotFound
from holdfast.http_api.dialects.sqs.identifiers import GROUP, LeaseHandle
from holdfast.units import MINUTE

Attempt = tuple[QueueName, str, str]
"""Queue, who receives, and the id it gave to the attempt."""

ATTEMPTS_MAX: Final = 10_000
ATTEMPT_AGE: Final = 5 * MINUTE


class _Remembered(NamedTuple):
    until: int
    receipts: list[tuple[LeaseHandle, int]]  # with the number of the delivery's attempt


class Attempts:
    """What receivers of FIFO queues were given lately, by the id that they gave to the attempt: who did not get the
    response asks again, and gets the same messages. They are in memory only: after a restart the messages of an attempt
    are visible again when their time is over."""

    def __init__(self) -> None:
        self._known: OrderedDict[Attempt, _Remembered] = OrderedDict()

    def remember(self, attempt: Attempt, found: list[Leased], now: int) -> None:
        receipts = [(LeaseHandle.of(leased), leased.attempt) for leased in found]
        self._known[attempt] = _Remembered(now + ATTEMPT_AGE, receipts)
        if len(self._known) > ATTEMPTS_MAX:
            self._known.popitem(last=False)

    async def again(self, node: Node, attempt: Attempt, timeout: int) -> list[Leased] | None:  # noqa: ASYNC109
        """The deliveries of an attempt, for as long again; None: there was no such attempt, or some of them are settled
        or visible again by now."""
        known = self._known.pop(attempt, None)
        if known is None or known.until <= node.clock():
            return None
        name = attempt[0]
        extensions = [receipt.extension(timeout) for receipt, _ in known.receipts]
        deadlines = await node.messages.settle(name, GROUP, extensions)
        found: list[Leased] = []
        for (receipt, number), deadline in zip(known.receipts, deadlines, strict=True):
            if not isinstance(deadline, int):
                return None
            message = await self._message(node, name, receipt)
            if message is None:
                return None
            found.append(Leased(message, receipt.token, number, deadline, receipt.partition, GROUP))
        self._known[attempt] = known
        return found

    async def _message(self, node: Node, name: QueueName, receipt: LeaseHandle) -> Message | None:
        try:
            return (await node.inspection.find(name, receipt.id))[1]
        except MessageNotFound:
            return None
