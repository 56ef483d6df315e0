"""Statistics of all queues: collected once for callers that ask together, and not again and again if there are many."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.broker.node import Node
from holdfast.store import open_store
from holdfast.units import SECOND
from tests.broker.conftest import config_for


async def test_callers_that_ask_together_share_a_collection(node: Node) -> None:
    await node.queues.create(("default", "a"))
    await node.queues.create(("other", "b"))
    first, second, third = await asyncio.gather(
        node.inspection.all_stats(), node.inspection.all_stats(), node.inspection.all_stats("other")
    )
    assert [stats.name for stats in first] == ["a", "b"]
    assert first is second
    assert [stats.name for stats in third] == ["b"]


async def test_stats_that_are_collected_quickly_are_never_old(node: Node) -> None:
    assert await node.inspection.all_stats() == []
    await node.queues.create(("default", "a"))
    assert [stats.name for stats in await node.inspection.all_stats()] == ["a"]


async def test_stats_that_took_long_are_valid_for_a_while(tmp_path: Path) -> None:
    now = 1_772_323_200 * SECOND

    def slow_clock() -> int:
        """Whatever is done takes a tenth of a second."""
        nonlocal now
        now += SECOND // 10
        return now

    store = open_store("memory", tmp_path / "store")
    node = Node(config_for(tmp_path), store, slow_clock)
    await node.start()
    first = await node.inspection.all_stats()
    await node.queues.create(("default", "a"))
    assert await node.inspection.all_stats() is first
    now += 15 * SECOND
    second = await node.inspection.all_stats()
    assert [stats.name for stats in second] == ["a"]
    now -= 3_600 * SECOND
    assert await node.inspection.all_stats() is not second, "the clock was set back"
    await node.stop()
    store.close()


async def test_a_caller_that_goes_away_does_not_end_the_collection_of_others(node: Node) -> None:
    await node.queues.create(("default", "a"))
    gone = asyncio.ensure_future(node.inspection.all_stats())
    other = asyncio.ensure_future(node.inspection.all_stats())
    await asyncio.sleep(0)
    gone.cancel()
    assert [stats.name for stats in await other] == ["a"]
