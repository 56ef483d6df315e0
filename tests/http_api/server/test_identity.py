"""Whose a lease or a stream is: the caller's with its kind of credential, whatever it calls its consumers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest_asyncio
from msgspec.structs import replace

from holdfast.auth import keys, tokens
from holdfast.auth.gate import Gate
from holdfast.auth.tokens import Claims
from holdfast.broker.node import Node
from holdfast.http_api import HttpFront
from holdfast.store import open_store
from tests.auth import rig
from tests.http_api.conftest import config_for
from tests.waiting import PATIENCE_SECONDS

KEY = keys.generate("HS256")
RIGHTS = ("produce:#", "consume:#", "admin:#")
QUEUE = "/api/v1/queues/jobs"


class Callers:
    """Clients of one server: user alice, and whoever has a token."""

    def __init__(self, url: str, exits: AsyncExitStack) -> None:
        self._url = url
        self._exits = exits

    async def user(self, name: str) -> httpx.AsyncClient:
        return await self._client(httpx.BasicAuth(name, "correct horse"), "")

    async def token(self, sub: str) -> httpx.AsyncClient:
        claims = Claims(sub=sub, scope=" ".join(RIGHTS), exp=int(time.time()) + 600)
        return await self._client(None, tokens.sign(claims, KEY))

    async def _client(self, auth: httpx.BasicAuth | None, token: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        client = httpx.AsyncClient(base_url=self._url, timeout=PATIENCE_SECONDS, auth=auth, headers=headers)
        return await self._exits.enter_async_context(client)


@pytest_asyncio.fixture(loop_scope="session")
async def callers(tmp_path: Path) -> AsyncIterator[Callers]:
    users = rig.write_users(tmp_path / "users.json", rig.user("alice", "correct horse", *RIGHTS))
    key_file = rig.write_keys(tmp_path / "keys.json", KEY.private())
    config = replace(config_for(tmp_path), auth=rig.settings(users_file=users, key_file=key_file))
    store = open_store("memory", tmp_path / "store")
    node = Node(config, store)
    await node.start()
    front = HttpFront(config, node, Gate(config, node.clock))
    await front.start()
    async with AsyncExitStack() as exits:
        yield Callers(front.url, exits)
    await front.stop()
    await node.stop()
    store.close()


async def lease_one(client: httpx.AsyncClient, consumer: str) -> str:
    await client.post(f"{QUEUE}/messages", json={"messages": [{"payload": "x"}]})
    leased = await client.post(f"{QUEUE}/leases", json={"group": "work", "consumer": consumer})
    [delivery] = leased.json()["deliveries"]
    return str(delivery["id"])


async def settle(client: httpx.AsyncClient, consumer: str, message_id: str) -> str:
    body = {"group": "work", "settlements": [{"id": message_id, "action": "ack", "consumer": consumer}]}
    answer = await client.post(f"{QUEUE}/settle", json=body)
    return "settled" if answer.status_code == 200 else str(answer.json()["code"])


async def test_a_consumer_name_settles_the_leases_of_its_own_caller_only(callers: Callers) -> None:
    alice = await callers.user("alice")
    message_id = await lease_one(alice, "w1")
    for stranger in (await callers.token("bob"), await callers.token("alice")):
        for name in ("w1", "user:alice/w1", "alice/w1"):
            assert await settle(stranger, name, message_id) == "lease_lost"
    assert await settle(alice, "w1", message_id) == "settled"


async def test_a_slash_in_a_name_makes_nobody_another(callers: Callers) -> None:
    message_id = await lease_one(await callers.token("a/b"), "c")
    assert await settle(await callers.token("a"), "b/c", message_id) == "lease_lost"
    assert await settle(await callers.token("a%2Fb"), "c", message_id) == "lease_lost"
    assert await settle(await callers.token("a/b"), "c", message_id) == "settled"


async def test_who_holds_a_lease_is_shown_with_its_kind_of_credential(callers: Callers) -> None:
    client = await callers.token("alice")
    message_id = await lease_one(client, "w1")
    shown = (await client.get(f"{QUEUE}/messages/{message_id}")).json()
    assert [status["consumer"] for status in shown["deliveries"]] == ["token:alice/w1"]


async def test_mqueue_settles_by_the_credential_and_not_by_a_name(callers: Callers) -> None:
    alice, impostor = await callers.user("alice"), await callers.token("alice")
    item = {"namespace": "default", "topic": "jobs", "payload": "eA=="}
    [message_id] = (await alice.post("/enqueue", json=[item])).json()
    place = {"namespace": "default", "topic": "jobs"}
    [taken] = (await alice.get("/dequeue", params=place)).json()
    assert taken["id"] == message_id
    assert (await impostor.post("/ack", json={**place, "id": message_id})).status_code == 409
    body = {"settlements": [{"id": str(message_id), "action": "ack", "consumer": "password:alice"}]}
    forged = await (await callers.token("bob")).post(f"{QUEUE}/settle", json=body)
    assert forged.json()["code"] == "lease_lost"
    assert (await alice.post("/ack", json={**place, "id": message_id})).status_code == 200


async def test_a_stream_is_taken_over_by_its_own_caller_only(callers: Callers) -> None:
    alice, impostor = await callers.user("alice"), await callers.token("alice")
    parameters = {"group": "work", "consumer": "w1"}
    async with alice.stream("POST", f"{QUEUE}/stream", params=parameters) as first:
        lines = first.aiter_lines()
        assert "heartbeat" in await anext(lines)
        async with impostor.stream("POST", f"{QUEUE}/stream", params=parameters) as other:
            assert "heartbeat" in await anext(other.aiter_lines())
            shown = (await alice.get(f"{QUEUE}/consumers")).json()["consumers"]
            assert sorted(one["name"] for one in shown) == ["token:alice/w1", "user:alice/w1"]
        async with alice.stream("POST", f"{QUEUE}/stream", params=parameters):
            assert "taken over" in await anext(lines)
