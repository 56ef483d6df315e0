"""Jobs: how they are sent by their function's signature, how long they may take, and how they are repeated.

The comments that tell mypy to ignore an error are assertions: `make check` refuses one that hides none.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import msgspec
import pydantic
import pytest

from holdfast.client import (
    Client,
    Message,
    SyncMessage,
    Worker,
    Workers,
    handled_message,
    use_client,
    worker,
)
from holdfast.client.workers.job_policy import RetryRule
from holdfast.errors import InvalidArgument
from holdfast.testing import Broker
from tests.waiting import PATIENCE_SECONDS, until


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as running:
        yield running


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with broker.client() as opened:
        with use_client(opened):
            yield opened


class Address(pydantic.BaseModel):
    street: str


class Email(msgspec.Struct):
    to: str


# --- sending --------------------------------------------------------------------------------------------------------


async def test_a_job_is_sent_as_a_call_of_its_function(client: Client) -> None:
    seen: list[object] = []

    @worker("emails")
    async def send_email(to: str, text: str = "hi", *, address: Address | None = None) -> None:
        seen.append((to, text, address))

    job = await send_email.send(to="ann", address=Address(street="Main"))
    await send_email.send("bob", "hello")
    assert (job.queue, job.duplicate) == ("emails", False)
    assert (await client.message("emails", job.id)).message_id is not None
    await client.send("emails", {"to": "by hand"})
    await client.send("emails", {"to": "x", "unknown": 1})
    await Workers(send_email).work_off(client)
    assert seen == [("ann", "hi", Address(street="Main")), ("bob", "hello", None), ("by hand", "hi", None)]
    (dead,) = [each async for each in client.dead_letters("emails")]
    assert dead.origin is not None
    assert "unknown" in dead.origin.error


async def test_a_single_parameter_is_the_payload_and_the_message_is_left_out(client: Client) -> None:
    seen: list[object] = []

    @worker("one")
    async def one(email: Email, message: Message | None = None) -> None:
        assert message is not None
        seen.append((email, message.key))

    @worker("none")
    def none(message: SyncMessage | None = None) -> None:
        assert message is not None
        seen.append(message.body)

    await one.key("k").send(Email("ann"))
    await none.send()
    await Workers(one, none).work_off(client)
    assert seen == [(Email("ann"), "k"), b""]


async def test_a_type_checker_sees_the_signature(client: Client) -> None:
    @worker("emails")
    async def send_email(to: str, text: str) -> int:
        return len(to + text)

    with pytest.raises(TypeError, match="missing a required argument: 'text'"):
        await send_email.send(to="ann")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'subject'"):
        await send_email.key("k").send(to="ann", text="x", subject="s")  # type: ignore[call-arg]
    await send_email.send(to=1, text="x")  # type: ignore[arg-type]
    assert await send_email("a", "b") == 2
    assert await Workers(send_email).work_off(client) == 1
    assert [dead.body() async for dead in client.dead_letters("emails")] == [b'{"to":1,"text":"x"}']


async def test_options_of_a_job_are_those_of_its_message(client: Client) -> None:
    @worker("jobs")
    async def work(number: int) -> None: ...

    tomorrow = datetime.now(UTC) + timedelta(days=1)
    ids = [
        (await work.key("k").delay("5m").send(1)).id,
        (await work.at(tomorrow).send(2)).id,
        (await work.options(priority=1, message_id="m", ttl="1h", properties={"a": "b"}).send(3)).id,
    ]
    first, second, third = [await client.message("jobs", each) for each in ids]
    assert (first.key, first.deliver_at is not None) == ("k", True)
    assert second.deliver_at is not None
    assert abs(datetime.fromisoformat(second.deliver_at) - tomorrow) < timedelta(seconds=1)
    assert (third.priority, third.message_id, third.properties) == (1, "m", {"a": "b"})
    assert (await work.options(message_id="m").send(3)).duplicate


async def test_many_jobs_are_one_request(client: Client) -> None:
    seen: list[int] = []

    @worker("jobs")
    async def work(number: int) -> None:
        seen.append(number)

    sent = await work.send_many((work.draft(each) for each in range(5)), atomic=True)
    assert sent.stored == 5
    async with client.transaction() as transaction:
        await transaction.stage_many("jobs", [work.draft(5)])
    await Workers(work).work_off(client)
    assert sorted(seen) == [0, 1, 2, 3, 4, 5]


async def test_unique_jobs_are_one_for_the_window_of_the_queue(client: Client, broker: Broker) -> None:
    @worker("all", unique=True)
    async def every(number: int, text: str = "") -> None: ...

    @worker("users", unique=lambda user, **_: user)
    async def of_user(user: str, number: int) -> None: ...

    assert [(await every.send(each)).duplicate for each in (1, 2, 1)] == [False, False, True]
    assert [(await of_user.send(user=user, number=n)).duplicate for user, n in (("a", 1), ("b", 1), ("a", 2))] == [
        False,
        False,
        True,
    ]
    broker.advance("6m")
    assert not (await every.send(1)).duplicate


async def test_a_job_sends_further_jobs_by_the_client_of_its_worker(broker: Broker) -> None:
    seen: list[tuple[str, int]] = []

    @worker("sync")
    def sync(number: int) -> None:
        seen.append(("sync", number))
        if number:
            other.send_sync(number)

    @worker("other")
    async def other(number: int) -> None:
        seen.append(("other", number))
        assert (message := handled_message()) is not None
        assert message.queue == "other"
        await sync.send(number - 1)
        with pytest.raises(RuntimeError, match="await send"):
            sync.send_sync(0)

    async with broker.client() as client:
        await client.send("sync", 2)
        await Workers(sync, other).work_off(client)
    assert seen == [("sync", 2), ("other", 2), ("sync", 1), ("other", 1), ("sync", 0)]
    assert handled_message() is None


# --- time -----------------------------------------------------------------------------------------------------------


async def test_an_asynchronous_job_past_its_time_is_cancelled_and_has_failed(client: Client) -> None:
    await client.create_queue("jobs", {"retry": {"max_retries": 0}})
    cancelled: list[bool] = []

    @worker("jobs", timeout="50ms")
    async def work(kind: str) -> None:
        if kind == "own":
            raise TimeoutError("of its own")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    await work.send("hang")
    await work.send("own")
    await Workers(work).work_off(client)
    assert cancelled == [True]
    errors = [dead.origin.error.partition("\n")[0] async for dead in client.dead_letters("jobs") if dead.origin]
    assert errors == ["Timeout: took longer than 0.05 s", "TimeoutError: of its own"]


async def test_a_thread_past_its_time_is_abandoned_told_and_replaced(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    release, told = threading.Event(), threading.Event()
    lost: list[bool] = []
    done: list[str] = []
    await client.create_queue("jobs", {"retry": {"max_retries": 0}, "ordering": "none"})

    @worker("jobs", timeout="1s", concurrency=2)
    def work(kind: str, message: SyncMessage) -> None:
        if kind == "hang":
            message.on_lost(told.set)
            release.wait(PATIENCE_SECONDS)
            lost.append(message.lost)
        else:
            done.append(kind)

    stop = asyncio.Event()
    app = Workers(work)
    serving = asyncio.create_task(app.serve(client, stop))
    await client.send("jobs", "hang")
    await until(lambda: "its thread is abandoned" in caplog.text)
    assert told.is_set()
    for _ in range(3):  # both places work on: another thread has taken the place of the one that hangs
        await client.send("jobs", "quick")
    await until(lambda: len(done) == 3)
    assert not app.stuck.is_set()
    await client.send("jobs", "hang")
    await until(app.stuck.is_set)  # as many hang as there are places: no message would find a thread
    await client.send("jobs", "quick")
    release.set()
    await until(lambda: len(done) == 4)
    stop.set()
    await serving
    assert lost == [True, True]
    assert [dead.body().decode() async for dead in client.dead_letters("jobs")] == ["hang", "hang"]


async def test_a_worker_that_is_stuck_ends_if_a_supervisor_starts_another(client: Client) -> None:
    release = threading.Event()
    await client.create_queue("jobs", {"retry": {"max_retries": 0}})

    @worker("jobs", timeout="50ms")
    def work(kind: str) -> None:
        release.wait(PATIENCE_SECONDS)

    app = Workers(work)
    app.end_when_stuck = True
    await client.send_many("jobs", ["a"])
    assert not await app.serve(client)
    release.set()


# --- failures -------------------------------------------------------------------------------------------------------


async def test_a_failure_has_its_traceback_bounded(client: Client) -> None:
    @worker("jobs", retries=0)
    async def work(depth: int) -> None:
        fail_deeply(depth)

    def fail_deeply(depth: int) -> None:
        if depth:
            fail_deeply(depth - 1)
        raise ValueError("x" * 5_000)

    await work.send(0)
    await work.send(200)
    await Workers(work).work_off(client)
    for dead in [each async for each in client.dead_letters("jobs")]:
        assert dead.origin is not None
        assert dead.origin.error.startswith("ValueError: xxx")
        assert "in fail_deeply" in dead.origin.error
        assert dead.origin.error.rstrip("^ \n").endswith('raise ValueError("x" * 5_000)')
        assert len(dead.origin.error) <= 4_096


async def test_retries_and_backoff_of_a_worker(client: Client, broker: Broker) -> None:
    await client.create_queue("jobs", {"ordering": "none"})
    attempts: list[int] = []

    @worker("jobs", retries=2, backoff=["1m", "10m"])
    async def work(number: int, message: Message) -> None:
        attempts.append(message.attempt)
        raise ValueError("no")

    app = Workers(work)
    await client.send("jobs", 1)
    for pause, count in (("59s", 1), ("1s", 2), ("9m", 2), ("1m", 3)):
        await app.work_off(client)
        broker.advance(pause)
        await app.work_off(client)
        assert len(attempts) == count
    assert (await client.queue("dlq/jobs")).depth == 1


def test_backoff_doubles_up_to_an_hour() -> None:
    rule = RetryRule(None, "10m")
    assert [rule.pause(attempt) for attempt in (1, 2, 3, 4, 100_000)] == [600, 1200, 2400, 3600, 3600]
    assert RetryRule(3, "2h").pause(5) == 7_200
    assert RetryRule(None, None).pause(1) is None
    assert not RetryRule(None, None).is_last(1_000)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"retries": -1}, "retries is at least 0"),
        ({"backoff": []}, "backoff has no pause"),
        ({"rate": "fast"}, "rate is written as"),
        ({"rate": "0/s"}, "rate is written as"),
        ({"rate": "10/0s"}, "rate is written as"),
        ({"timeout": "soon"}, "timeout"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        Worker(lambda job: None, "jobs", **options)  # type: ignore[arg-type]


async def test_a_rate_lets_no_more_start(client: Client) -> None:
    seen: list[int] = []

    @worker("jobs", rate="3/h", concurrency=10)
    async def work(number: int) -> None:
        seen.append(number)

    stop = asyncio.Event()
    app = Workers(work)
    await client.send_many("jobs", list(range(5)))
    serving = asyncio.create_task(app.serve(client, stop))
    await until(lambda: len(seen) == 3)
    stop.set()
    assert await serving
    assert len(seen) == 3


# --- lifespan -------------------------------------------------------------------------------------------------------


async def test_a_lifespan_is_around_all_jobs(client: Client) -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan(given: Client) -> AsyncIterator[None]:
        assert given is client
        steps.append("open")
        yield
        steps.append("close")

    @worker("jobs")
    async def work(text: str) -> None:
        steps.append(text)

    await client.send("jobs", "job")
    await Workers(work, lifespan=lifespan).work_off(client)
    assert steps == ["open", "job", "close"]
