"""Schedules through the client, on a server whose clock the test sets forward."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from holdfast.client import Client
from holdfast.errors import InvalidArgument, QueueFull, ScheduleNotFound
from holdfast.testing import Broker


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as running:
        yield running


@pytest_asyncio.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with broker.client() as opened:
        yield opened


async def payloads(client: Client, queue: str) -> list[bytes]:
    return [message.body() async for message in client.browse(queue)]


async def test_a_schedule_enqueues_at_each_tick_until_it_is_deleted(broker: Broker, client: Client) -> None:
    stored = await client.schedules.put(
        "sweep", "tasks", {"kind": "sweep"}, every="1h", catch_up="one", key="k", properties={"a": ["1", "2"]}, ttl="1d"
    )
    assert (stored.name, stored.queue, stored.every, stored.paused, len(stored.next)) == (
        "sweep",
        "tasks",
        "1h",
        False,
        10,
    )
    assert (stored.message.key, stored.message.ttl) == ("k", "1d")
    broker.advance("1h")
    broker.advance("1h")
    first, second = [message async for message in client.browse("tasks")]
    assert first.body() == b'{"kind":"sweep"}'
    assert (first.key, first.content_type) == ("k", "application/json")
    assert first.properties == {
        "a": ["1", "2"],
        "holdfast-schedule": "sweep",
        "holdfast-tick": stored.next[0],
    }
    assert [first.message_id, second.message_id] == [f"sweep@{tick}" for tick in stored.next[:2]]
    shown = await client.schedules.get("sweep")
    assert shown.next[:8] == stored.next[2:]
    assert [(run.outcome, run.tick, run.message) for run in shown.runs] == [
        ("enqueued", stored.next[1], second.id),
        ("enqueued", stored.next[0], first.id),
    ]
    assert shown.enqueued == 2
    await client.schedules.delete("sweep")
    broker.advance("1h")
    assert len(await payloads(client, "tasks")) == 2
    with pytest.raises(ScheduleNotFound):
        await client.schedules.delete("sweep")
    await client.schedules.delete("sweep", missing_ok=True)


async def test_ticks_of_cron_are_shown_in_utc(broker: Broker, client: Client) -> None:
    start = datetime(2099, 3, 28, 12, tzinfo=UTC)  # in the night after, clocks in Berlin skip 02:00 to 03:00
    stored = await client.schedules.put("report", "tasks", cron="30 2 * * *", timezone="Europe/Berlin", starts_at=start)
    assert stored.next[:3] == ["2099-03-29T01:00:00.000Z", "2099-03-30T00:30:00.000Z", "2099-03-31T00:30:00.000Z"]
    ends = await client.schedules.put(
        "report", "tasks", cron="@daily", ends_at=start, starts_at=start - timedelta(days=2)
    )
    assert ends.next == ["2099-03-27T00:00:00.000Z", "2099-03-28T00:00:00.000Z"]


async def test_a_paused_schedule_stays_paused_when_it_is_stored_again(broker: Broker, client: Client) -> None:
    await client.schedules.put("sweep", "tasks", "a", every="1h", catch_up="one")
    assert (await client.schedules.pause("sweep")).next == []
    again = await client.schedules.put("sweep", "tasks", "b", every="1h", catch_up="one")
    assert (again.paused, again.next) == (True, [])
    broker.advance("5h")
    run = await client.schedules.run("sweep")
    assert (run.outcome, run.tick) == ("enqueued", None)
    assert await payloads(client, "tasks") == [b"b"]
    assert len((await client.schedules.resume("sweep")).next) == 10
    broker.advance("1h")
    assert await payloads(client, "tasks") == [b"b", b"b"]
    assert (await client.schedules.put("sweep", "tasks", "b", every="1h", catch_up="one", paused=True)).paused is True


async def test_schedules_are_listed_by_name(broker: Broker, client: Client) -> None:
    for name in ("b", "a/2", "a/1"):
        await client.schedules.put(name, "tasks", every="1h", catch_up="one", paused=name == "b")
    assert [(one.name, len(one.next), one.runs) for one in await client.schedules.all()] == [
        ("a/1", 1, []),
        ("a/2", 1, []),
        ("b", 0, []),
    ]
    assert [one.name for one in await client.schedules.all("a/")] == ["a/1", "a/2"]


async def test_a_refused_tick_says_why_and_is_tried_again(broker: Broker, client: Client) -> None:
    await client.create_queue("tasks", {"max_depth": 1})
    await client.send("tasks", "other")
    await client.schedules.put("sweep", "tasks", "mine", every="1h", catch_up="one")
    broker.advance("1h")
    (refused,) = (await client.schedules.get("sweep")).runs
    assert (refused.outcome, refused.message, refused.error.partition(":")[0]) == ("refused", None, "queue_full")
    with pytest.raises(QueueFull):
        await client.schedules.run("sweep")
    await client.purge_queue("tasks")
    broker.advance("10s")
    (done,) = (await client.schedules.get("sweep")).runs
    assert (done.outcome, done.tick) == ("enqueued", refused.tick)
    assert await payloads(client, "tasks") == [b"mine"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"cron": "61 * * * *"}, "cron is not a cron expression: bad minute"),
        ({"cron": "* * * * *", "timezone": "Mars"}, "timezone is not a time zone"),
        ({}, "exactly one of them"),
        ({"every": "1ms"}, "every is 1s to 366d"),
        ({"every": "1m", "jitter": "2h"}, "jitter is at most 1h"),
        ({"every": "1m", "payload": "x" * 20_000}, "a schedule's has at most 16384"),
    ],
)
async def test_what_cannot_be_is_refused(client: Client, fields: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        await client.schedules.put("sweep", "tasks", **fields)  # type: ignore[arg-type]
    assert await client.schedules.all() == []
