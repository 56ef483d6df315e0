"""What a message costs the MQTT front in calls, which say the same on a quiet machine as on a busy one."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from holdfast.broker.commit import group_commit
from holdfast.broker.commit.group_commit import GroupCommit
from holdfast.mqtt.codec import PubAck, Publish, reasons
from tests.mqtt.queues.rig import Raw, Server
from tests.waiting import until

CALLS_MAX = 86
"""Of functions in `holdfast/mqtt`, for a message that is published, delivered and acked; its clients use some too."""

BY_THE_CLOCK = {f"MqttFront.{name}" for name in ("_every", "_show_stats", "_check_principals", "_report_drops")}
"""What a busy machine may run in the middle of a message's life."""


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Calls of functions of the MQTT front, by name."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _arg: object) -> None:
        name = frame.f_code.co_qualname
        if event == "call" and "/holdfast/mqtt/" in frame.f_code.co_filename and name not in BY_THE_CLOCK:
            calls[name] += 1

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


@pytest.fixture
def hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody waits for may take an hour."""
    monkeypatch.setattr(group_commit, "UNAWAITED_SECONDS", 3_600.0)


@pytest.mark.usefixtures("hour")
async def test_the_life_of_a_message_takes_one_turn_and_few_calls(quick: Server, turns: list[None]) -> None:
    publisher, consumer = await connect_two(quick)
    turns.clear()
    with counted() as calls:
        await live(quick, publisher, consumer)
    assert len(turns) == 1, "the ack waits for the next message, as the one before did for this"
    assert calls.total() <= CALLS_MAX, calls.most_common()


async def test_an_ack_that_nothing_follows_has_a_turn_of_its_own(quick: Server) -> None:
    publisher, consumer = await connect_two(quick)
    await live(quick, publisher, consumer)
    await until(lambda: not quick.depth("jobs"))


@pytest.mark.usefixtures("hour")
@pytest.mark.parametrize(
    ("prefetch", "config", "user"),
    [("1", {}, {}), ("100", {}, {"partition-key": "k"}), ("100", {"retry__initial_backoff": "0s"}, {})],
    ids=["credit", "key", "failure"],
)
async def test_an_ack_for_which_a_delivery_waits_has_a_turn_immediately(
    quick: Server, prefetch: str, config: dict[str, str], user: dict[str, str]
) -> None:
    await quick.create("jobs", **config)
    publisher, consumer = await quick.client("publisher"), await quick.client("worker")
    await consumer.subscribe("$queue/jobs", ack_mode="puback", prefetch=prefetch)
    await publisher.publish("$queue/jobs", b"one", user=user)
    first = await consumer.delivery()
    if config:  # what failed is delivered again
        consumer.send(PubAck(first.packet_id, reasons.UNSPECIFIED_ERROR))
        assert (await consumer.delivery()).payload == b"one"
        return
    await publisher.publish("$queue/jobs", b"two", user=user)
    consumer.send(PubAck(first.packet_id))
    assert (await consumer.delivery()).payload == b"two"


@pytest.mark.usefixtures("hour")
@pytest.mark.parametrize("config", [{"max_depth": 3}, {"delivery_timeout": "2ms"}], ids=["little room", "short leases"])
async def test_an_ack_that_may_not_come_late_has_a_turn_immediately(quick: Server, config: dict[str, object]) -> None:
    await quick.create("jobs", **config)
    publisher, consumer = await quick.client("publisher"), await quick.client("worker")
    await consumer.subscribe("$queue/jobs", ack_mode="puback")
    await publisher.publish("$queue/jobs", b"one")
    await publisher.publish("$queue/jobs", b"two")
    consumer.send(PubAck((await consumer.delivery()).packet_id))
    await until(lambda: quick.depth("jobs") == 1)


@pytest.mark.usefixtures("hour")
async def test_connections_that_are_idle_cost_a_message_nothing(quick: Server) -> None:
    publisher, consumer = await connect_two(quick)
    with counted() as alone:
        await live(quick, publisher, consumer)
    idle = [await quick.client(f"idle-{number}") for number in range(1_000)]
    for number, client in enumerate(idle):
        await client.subscribe(f"news/{number}")
        await client.subscribe(f"$queue/other/{number % 10}", ack_mode="puback")
    await live(quick, publisher, consumer)  # whose ack joins the next turn
    with counted() as among_many:
        await live(quick, publisher, consumer)
    assert among_many == alone
