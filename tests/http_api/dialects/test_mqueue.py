"""MQueue's API, with the examples of its own description."""

from __future__ import annotations

import time
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from holdfast.auth.gate import Gate
from holdfast.broker.node import Node
from holdfast.config.secret import SecretText
from holdfast.http_api import HttpFront
from holdfast.store import open_store
from tests.http_api.conftest import config_for
from tests.waiting import PATIENCE_SECONDS

PLACE = {"namespace": "payments", "topic": "process-refund"}
DATA = b64encode(b"refund 17").decode()


async def test_an_item_is_enqueued_dequeued_and_acked(http: httpx.AsyncClient, node: Node) -> None:
    body = [{**PLACE, "priority": 1, "payload": DATA, "deliver_after": "2023-10-27T10:00:00Z"}]
    answer = await http.post("/enqueue", json=body)
    assert answer.status_code == 200
    [item_id] = answer.json()
    assert isinstance(item_id, int)
    answer = await http.get("/dequeue", params=PLACE)
    assert answer.status_code == 200
    [item] = answer.json()
    assert set(item) == {"id", "payload", "lease_expires_at"}
    assert (item["id"], item["payload"]) == (item_id, DATA)
    assert datetime.fromisoformat(item["lease_expires_at"]) > datetime.now(UTC)
    answer = await http.post("/ack", json={"id": item_id, **PLACE})
    assert (answer.status_code, answer.content) == (200, b"")
    assert (await node.inspection.stats(("payments", "process-refund"))).depth == 0


async def test_a_nacked_item_waits_for_its_backoff_with_its_error(http: httpx.AsyncClient, node: Node) -> None:
    [item_id] = (await http.post("/enqueue", json=[{**PLACE, "payload": DATA}])).json()
    await http.get("/dequeue", params=PLACE)
    answer = await http.post("/nack", json={"id": item_id, **PLACE, "error": "Payment gateway timeout"})
    assert (answer.status_code, answer.content) == (200, b"")
    assert (await http.get("/dequeue", params=PLACE)).json() == []
    _, _, [status] = await node.inspection.find(("payments", "process-refund"), item_id)
    assert (status.state, status.error) == ("scheduled", "Payment gateway timeout")


async def test_ten_items_come_at_a_time_lowest_priority_value_first(http: httpx.AsyncClient) -> None:
    items = [{**PLACE, "priority": 20 - n, "payload": DATA} for n in range(15)]
    ids = (await http.post("/enqueue", json=items)).json()
    first = (await http.get("/dequeue", params=PLACE)).json()
    assert [item["id"] for item in first] == ids[:4:-1]
    rest = (await http.get("/dequeue", params={**PLACE, "limit": 100})).json()
    assert [item["id"] for item in rest] == ids[4::-1]


async def test_items_of_several_topics_keep_their_places_in_the_answer(http: httpx.AsyncClient) -> None:
    topics = ["a", "b", "a", "c"]
    items = [{"namespace": "n", "topic": topic, "payload": DATA} for topic in topics]
    ids = (await http.post("/enqueue", json=items)).json()
    for topic in "abc":
        got = (await http.get("/dequeue", params={"namespace": "n", "topic": topic})).json()
        assert [item["id"] for item in got] == [ids[n] for n, name in enumerate(topics) if name == topic]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ([], "invalid_argument"),
        ([{**PLACE, "payload": "!"}], "invalid_argument"),
        ([{**PLACE, "priority": 256}], "invalid_argument"),
        ([{**PLACE, "deliver_after": "soon"}], "invalid_argument"),
        ([{"topic": "t"}], "invalid_argument"),
        ([{"namespace": "n", "topic": "a/#"}], "invalid_name"),
    ],
)
async def test_bad_items_are_refused_and_nothing_is_stored(
    http: httpx.AsyncClient, node: Node, body: object, code: str
) -> None:
    answer = await http.post("/enqueue", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert node.queues.in_namespace("payments") == []


async def test_a_delivery_is_settled_once_and_by_its_holder_only(http: httpx.AsyncClient) -> None:
    [item_id] = (await http.post("/enqueue", json=[{**PLACE, "payload": DATA}])).json()
    answer = await http.post("/ack", json={"id": item_id, **PLACE})
    assert (answer.status_code, answer.json()["code"]) == (409, "lease_lost")


async def test_a_token_reaches_its_own_namespace_only(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    config = replace(config, auth=replace(config.auth, token_secret=SecretText("x" * 40)))
    store = open_store("memory", tmp_path / "store")
    node = Node(config, store)
    await node.start()
    gate = Gate(config, node.clock)
    front = HttpFront(config, node, gate)
    await front.start()
    token = _token("payments", "produce:process-refund")
    try:
        async with httpx.AsyncClient(
            base_url=front.url, timeout=PATIENCE_SECONDS, headers={"Authorization": f"Bearer {token}"}
        ) as http:
            assert (await http.post("/enqueue", json=[{**PLACE, "payload": DATA}])).status_code == 200
            for body in ({"namespace": "other", "topic": "process-refund"}, {"namespace": "payments", "topic": "x"}):
                assert (await http.post("/enqueue", json=[body])).status_code == 403
            assert (await http.get("/dequeue", params=PLACE)).status_code == 403
        async with httpx.AsyncClient(base_url=front.url, timeout=PATIENCE_SECONDS) as nobody:
            assert (await nobody.get("/dequeue", params=PLACE)).status_code == 401
    finally:
        await front.stop()
        await node.stop()
        await gate.close()


def _token(namespace: str, scope: str) -> str:
    from joserfc import jwt
    from joserfc.jwk import OctKey

    claims = {"sub": "billing", "ns": namespace, "scope": scope, "exp": int(time.time()) + 36_000}
    return jwt.encode({"alg": "HS256"}, claims, OctKey.import_key("x" * 40))


async def test_dequeue_creates_neither_queue_nor_group(http: httpx.AsyncClient, node: Node) -> None:
    name = ("payments", "process-refund")
    assert (await http.get("/dequeue", params=PLACE)).json() == []
    assert not node.queues.exists(name)
    await node.groups.create(name, "mailer")
    await http.post("/enqueue", json=[{**PLACE, "payload": DATA}])
    answer = await http.get("/dequeue", params=PLACE)
    assert (answer.status_code, answer.json()["code"]) == (404, "group_not_found")
    assert [group.name for group in node.queues.get(name).groups] == ["mailer"]
