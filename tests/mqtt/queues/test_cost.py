"""What a message costs the MQTT front in calls, which say the same on a quiet machine as on a busy one."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from holdfast.broker.commit.group_commit import GroupCommit
from holdfast.mqtt.codec import PubAck, Publish
from tests.mqtt.queues.rig import Raw, Server
from tests.waiting import until

CALLS_MAX = 92
"""Of functions in `holdfast/mqtt`, for a message that is published, delivered and acked; its clients use some too."""


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Calls of functions of the MQTT front, by name."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and "/holdfast/mqtt/" in frame.f_code.co_filename:
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each turn."""
    run = GroupCommit.run_turn
    taken: list[None] = []

    def run_turn(commit: GroupCommit) -> None:
        taken.append(None)
        run(commit)

    monkeypatch.setattr(GroupCommit, "run_turn", run_turn)
    return taken


async def settled(server: Server) -> None:
    """Wait until nothing is left to do."""
    await until(lambda: server.node.cell.commit.clean)
    for _ in range(5):
        await asyncio.sleep(0)


async def connect_two(server: Server) -> tuple[Raw, Raw]:
    publisher, consumer = await server.client("publisher"), await server.client("worker")
    await consumer.subscribe("$queue/jobs", ack_mode="puback")
    for _ in range(2):  # what the first message of a queue, a group or a connection costs alone is over
        await live(server, publisher, consumer)
    return publisher, consumer


async def live(server: Server, publisher: Raw, consumer: Raw) -> None:
    """The life of one message."""
    publisher.send(Publish("$queue/jobs", b"one", 1, 1))
    consumer.send(PubAck((await consumer.delivery()).packet_id))
    await publisher.expect(PubAck)
    await settled(server)


async def test_the_life_of_a_message_takes_two_turns_and_few_calls(quick: Server, turns: list[None]) -> None:
    publisher, consumer = await connect_two(quick)
    turns.clear()
    with counted() as calls:
        await live(quick, publisher, consumer)
    assert len(turns) == 2
    assert calls.total() <= CALLS_MAX, calls.most_common()


async def test_connections_that_are_idle_cost_a_message_nothing(quick: Server) -> None:
    publisher, consumer = await connect_two(quick)
    with counted() as alone:
        await live(quick, publisher, consumer)
    idle = [await quick.client(f"idle-{number}") for number in range(1_000)]
    for number, client in enumerate(idle):
        await client.subscribe(f"news/{number}")
        await client.subscribe(f"$queue/other/{number % 10}", ack_mode="puback")
    await settled(quick)
    with counted() as among_many:
        await live(quick, publisher, consumer)
    assert among_many == alone
