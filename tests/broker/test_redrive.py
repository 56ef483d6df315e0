"""Redrive through the node: filters, rate, dry run, stopping half-way."""

from __future__ import annotations

import pytest

from holdfast.broker.node import Node
from holdfast.broker.redrive import IDS_MAX, Letters, Redriven
from holdfast.core.commands import Draft, Settlement, Verb
from holdfast.core.records import Extra
from holdfast.errors import InvalidArgument, QueueNotFound

TASKS = ("default", "tasks")
DEAD = ("default", "dlq/tasks")


async def bury(node: Node, count: int, error: str = "boom", colour: str = "red") -> None:
    """`count` messages that died."""
    properties = (("colour", colour),)
    await node.enqueue(
        TASKS, [Draft(f"{error} {i}".encode(), extra=Extra(properties=properties)) for i in range(count)]
    )
    while leased := await node.lease(TASKS, "g", 1000):
        await node.settle(
            TASKS,
            "g",
            [Settlement(i.message.id, i.token, Verb.REJECT, error=error, partition=i.partition) for i in leased],
        )


async def run(node: Node, which: Letters | None = None, **options: object) -> list[Redriven]:
    return [done async for done in node.redrive(DEAD, which or Letters(), **options)]  # type: ignore[arg-type]


def moved(steps: list[Redriven]) -> int:
    return sum(len(step.moved) for step in steps)


async def depths(node: Node) -> tuple[int, int]:
    return (await node.stats(DEAD)).depth, (await node.stats(TASKS)).depth


async def test_letters_go_back_by_what_is_known_of_them(node: Node) -> None:
    await bury(node, 3, "Timeout at db-7")
    await bury(node, 2, "no such customer", "blue")
    assert moved(await run(node, Letters(error="timeout AT"), dry_run=True)) == 3
    assert await depths(node) == (5, 0)
    assert moved(await run(node, Letters(properties=(("colour", "blue"),)))) == 2
    assert moved(await run(node, Letters(reasons=frozenset({"max_retries"})))) == 0
    assert moved(await run(node, Letters(source_group="other"))) == 0
    assert moved(await run(node, Letters(before=1))) == 0
    assert moved(await run(node, Letters(after=1 << 60))) == 0
    assert moved(await run(node, Letters(after=1, before=1 << 60, source_queue="tasks"), limit=2)) == 2
    assert await depths(node) == (1, 4)
    assert node.dead_queue(TASKS) == DEAD


async def test_a_redrive_with_a_rate_goes_in_small_steps_and_can_be_stopped(node: Node) -> None:
    await bury(node, 30)
    steps = node.redrive(DEAD, rate=100.0)
    first = await anext(steps)
    await steps.aclose()
    assert 1 <= len(first.moved) <= 10
    assert await depths(node) == (30 - len(first.moved), len(first.moved))
    assert moved(await run(node)) == 30 - len(first.moved)


async def test_letters_can_be_thrown_away(node: Node) -> None:
    await bury(node, 4)
    assert moved(await run(node, discard=True)) == 4
    assert await depths(node) == (0, 0)


async def test_a_message_in_the_dead_queue_that_is_no_letter_needs_a_target(node: Node) -> None:
    await bury(node, 1)
    await node.enqueue(DEAD, [Draft(b"stray")])
    steps = await run(node, Letters(source_queue="tasks"))
    assert moved(steps) == 1
    (refused,) = [error for step in await run(node) for error in step.refused.values()]
    assert isinstance(refused, InvalidArgument)
    assert moved(await run(node, target="elsewhere")) == 1


async def test_what_cannot_be_is_refused(node: Node) -> None:
    with pytest.raises(QueueNotFound):
        await run(node)
    await bury(node, 1)
    with pytest.raises(InvalidArgument, match="negative"):
        await run(node, rate=-1.0)
    with pytest.raises(InvalidArgument, match="at most"):
        await run(node, Letters(ids=frozenset(range(IDS_MAX + 1))))
    await node.update_queue(TASKS, {"dlq.enabled": False})
    assert node.dead_queue(TASKS) is None
