"""What callers of a namespace hold over HTTP is bounded, and strangers have a share of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from holdfast.auth import keys, tokens
from holdfast.auth.gate import Gate
from holdfast.auth.rates import RequestRates
from holdfast.auth.tokens import Claims
from holdfast.broker.node import Node
from holdfast.config.secret import SecretText
from holdfast.config.settings import QuotaSettings
from holdfast.errors import RateLimited
from holdfast.http_api import HttpFront
from holdfast.quotas import Quota, Quotas
from holdfast.store.memory import MemoryStore
from holdfast.units import SECOND
from tests.http_api.conftest import config_for
from tests.waiting import PATIENCE_SECONDS, until

SECRET = SecretText("s" * 40)
LEASES = "/api/v1/queues/jobs/leases"


@asynccontextmanager
async def serving(path: Path, quotas: QuotaSettings, **http: object) -> AsyncIterator[HttpFront]:
    config = config_for(path, **http)
    config = replace(config, auth=replace(config.auth, token_secret=SECRET), quotas=quotas)
    node = Node(config, MemoryStore())
    await node.start()
    gate = Gate(config, node.clock)
    front = HttpFront(config, node, gate)
    await front.start()
    try:
        yield front
    finally:
        await front.stop()
        await node.stop()
        await gate.close()


def client(front: HttpFront, name: str = "shop", namespace: str = "acme") -> httpx.AsyncClient:
    expiry = front.api.node.clock() // SECOND + 600
    claims = Claims(sub=name, ns=namespace, scope="produce:# consume:# admin:#", exp=expiry)
    headers = {"authorization": f"Bearer {tokens.sign(claims, keys.from_secret(SECRET))}"}
    return httpx.AsyncClient(base_url=front.url, headers=headers, timeout=PATIENCE_SECONDS)


def held(front: HttpFront, quota: Quota) -> int:
    return front.api.node.cell.quotas.held(quota, "acme")


async def test_long_polls_and_streams_are_counted_together(tmp_path: Path) -> None:
    async with serving(tmp_path, QuotaSettings(long_polls=2, principal_percent=100)) as front, client(front) as shop:
        await shop.post("/api/v1/queues", json={"name": "jobs"})
        polls = [asyncio.create_task(shop.post(LEASES, json={"wait": "30s"})) for _ in range(2)]
        await until(lambda: held(front, Quota.LONG_POLLS) == 2)
        for refused in (await shop.post(LEASES, json={"wait": "30s"}), await shop.post("/api/v1/queues/jobs/stream")):
            assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
            assert refused.json()["details"]["quota"] == "long_polls"
        async with client(front, namespace="other") as other:
            assert (await other.post(LEASES, json={"wait": "1ms"})).status_code == 200
        await shop.post("/api/v1/queues/jobs/messages", json={"messages": [{}, {}]})
        assert [one.status_code for one in await asyncio.gather(*polls)] == [200, 200]
        assert held(front, Quota.LONG_POLLS) == 0


async def test_one_principal_does_not_take_all_that_its_namespace_has(tmp_path: Path) -> None:
    async with serving(tmp_path, QuotaSettings(long_polls=2, principal_percent=50)) as front, client(front) as shop:
        await shop.post("/api/v1/queues", json={"name": "jobs"})
        poll = asyncio.create_task(shop.post(LEASES, json={"wait": "30s"}))
        await until(lambda: held(front, Quota.LONG_POLLS) == 1)
        refused = await shop.post(LEASES, json={"wait": "30s"})
        assert "Principal 'token:shop'" in refused.json()["detail"]
        async with client(front, "billing") as billing:
            assert (await billing.post(LEASES, json={"wait": "1ms"})).status_code == 200
        poll.cancel()


async def test_connections_are_counted_by_namespace_and_are_free_again(tmp_path: Path) -> None:
    async with serving(tmp_path, QuotaSettings(connections=1, principal_percent=100)) as front:
        async with client(front) as first, client(front) as second:
            assert (await first.get("/api/v1/queues")).status_code == 200
            assert held(front, Quota.CONNECTIONS) == 1
            refused = await second.get("/api/v1/queues")
            assert (refused.status_code, refused.json()["details"]["quota"]) == (429, "connections")
            assert (await first.get("/api/v1/queues")).status_code == 200
        await until(lambda: held(front, Quota.CONNECTIONS) == 0)


async def test_strangers_make_room_for_each_other_and_never_keep_users_out(tmp_path: Path) -> None:
    async with serving(tmp_path, QuotaSettings(), max_unauthenticated=3, max_connections=5) as front:
        strangers = []
        for _ in range(20):
            strangers.append(await asyncio.open_connection(*front.address))
            await until(lambda: len(front.connections.strangers) in (1, 2, 3))
        async with client(front) as user:
            assert (await user.get("/api/v1/queues")).status_code == 200
            strangers += [await asyncio.open_connection(*front.address) for _ in range(20)]
            await until(lambda: len(front.connections.strangers) == 3)
            assert (await user.get("/api/v1/queues")).status_code == 200
            assert held(front, Quota.CONNECTIONS) == 1
        assert await strangers[0][0].read() == b""
        for _, writer in strangers:
            writer.close()


async def test_requests_beyond_the_rate_are_refused_before_their_body_is_read(tmp_path: Path) -> None:
    async with serving(tmp_path, QuotaSettings(requests_per_second=1)) as front, client(front) as shop:
        answers = [await shop.get("/api/v1/queues") for _ in range(20)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused
        assert refused[0].json()["details"]["quota"] == "requests_per_second"
        async with client(front, namespace="other") as other:
            assert (await other.get("/api/v1/queues")).status_code == 200


async def test_without_credentials_a_quota_holds_if_it_was_set(tmp_path: Path) -> None:
    config = replace(config_for(tmp_path), quotas=QuotaSettings(connections=1, requests_per_second=1, long_polls=1))
    node = Node(config, MemoryStore())
    await node.start()
    front = HttpFront(config, node, Gate(config, node.clock))
    await front.start()
    try:
        async with httpx.AsyncClient(base_url=front.url) as first, httpx.AsyncClient(base_url=front.url) as second:
            for _ in range(5):  # all callers are one, and nobody is to be protected from them
                assert (await first.get("/api/v1/queues")).status_code == 200
                assert (await second.get("/api/v1/queues")).status_code == 200
            await node.quotas.change("default", {"connections": 2, "requests_per_second": 1})
            async with httpx.AsyncClient(base_url=front.url) as third:
                refused = await third.get("/api/v1/queues")
            assert (refused.status_code, refused.json()["details"]["quota"]) == (429, "connections")
            answers = [await first.get("/api/v1/queues") for _ in range(20)]
            refusals = [answer.json() for answer in answers if answer.status_code == 429]
            assert refusals[0]["code"] == "rate_limited"
            assert "Namespace 'default' sends faster than it may: requests_per_second is 1" in refusals[0]["detail"]
    finally:
        await front.stop()
        await node.stop()


ALICE, BOB = "user:alice", "user:bob"


def limited(rates: RequestRates, namespace: str, principal: str, now: int = 0) -> RateLimited:
    with pytest.raises(RateLimited) as refused:
        rates.take(namespace, principal, now, publishes=1)
    return refused.value


def test_bytes_are_paid_for_by_the_next_request() -> None:
    rates = RequestRates(Quotas({Quota.BYTES_PER_SECOND: 100}), tracked=1)
    rates.take("acme", ALICE, 0)
    rates.add_bytes("acme", ALICE, 300, 0)
    assert limited(rates, "acme", ALICE).details["quota"] == "bytes_per_second"
    rates.take("acme", ALICE, 3 * SECOND)
    rates.take("other", ALICE, 0)  # of more namespaces than are tracked the one that was quiet longest is forgotten


def test_each_publish_counts_and_a_batch_costs_as_many() -> None:
    rates = RequestRates(Quotas({Quota.PUBLISHES_PER_SECOND: 10}), tracked=1)
    rates.take("acme", ALICE, 0, publishes=30)
    assert limited(rates, "acme", ALICE, 2 * SECOND - 1).details["quota"] == "publishes_per_second"
    rates.take("acme", ALICE, 0)  # a request without any
    rates.take("acme", ALICE, 2 * SECOND + 1, publishes=1)


@pytest.mark.parametrize("quota", [Quota.REQUESTS_PER_SECOND, Quota.PUBLISHES_PER_SECOND, Quota.BYTES_PER_SECOND])
def test_one_principal_does_not_send_all_that_its_namespace_may(quota: Quota) -> None:
    rates = RequestRates(Quotas({quota: 10}, principal_percent=50), tracked=1)
    for _ in range(5):
        rates.take("acme", ALICE, 0, publishes=1)
        rates.add_bytes("acme", ALICE, 1, 0)
    error = limited(rates, "acme", ALICE)
    assert f"Principal 'user:alice' in namespace 'acme' sends faster than it may: {quota} is 5" in str(error)
    for _ in range(5):
        rates.take("acme", BOB, 0, publishes=1)
        rates.add_bytes("acme", BOB, 1, 0)
    assert "Namespace 'acme' sends" in str(limited(rates, "acme", "user:carol"))
    rates.take("other", ALICE, 0)


def test_a_rate_that_is_changed_holds_from_the_next_request() -> None:
    quotas = Quotas({Quota.REQUESTS_PER_SECOND: 1})
    rates = RequestRates(quotas, tracked=10)
    rates.take("acme", ALICE, 0)
    limited(rates, "acme", ALICE)
    quotas.set_own("acme", {Quota.REQUESTS_PER_SECOND: 0})
    for _ in range(10):
        rates.take("acme", ALICE, 0)
    rates.add_bytes("acme", ALICE, 1 << 40, 0)
    rates.take("acme", ALICE, 0)
