"""Quotas over HTTP: shown, set, kept through a restart, and an error that says what to do."""

from __future__ import annotations

from pathlib import Path

import httpx
from msgspec.structs import replace

from holdfast.broker.node import Node
from holdfast.config.settings import QuotaSettings
from holdfast.core.commands import Draft
from holdfast.quotas import Quota
from holdfast.store import open_store
from tests.http_api.conftest import config_for
from tests.waiting import until


async def test_a_quota_is_shown_with_its_use_and_set_for_one_namespace(http: httpx.AsyncClient, node: Node) -> None:
    await http.post("/api/v1/queues", json={"name": "a", "config": {"partitions": 3}})
    await http.post("/api/v1/queues/a/messages", json={"messages": [{"text": "12345"}]})
    shown = (await http.get("/api/v1/quotas")).json()
    assert shown["namespace"] == "default"
    assert set(shown["quotas"]) == set(Quota)
    assert shown["quotas"]["partitions"] == {"limit": 100_000, "used": 3, "own": False}
    assert shown["quotas"]["stored_bytes"]["used"] == 5
    assert shown["quotas"]["requests_per_second"]["used"] is None

    changed = await http.put("/api/v1/quotas/default", json={"limits": {"queues": 1}})
    assert changed.json()["quotas"]["queues"] == {"limit": 1, "used": 1, "own": True}
    refused = await http.post("/api/v1/queues", json={"name": "b"})
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
    assert refused.json()["details"] == {
        "owner": "Namespace 'default'",
        "namespace": "default",
        "quota": "queues",
        "limit": 1,
        "advice": "Delete queues that are not needed",
    }
    assert "holdfast quota set default queues=NUMBER" in refused.json()["detail"]
    other = (await http.get("/api/v1/quotas", params={"namespace": "other"})).json()
    assert other["quotas"]["queues"] == {"limit": 10_000, "used": 0, "own": False}
    metrics = (await http.get("/metrics")).text
    assert 'holdfast_quota_limit{namespace="default",quota="queues"} 1.0' in metrics
    assert 'holdfast_quota_used{namespace="default",quota="queues"} 1.0' in metrics
    assert 'holdfast_quota_refused_total{quota="queues"}' in metrics

    await http.put("/api/v1/quotas/default", json={"limits": {"queues": None}})
    assert (await http.post("/api/v1/queues", json={"name": "b"})).status_code == 201
    assert node.cell.quotas.own_namespaces == []


async def test_what_is_no_quota_or_no_limit_is_refused(http: httpx.AsyncClient, node: Node) -> None:
    for limits in ({"nonsense": 1}, {"nonsense": None}, {"queues": -1}, {"queues": 1 << 60}):
        refused = await http.put("/api/v1/quotas/default", json={"limits": limits})
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_argument"), limits
    assert (await http.put("/api/v1/quotas/%23", json={"limits": {}})).status_code == 400
    assert node.cell.quotas.own_namespaces == []


async def test_bytes_are_refused_before_they_are_stored(http: httpx.AsyncClient) -> None:
    await http.put("/api/v1/quotas/default", json={"limits": {"stored_bytes": 10}})
    path = "/api/v1/queues/jobs/messages"
    assert (await http.post(path, json={"messages": [{"text": "12345678"}]})).status_code == 200
    refused = await http.post(path, json={"messages": [{"text": "123"}]})
    assert (refused.status_code, refused.json()["details"]["quota"]) == (429, "stored_bytes")
    assert (await http.get("/api/v1/queues/jobs")).json()["depth"] == 1
    await http.put("/api/v1/quotas/default", json={"limits": {"stored_bytes": None}})


async def test_quotas_survive_a_restart(tmp_path: Path) -> None:
    config = replace(config_for(tmp_path), quotas=QuotaSettings(queues=1))
    for opening in range(2):
        store = open_store("rocks", tmp_path / "store")
        node = Node(config, store)
        await node.start()
        if not opening:
            await node.quotas.change("acme", {"queues": 2, "groups": 7})
            await node.quotas.change("acme", {"groups": None})
        assert node.quotas.show("acme")["queues"].limit == 2
        assert not node.quotas.show("acme")["groups"].own
        await node.stop()
        store.close()


async def test_redrives_are_counted_by_namespace(http: httpx.AsyncClient, node: Node) -> None:
    await http.put("/api/v1/quotas/default", json={"limits": {"redrives": 1}})
    await http.post("/api/v1/queues", json={"name": "b"})
    await node.messages.enqueue(("default", "dlq/a"), [Draft(b"x")] * 10)
    path = "/api/v1/queues/dlq%2Fa/dlq/redrive"
    slow = await http.post(path, json={"to": "b", "rate": 0.001})
    assert slow.status_code == 202, slow.text
    refused = await http.post(path, json={"to": "b"})
    assert (refused.status_code, refused.json()["details"]["quota"]) == (429, "redrives")
    await http.delete(f"{path}/{slow.json()['id']}")
    await until(lambda: node.redrive_jobs.running("default") == 0)
    assert (await http.post(path, json={"to": "b"})).status_code == 202
    await http.put("/api/v1/quotas/default", json={"limits": {"redrives": None}})
