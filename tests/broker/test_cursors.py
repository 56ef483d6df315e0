"""Cursor groups through the node: ends, ranges over several partitions, and what is shown is durable."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.broker.node import Node
from holdfast.broker.parts import cursors
from holdfast.core.commands import CursorRange, Draft
from holdfast.core.queue import GroupKind
from holdfast.core.records import Extra
from holdfast.errors import CursorOutOfRange, InvalidArgument

LOG = ("default", "log")


async def fill(node: Node, count: int, **fields: object) -> None:
    await node.queues.create(LOG, {"partitions": 3, **fields})
    await node.groups.create(LOG, "g", GroupKind.CURSOR)
    await node.messages.enqueue(LOG, [Draft(b"%04d" % i, extra=Extra(key=f"k{i}")) for i in range(count)])


async def test_all_partitions_are_read_together_within_one_limit(node: Node) -> None:
    await fill(node, 900)
    ends = await node.cursors.ends(LOG, "g")
    assert sum(end.end - end.first for end in ends) == 900
    ranges = {end.partition: (end.first, end.end) for end in ends}
    seen: list[bytes] = []
    while ranges:
        found = await node.cursors.read_many(LOG, "g", ranges, limit=400)
        assert sum(len(part.messages) for part in found.values()) <= 400
        seen += [message.payload for part in found.values() for message in part.messages]
        ranges = {p: (f.next_seq, ranges[p][1]) for p, f in found.items() if f.next_seq < ranges[p][1]}
    assert sorted(seen) == [b"%04d" % i for i in range(900)]
    assert await node.cursors.commit_many(LOG, "g", {end.partition: end.end - 1 for end in ends}) == 900
    assert [end.first for end in await node.cursors.ends(LOG, "g")] == [end.end for end in ends]


async def test_a_range_read_again_is_the_same(node: Node) -> None:
    await fill(node, 30)
    first = await node.cursors.read(LOG, "g", 1, until=5)
    await node.messages.enqueue(LOG, [Draft(b"later", extra=Extra(key="k1"))])
    again = await node.cursors.read(LOG, "g", 1, 1, until=5)
    assert [m.id for m in again.messages] == [m.id for m in first.messages]
    assert again.next_seq == first.next_seq == 5


async def passes_while(work: asyncio.Task[CursorRange]) -> int:
    """How often the loop comes to others while something is done."""
    passes = 0
    while not work.done():
        passes += 1
        await asyncio.sleep(0)
    return passes


async def test_a_long_range_is_read_in_chunks_so_that_others_are_served_meanwhile(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "STEP_MESSAGES", 100)
    await fill(node, 1000, partitions=1)
    read = asyncio.create_task(node.cursors.read(LOG, "g", 0, limit=950))
    assert await passes_while(read) > 9
    found = await read
    assert [message.payload for message in found.messages] == [b"%04d" % i for i in range(950)]
    assert (found.next_seq, found.high) == (951, 1001)
    assert len((await node.cursors.read(LOG, "g", 0, 951)).messages) == 50
    assert len((await node.cursors.read(LOG, "g", 0, 901, until=950)).messages) == 49
    assert len((await node.cursors.read(LOG, "g", 0, limit=1000, max_bytes=4 * 333)).messages) == 333


async def test_a_range_whose_group_goes_on_while_it_is_read_ends_there(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "STEP_MESSAGES", 100)
    await fill(node, 1000, partitions=1)
    read = asyncio.create_task(node.cursors.read(LOG, "g", 0, limit=1000))
    await asyncio.sleep(0)
    await node.cursors.commit(LOG, "g", 0, 900)
    found = await read
    assert 100 <= len(found.messages) < 1000
    assert found.next_seq == len(found.messages) + 1


async def test_a_group_that_is_deleted_while_it_is_read_does_not_come_back(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "STEP_MESSAGES", 100)
    await fill(node, 1000, partitions=1)
    read = asyncio.create_task(node.cursors.read(LOG, "g", 0, limit=1000))
    await asyncio.sleep(0)
    await node.groups.delete(LOG, "g")
    assert 100 <= len((await read).messages) < 1000
    assert not node.queues.get(LOG).groups


async def test_bytes_are_bounded_over_all_partitions(node: Node) -> None:
    await fill(node, 30)
    ranges = dict.fromkeys(range(3), (0, 0))
    found = await node.cursors.read_many(LOG, "g", ranges, max_bytes=9)
    assert sum(len(part.messages) for part in found.values()) == 2
    one = await node.cursors.read_many(LOG, "g", ranges, max_bytes=1)
    assert sum(len(part.messages) for part in one.values()) == 1


def clean(node: Node) -> bool:
    return node.cell.commit.clean


async def test_what_is_shown_is_durable(node: Node) -> None:
    await fill(node, 3)
    assert clean(node)
    node.cell.engine.enqueue(LOG, [Draft(b"gathered")], "", node.clock())
    assert not clean(node)
    await node.cursors.ends(LOG, "g")
    assert clean(node)
    node.cell.engine.enqueue(LOG, [Draft(b"written")], "", node.clock())
    node.cell.commit.run_turn()
    assert not clean(node)
    await node.cursors.read(LOG, "g", 0)
    assert clean(node)


async def test_what_cannot_be_read_is_refused(node: Node) -> None:
    await fill(node, 3)
    for wrong in ({"limit": 0}, {"limit": 10_001}, {"max_bytes": 0}, {"first": 3, "until": 2}):
        with pytest.raises(InvalidArgument):
            await node.cursors.read(LOG, "g", 0, **wrong)
    with pytest.raises(CursorOutOfRange):
        await node.cursors.read(LOG, "g", 0, 99)
    with pytest.raises(InvalidArgument):
        await node.cursors.read(LOG, "g", 3)


async def test_what_a_read_had_written_is_synced_before_it_is_shown(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read in the same pass of the loop as an enqueue finds its messages: it has them written, before their turn."""
    await fill(node, 3, partitions=1)
    await node.cursors.ends(LOG, "g")
    assert clean(node)
    synced: list[int] = []
    sync = node.store.sync

    def counted() -> None:
        sync()
        synced.append(1)

    monkeypatch.setattr(node.store, "sync", counted)
    enqueue = asyncio.ensure_future(node.messages.enqueue(LOG, [Draft(b"new")]))
    read = asyncio.create_task(node.cursors.read(LOG, "g", 0, 4))
    assert [message.payload for message in (await read).messages] == [b"new"]
    assert synced
    await enqueue
