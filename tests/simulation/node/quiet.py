"""A node that nobody else uses: what must happen by itself happens in time, when no other call comes to its help."""

from __future__ import annotations

import asyncio

from holdfast.core.commands import Draft, Leased
from tests.simulation.mail import must
from tests.simulation.node.driver import SECOND, Driver, Enqueued
from tests.simulation.node.ledger import BUFFERED_SECONDS, Ledger

GROUP = "quiet"
SOON_SECONDS = 1.5
"""For a delivery that is ready: the syncs of its enqueue, its lease and one that is under way take 0.3 s each here."""


async def check_quiet(driver: Driver, ledger: Ledger, queue: str, buffered: str) -> None:
    """`queue` has durability `fsync`, `buffered` the other; both are empty."""
    await driver.create_group(queue, GROUP, cursor=False, earliest=False)
    await _wakes_a_long_poll(driver, queue, delay=0)
    await _wakes_a_long_poll(driver, queue, delay=2 * SECOND)
    await _releases_what_nobody_took(driver, queue)
    await _syncs_what_is_buffered(driver, ledger, buffered)


async def _lease(driver: Driver, queue: str) -> list[Leased]:
    return await driver.lease(queue, GROUP, 1, wait=20 * SECOND, lease_timeout=60 * SECOND, consumer="quiet")


async def _wakes_a_long_poll(driver: Driver, queue: str, delay: int) -> None:
    """A message that comes, or falls due, goes to the consumer that waits for it."""
    waiting = asyncio.ensure_future(_lease(driver, queue))
    await asyncio.sleep(SOON_SECONDS)
    await driver.enqueue(queue, [Draft(b"quiet", deliver_at=driver.clock() + delay if delay else 0)])
    await asyncio.wait([waiting], timeout=SOON_SECONDS + delay / SECOND)
    must(waiting.done(), f"{queue}: a long poll was not woken by a message with delay {delay}")
    await _settle(driver, queue, waiting.result())


async def _releases_what_nobody_took(driver: Driver, queue: str) -> None:
    """A consumer that gives up before it is answered has no lease."""
    await driver.enqueue(queue, [Draft(b"quiet")])
    first = asyncio.ensure_future(_lease(driver, queue))
    await asyncio.sleep(0)
    first.cancel()
    second = asyncio.ensure_future(_lease(driver, queue))
    await asyncio.wait([second], timeout=SOON_SECONDS)
    must(second.done(), f"{queue}: a lease was kept for a caller that had given up")
    await _settle(driver, queue, second.result())


async def _syncs_what_is_buffered(driver: Driver, ledger: Ledger, queue: str) -> None:
    def answered(answer: Enqueued) -> None:
        must(not answer.durable, f"{queue} is not buffered")
        ledger.enqueued(queue, answer.ids, durable=False)

    answered(await driver.enqueue(queue, [Draft(b"quiet")]))  # this one reserves ids, and is synced for them
    answered(await driver.enqueue(queue, [Draft(b"quiet")]))
    await asyncio.sleep(BUFFERED_SECONDS + 0.1)
    ledger.check_buffered()


async def _settle(driver: Driver, queue: str, leased: list[Leased]) -> None:
    settled = await driver.acknowledge(queue, GROUP, leased)
    must(settled.results == [None] * len(leased), f"{queue}: acks were refused: {settled.results}")
