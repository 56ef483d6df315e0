"""SIGKILL at random moments, as HTTP clients see it.

Every message that was answered is delivered in both groups, nothing whose ack was answered comes back, messages of a
key come in their order, and the journal has no hole.

One producer of each queue sends batches, another single messages, and both send again under the same `message_id` what
was not answered. One group leases by long polls, the other is sent its deliveries as an NDJSON stream. At the end what
is left is drained, and every message must have been stored once and acked once in each group.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from holdfast.errors import LeaseLost
from tests.crash.facts import ACKED_MIN, Facts, check_lake, drain
from tests.crash.farm import HTTP_URL, kill_after, servers
from tests.waiting import PATIENCE_SECONDS

KILLS = 22
BACKLOG = 600
QUEUES = ("orders", "mails")
GROUPS = ("polls", "streams")
BATCHES, SINGLES = range(60), range(60, 100)  # keys of the producers
CONFIG = """
[node]
data_dir = "{path}"
[mqtt]
enabled = false
[http]
listen = "127.0.0.1:0"
[journal]
segment_age = "300ms"
[store]
write_buffer_bytes = "2MiB"
"""
FIELDS = {
    "partitions": 4,
    "delivery_timeout": "5s",
    "max_depth": 0,
    "retry": {"max_retries": 1000, "initial_backoff": "1ms", "max_backoff": "5ms"},
}


def path_of(queue: str, what: str) -> str:
    return f"/api/v1/queues/{queue}/{what}"


def as_message(name: str) -> dict[str, str]:
    return {"text": name, "message_id": name, "key": name.split(":")[1]}


async def ask(http: httpx.AsyncClient, path: str, body: object) -> dict[str, object]:
    return read(await http.post(path, json=body))


def read(answer: httpx.Response) -> dict[str, object]:
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


async def produce(
    http: httpx.AsyncClient, queue: str, facts: Facts, dice: random.Random, batch: int, over: asyncio.Event
) -> None:
    """First what was not answered before the crash, in its order."""
    producer, keys = (f"{queue}-batches", BATCHES) if batch > 1 else (f"{queue}-singles", SINGLES)
    while True:
        while not (facts.unconfirmed[producer] or facts.backlog < BACKLOG or over.is_set()):  # noqa: ASYNC110 - of many
            await asyncio.sleep(0.005)
        names = list(facts.unconfirmed[producer])[:batch]
        names += [facts.new(producer, queue, keys, dice) for _ in range(batch - len(names))]
        if batch > 1:
            answer = await ask(http, path_of(queue, "messages"), {"messages": [as_message(name) for name in names]})
        else:
            headers = {
                "Content-Type": "text/plain",
                "Holdfast-Key": names[0].split(":")[1],
                "Idempotency-Key": names[0],
            }
            answer = read(await http.post(path_of(queue, "messages"), content=names[0], headers=headers))
        assert not answer.get("errors"), answer
        for name in names:
            facts.confirmed(producer, name)


async def settle(
    http: httpx.AsyncClient, queue: str, group: str, taken: list[dict[str, str]], facts: Facts, dice: random.Random
) -> None:
    """Ack most of them, fail some."""
    settlements: list[dict[str, str]] = []
    for item in taken:
        facts.delivered(group, item["text"])
        told = {"id": item["id"], "lease_token": item["lease_token"]}
        if dice.random() < 0.05:
            settlements.append({**told, "action": "nack", "delay": "0s"})
        else:
            settlements.append({**told, "action": "ack"})
            facts.settled[group].add(item["text"])
    response = await http.post(path_of(queue, "settle"), json={"group": group, "settlements": settlements})
    if response.status_code == 409 and response.json()["code"] == LeaseLost.code:
        return  # on a busy machine all of the leases may have ended meanwhile
    answer = read(response)
    errors = answer["errors"]
    assert isinstance(errors, list)
    refused = {error["index"] for error in errors}
    for index, (item, settlement) in enumerate(zip(taken, settlements, strict=True)):
        if settlement["action"] == "ack" and index not in refused:
            facts.acked[group].add(item["text"])


async def poll(http: httpx.AsyncClient, queue: str, facts: Facts, dice: random.Random) -> None:
    while True:
        body = {"group": "polls", "limit": dice.randint(1, 50), "wait": "20s"}
        answer = await ask(http, path_of(queue, "leases"), body)
        taken = answer["deliveries"]
        assert isinstance(taken, list)
        if taken:
            await settle(http, queue, "polls", taken, facts, dice)


async def follow(http: httpx.AsyncClient, queue: str, facts: Facts, dice: random.Random) -> None:
    path = path_of(queue, "stream")
    async with http.stream("POST", path, params={"group": "streams", "credit": "30"}) as answer:
        assert answer.status_code == 200
        async for taken in _deliveries(answer):
            await settle(http, queue, "streams", taken, facts, dice)
    raise httpx.ReadError("the stream ended")


async def _deliveries(answer: httpx.Response) -> AsyncIterator[list[dict[str, str]]]:
    """Those that came together."""
    rest = b""
    async for chunk in answer.aiter_raw():
        *lines, rest = (rest + chunk).split(b"\n")
        said = [json.loads(line) for line in lines]
        assert not [line for line in said if "end" in line], said
        if taken := [line["delivery"] for line in said if "delivery" in line]:
            yield taken


async def load(url: str, facts: Facts, dice: random.Random) -> None:
    """Everybody at once, until the server is gone."""
    over = asyncio.Event()
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS) as http:
        tasks = [
            asyncio.create_task(work)
            for queue in QUEUES
            for work in (
                produce(http, queue, facts, dice, 20, over),
                produce(http, queue, facts, dice, 1, over),
                poll(http, queue, facts, dice),
                follow(http, queue, facts, dice),
            )
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        over.set()
        await asyncio.wait(tasks)
        for task in tasks:
            error = task.exception()
            if not isinstance(error, httpx.TransportError):
                raise error or AssertionError("a client ended by itself")


async def create(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS) as http:
        for queue in QUEUES:
            assert (await http.post("/api/v1/queues", json={"name": queue, "config": FIELDS})).status_code == 201
            for group in GROUPS:  # both see everything from the start
                assert (await http.put(path_of(queue, f"groups/{group}"), json={})).status_code == 200


@pytest.mark.crash
async def test_kill_minus_nine_at_random_moments_as_http_clients_see_it(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    record_property("seed", seed)
    dice = random.Random(seed)
    producers = tuple(f"{queue}-{kind}" for queue in QUEUES for kind in ("batches", "singles"))
    facts = Facts(producers, GROUPS)
    with servers(tmp_path, CONFIG) as farm:
        for number in facts.rounds(KILLS, *GROUPS):
            pid, port = farm.start(HTTP_URL)
            url = f"http://127.0.0.1:{port}"
            if not number:
                await create(url)
            killer = asyncio.create_task(kill_after(pid, facts.events, dice.randrange(600)))
            await load(url, facts, dice)
            await killer
    lsn = await drain(tmp_path, QUEUES, facts)
    assert min(map(len, facts.acked.values())) > ACKED_MIN, f"too little happened (seed {seed})"
    check_lake(tmp_path, facts, lsn)
