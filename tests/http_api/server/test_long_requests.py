"""Long polls, streams and watches end with the credential of their caller, and with the server. Acts of administration
that have begun do not end with the credential."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest
import pytest_asyncio

from holdfast.auth.fronts import long_requests
from holdfast.auth.gate import Gate
from holdfast.auth.principal import Principal
from holdfast.broker.node import Node
from holdfast.core.commands import Draft, Settlement, Verb
from holdfast.http_api import HttpFront
from holdfast.store.memory import MemoryStore
from tests.auth.rig import settings, user, write_users
from tests.http_api.conftest import config_for
from tests.waiting import PATIENCE_SECONDS, until

JOBS = ("default", "jobs")
QUEUE = "/api/v1/queues/jobs"
SHOP = user("shop", "open sesame", "consume:jobs", "produce:jobs")
OTHER = user("other", "open sesame", "consume:jobs")
OPS = user("ops", "open sesame", "admin:#")


class Rig:
    """A server that knows two users, and a client that is one of them."""

    def __init__(self, front: HttpFront, http: httpx.AsyncClient, users: Path) -> None:
        self.front, self.http, self.users = front, http, users
        self.node = front.api.node

    def dismiss(self) -> None:
        """The client is no longer known."""
        write_users(self.users, OTHER)


@pytest_asyncio.fixture(loop_scope="session")
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    users = write_users(tmp_path / "users.json", SHOP, OTHER, OPS)
    config = msgspec.structs.replace(config_for(tmp_path), auth=settings(users_file=users))
    node = Node(config, MemoryStore())
    await node.start()
    front = HttpFront(config, node, Gate(config, node.clock))
    await front.start()
    await node.queues.create(JOBS, {"partitions": 1})
    async with httpx.AsyncClient(base_url=front.url, timeout=PATIENCE_SECONDS, auth=("shop", "open sesame")) as http:
        yield Rig(front, http, users)
    await front.stop()
    await node.stop()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_requests, "CHECK_SECONDS", 0.005)


async def whole(rig: Rig, method: str, path: str, body: object = None) -> str:
    """All that a stream sends until it ends by itself."""
    async with rig.http.stream(method, path, json=body) as answer:
        assert answer.status_code == 200
        return "".join([text async for text in answer.aiter_text()])


def joined(rig: Rig) -> bool:
    return bool(rig.front.api.streams)


@pytest.mark.usefixtures("often")
async def test_a_long_poll_ends_with_the_credential(rig: Rig) -> None:
    polls = [
        asyncio.create_task(rig.http.post(f"{QUEUE}/leases", json={"wait": "5m"})),
        asyncio.create_task(
            rig.http.post("/v1/queue/dequeue", json={"queue": "jobs", "owner": "me", "wait_seconds": 300})
        ),
        asyncio.create_task(rig.http.post("/api/v1/request/jobs", json={"text": "x", "delay": "1h", "timeout": "5m"})),
    ]
    await until(lambda: rig.node.inspection.waiting(JOBS) == 2 and len(rig.front.api.long_requests._requests) == 3)
    rig.dismiss()
    assert [(await poll).status_code for poll in polls] == [401, 401, 401]
    assert (await polls[0]).json()["code"] == "unauthenticated"
    assert rig.node.inspection.waiting(JOBS) == 0


@pytest.mark.usefixtures("often")
async def test_streams_end_with_the_credential_and_release_what_they_hold(rig: Rig) -> None:
    await rig.node.messages.enqueue(JOBS, [Draft(b"1")])
    stream = asyncio.create_task(whole(rig, "POST", f"{QUEUE}/stream"))
    await until(
        lambda: rig.node.cell.dispatcher.members.all_members() and not rig.node.inspection.head(JOBS, "default")
    )
    watch = asyncio.create_task(whole(rig, "POST", "/v1/queue/watch", {"queue": "jobs"}))
    pushed = asyncio.create_task(whole(rig, "POST", "/v1/queue/subscribe", {"queue": "jobs", "owner": "me"}))
    await until(lambda: len(rig.front.api.long_requests._requests) == 3)
    rig.dismiss()
    assert json.loads((await stream).splitlines()[-1])["end"]["code"] == "unauthenticated"
    assert (await watch).startswith("id: 1\nevent: queue_watch")
    assert (await pushed).rstrip().endswith("--")
    await until(lambda: not joined(rig))
    [leased] = await rig.node.messages.lease(JOBS, "default")
    assert leased.attempt == 1


@pytest.mark.parametrize("gone", ["release", "keep"])
async def test_nothing_is_sent_to_who_is_no_longer_known(rig: Rig, gone: str) -> None:
    """Also before anybody has looked."""
    poll = asyncio.create_task(rig.http.post(f"{QUEUE}/leases", json={"wait": "5m"}))
    await until(lambda: rig.node.inspection.waiting(JOBS) == 1)
    rig.dismiss()
    await rig.node.messages.enqueue(JOBS, [Draft(b"1")])
    assert (await poll).status_code == 401

    write_users(rig.users, SHOP, OTHER)
    [leased] = await rig.node.messages.lease(JOBS, "default")
    assert leased.attempt == 1
    stream = asyncio.create_task(whole(rig, "POST", f"{QUEUE}/stream?gone={gone}"))
    await until(lambda: joined(rig))
    await until(lambda: len(rig.front.api.long_requests._requests) == 1)
    rig.dismiss()
    await rig.node.messages.enqueue(JOBS, [Draft(b"2")])
    lines = [json.loads(line) for line in (await stream).splitlines()]
    assert [next(iter(line)) for line in lines] == ["heartbeat", "end"]
    await until(lambda: not joined(rig))
    [leased] = await rig.node.messages.lease(JOBS, "default")
    assert (leased.message.payload, leased.attempt) == (b"2", 1)


async def test_who_is_still_known_is_not_disturbed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bool] = []
    valid = rig.front.api.gate.valid
    monkeypatch.setattr(long_requests, "CHECK_SECONDS", 0.0)

    def looked(who: Principal) -> bool:
        looks.append(valid(who))
        return looks[-1]

    monkeypatch.setattr(rig.front.api.gate, "valid", looked)
    poll = asyncio.create_task(rig.http.post(f"{QUEUE}/leases", json={"wait": "5m"}))
    await until(lambda: len(looks) > 3)
    write_users(rig.users, SHOP)
    await rig.node.messages.enqueue(JOBS, [Draft(b"1")])
    assert len((await poll).json()["deliveries"]) == 1
    assert all(looks)
    await until(lambda: rig.front.api.long_requests._timer is None)  # nobody to look after: nobody looks


async def test_a_server_that_stops_ends_all_of_them_immediately(rig: Rig) -> None:
    poll = asyncio.create_task(rig.http.post(f"{QUEUE}/leases", json={"wait": "5m"}))
    stream = asyncio.create_task(whole(rig, "POST", f"{QUEUE}/stream?group=other"))
    watch = asyncio.create_task(whole(rig, "POST", "/v1/queue/watch", {"queue": "jobs"}))
    await until(lambda: len(rig.front.api.long_requests._requests) == 3)
    rig.front.api.close()  # nothing here waits for a heartbeat
    assert (await poll).status_code == 503
    assert json.loads((await stream).splitlines()[-1])["end"]["code"] == "shutting_down"
    assert (await watch).count("event: queue_watch") == 1


DEAD_LETTERS = 600  # three steps of a purge


@pytest_asyncio.fixture(loop_scope="session")
async def purging(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Task[httpx.Response], asyncio.Event]:
    """A purge of dead letters whose first step is done, and which goes on at the event."""
    await rig.node.messages.enqueue(JOBS, [Draft(b"x") for _ in range(DEAD_LETTERS)])
    found = await rig.node.messages.lease(JOBS, "default", DEAD_LETTERS)
    await rig.node.messages.settle(
        JOBS, "default", [Settlement(one.message.id, one.token, Verb.REJECT) for one in found]
    )
    assert dead_letters(rig) == DEAD_LETTERS
    durable, begun, go_on = rig.node.cell.commit.durable, asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        await durable()
        begun.set()
        await go_on.wait()

    monkeypatch.setattr(rig.node.cell.commit, "durable", wait)
    purge = asyncio.create_task(rig.http.post(f"{QUEUE}/dlq/purge", auth=("ops", "open sesame")))
    await begun.wait()
    assert 0 < dead_letters(rig) < DEAD_LETTERS
    return purge, go_on


def dead_letters(rig: Rig) -> int:
    dead = rig.node.dead_letters.queue_of(JOBS)
    assert dead is not None
    return rig.node.cell.engine.queues[dead].depth


def purge_entry(rig: Rig) -> tuple[str, dict[str, object]]:
    """How the audit log says that it ended."""
    lines = (rig.users.parent / "audit.log").read_text().splitlines()
    [entry] = [entry for entry in map(json.loads, lines) if entry["act"] == "dlq.purge"]
    return entry["result"], entry["details"]


async def test_a_purge_that_has_begun_ends_when_all_is_done_not_with_the_credential(
    rig: Rig, purging: tuple[asyncio.Task[httpx.Response], asyncio.Event]
) -> None:
    purge, go_on = purging
    rig.dismiss()
    rig.front.api.long_requests._check()
    go_on.set()
    answer = await purge
    assert (answer.status_code, answer.json()) == (200, {"messages": DEAD_LETTERS})
    assert dead_letters(rig) == 0
    assert purge_entry(rig) == ("ok", {"messages": DEAD_LETTERS})
    again = await rig.http.post(f"{QUEUE}/dlq/purge", auth=("ops", "open sesame"))
    assert again.status_code == 401


async def test_a_purge_that_the_end_of_the_server_cuts_off_says_how_far_it_came(
    rig: Rig, purging: tuple[asyncio.Task[httpx.Response], asyncio.Event]
) -> None:
    purge, go_on = purging
    left = dead_letters(rig)
    rig.front.api.close()
    go_on.set()
    assert (await purge).status_code == 503
    assert dead_letters(rig) == left
    assert purge_entry(rig) == ("shutting_down", {"messages": DEAD_LETTERS - left})


async def test_a_purge_whose_caller_has_gone_goes_on(
    rig: Rig, purging: tuple[asyncio.Task[httpx.Response], asyncio.Event]
) -> None:
    purge, go_on = purging
    purge.cancel()
    await asyncio.wait((purge,))
    go_on.set()
    await until(lambda: dead_letters(rig) == 0)
    await until(lambda: "dlq.purge" in (rig.users.parent / "audit.log").read_text())
    assert purge_entry(rig) == ("ok", {"messages": DEAD_LETTERS})
