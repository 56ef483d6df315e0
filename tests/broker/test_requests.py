"""Requests and their replies, where several come together."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.broker.node import Node
from holdfast.core.commands import Draft
from holdfast.core.records import Extra
from holdfast.errors import InvalidArgument, LimitExceeded
from holdfast.units import MINUTE

JOBS = ("default", "jobs")


async def test_of_two_first_requests_of_one_correlation_id_one_is_refused(node: Node) -> None:
    draft = Draft(b"12 * 12", extra=Extra(correlation_id="same"))
    both = [asyncio.ensure_future(node.requests.request(JOBS, draft, MINUTE)) for _ in range(2)]
    (asked,) = await node.messages.lease(JOBS, "workers", wait=MINUTE)
    reply_to = (asked.message.extra.reply_to or "").removeprefix("$queue/")
    await node.messages.enqueue(("default", reply_to), [Draft(b"144", extra=Extra(correlation_id="same"))])
    first, second = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(second, InvalidArgument)
    assert not isinstance(first, BaseException)
    assert first.reply.payload == b"144"
    assert node.requests.waiting == 0


async def test_first_requests_that_come_together_keep_the_limit(node: Node) -> None:
    node.requests._waiting_max = 1
    both = [asyncio.ensure_future(node.requests.request(JOBS, Draft(b"x"), MINUTE)) for _ in range(2)]
    with pytest.raises(LimitExceeded):
        await both[1]
    both[0].cancel()
    await asyncio.wait(both)
    assert node.requests.waiting == 0
