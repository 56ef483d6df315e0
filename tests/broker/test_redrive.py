"""Redrive through the node: filters, rate, dry run, stopping half-way."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.broker.node import Node
from holdfast.core.commands import Draft, Leased, Settlement, Verb
from holdfast.core.records import Extra
from holdfast.engine.dead_letters import DeadLetterFilter
from holdfast.engine.redrive import IDS_MAX, Destination, Redriven
from holdfast.errors import InvalidArgument, QueueNotFound

TASKS = ("default", "tasks")
DEAD = ("default", "dlq/tasks")


async def dead_letter(node: Node, count: int, error: str = "boom", colour: str = "red") -> None:
    """`count` messages that died."""
    properties = (("colour", colour),)
    await node.messages.enqueue(
        TASKS, [Draft(f"{error} {i}".encode(), extra=Extra(properties=properties)) for i in range(count)]
    )
    while leased := await node.messages.lease(TASKS, "g", 1000):
        await node.messages.settle(
            TASKS,
            "g",
            [Settlement(i.message.id, i.token, Verb.REJECT, error=error, partition=i.partition) for i in leased],
        )


async def run(node: Node, which: DeadLetterFilter | None = None, **options: object) -> list[Redriven]:
    return [done async for done in node.dead_letters.redrive(DEAD, which or DeadLetterFilter(), **options)]  # type: ignore[arg-type]


def moved(steps: list[Redriven]) -> int:
    return sum(len(step.moved) for step in steps)


async def depths(node: Node) -> tuple[int, int]:
    return (await node.inspection.stats(DEAD)).depth, (await node.inspection.stats(TASKS)).depth


async def test_dead_letters_go_back_by_what_is_known_of_them(node: Node) -> None:
    await dead_letter(node, 3, "Timeout at db-7")
    await dead_letter(node, 2, "no such customer", "blue")
    assert moved(await run(node, DeadLetterFilter(error="timeout AT"), dry_run=True)) == 3
    assert await depths(node) == (5, 0)
    assert moved(await run(node, DeadLetterFilter(properties=(("colour", "blue"),)))) == 2
    assert moved(await run(node, DeadLetterFilter(reasons=frozenset({"max_retries"})))) == 0
    assert moved(await run(node, DeadLetterFilter(source_group="other"))) == 0
    assert moved(await run(node, DeadLetterFilter(before=1))) == 0
    assert moved(await run(node, DeadLetterFilter(after=1 << 60))) == 0
    assert moved(await run(node, DeadLetterFilter(after=1, before=1 << 60, source_queue="tasks"), limit=2)) == 2
    assert await depths(node) == (1, 4)
    assert node.dead_letters.queue_of(TASKS) == DEAD


async def test_a_redrive_with_a_rate_goes_in_small_steps_and_can_be_stopped(node: Node) -> None:
    await dead_letter(node, 30)
    steps = node.dead_letters.redrive(DEAD, rate=100.0)
    first = await anext(steps)
    await steps.aclose()
    assert 1 <= len(first.moved) <= 10
    assert await depths(node) == (30 - len(first.moved), len(first.moved))
    assert moved(await run(node)) == 30 - len(first.moved)


async def test_dead_letters_can_be_purged(node: Node) -> None:
    await dead_letter(node, 4)
    assert moved(await run(node, discard=True)) == 4
    assert await depths(node) == (0, 0)


async def test_a_message_in_the_dead_queue_that_is_no_dead_letter_needs_a_target(node: Node) -> None:
    await dead_letter(node, 1)
    await node.messages.enqueue(DEAD, [Draft(b"stray")])
    steps = await run(node, DeadLetterFilter(source_queue="tasks"))
    assert moved(steps) == 1
    (refused,) = [error for step in await run(node) for error in step.refused.values()]
    assert isinstance(refused, InvalidArgument)
    assert moved(await run(node, to=Destination(queue="elsewhere"))) == 1


async def test_what_cannot_be_is_refused(node: Node) -> None:
    with pytest.raises(QueueNotFound):
        await run(node)
    await dead_letter(node, 1)
    with pytest.raises(InvalidArgument, match="negative"):
        await run(node, rate=-1.0)
    with pytest.raises(InvalidArgument, match="at most"):
        await run(node, DeadLetterFilter(ids=frozenset(range(IDS_MAX + 1))))
    await node.queues.update(TASKS, {"dlq.enabled": False})
    assert node.dead_letters.queue_of(TASKS) is None


async def reject(node: Node, group: str, leased: list[Leased]) -> None:
    await node.messages.settle(TASKS, group, [Settlement(item.message.id, item.token, Verb.REJECT) for item in leased])


async def test_dead_letters_go_back_in_the_order_they_died(node: Node) -> None:
    await node.queues.create(TASKS, {"partitions": 7})
    keyed = [Draft(b"%d" % n, extra=Extra(key=f"k{n}")) for n in range(600)]
    await node.messages.enqueue(TASKS, keyed)
    leased = await node.messages.lease(TASKS, "g", 600)
    assert [item.message.payload for item in leased] == [draft.payload for draft in keyed]
    await reject(node, "g", leased[300:])
    for item in reversed(leased[290:300]):
        await reject(node, "g", [item])
    await reject(node, "g", leased[:290])
    assert moved(await run(node)) == 600
    died = [*range(300, 600), *reversed(range(290, 300)), *range(290)]
    back = await node.messages.lease(TASKS, "g", 600)
    assert [int(item.message.payload) for item in back] == died


async def test_a_dead_letter_that_is_leased_or_gone_when_its_turn_comes_is_left(node: Node) -> None:
    await dead_letter(node, 20)
    steps = node.dead_letters.redrive(DEAD, rate=10.0, pause=lambda _: asyncio.sleep(0))
    await anext(steps)
    [held] = await node.messages.lease(DEAD, "g", 1)
    last = (await node.inspection.browse(DEAD, 100)).messages[-1][1]
    await node.messages.delete(DEAD, last.id)
    rest = [step async for step in steps]
    assert sum(step.leased for step in rest) == 1
    assert moved(rest) == 17
    await node.messages.settle(DEAD, "g", [Settlement(held.message.id, held.token)])
    assert await depths(node) == (0, 18)


async def test_a_dead_letter_goes_back_to_the_group_it_died_in(node: Node) -> None:
    for group in ("a", "b"):
        await node.groups.create(TASKS, group)
    await node.messages.enqueue(TASKS, [Draft(b"x")])
    await node.messages.settle(
        TASKS, "b", [Settlement(i.message.id, i.token) for i in await node.messages.lease(TASKS, "b", 1)]
    )
    await reject(node, "a", await node.messages.lease(TASKS, "a", 1))
    assert moved(await run(node)) == 1
    assert await node.messages.lease(TASKS, "b", 10) == []
    [back] = await node.messages.lease(TASKS, "a", 10)
    assert back.message.payload == b"x"
    await reject(node, "a", [back])
    assert moved(await run(node, to=Destination(all_groups=True))) == 1
    assert len(await node.messages.lease(TASKS, "a", 10)) == len(await node.messages.lease(TASKS, "b", 10)) == 1
