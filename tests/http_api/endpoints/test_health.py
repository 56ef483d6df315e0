"""Health, metrics, the overview; request and response."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from holdfast.auth.gate import Gate
from holdfast.broker.node import Node
from holdfast.core.commands import Draft, Settlement, Verb
from holdfast.core.records import Extra
from holdfast.core.transactions import TransactionName
from holdfast.errors import LakeUnavailable, StoreUnavailable
from holdfast.http_api import HttpFront
from holdfast.http_api.endpoints.metrics import all_series
from holdfast.store import open_store
from holdfast.store.faulty import Fault, FaultyStore
from tests.http_api.conftest import config_for
from tests.waiting import PATIENCE_SECONDS, until

JOBS = ("default", "jobs")


async def work_a_little(node: Node) -> None:
    await node.messages.enqueue(JOBS, [Draft(b"%d" % n) for n in range(4)])
    first, second, third = await node.messages.lease(JOBS, "g", 3)
    await node.messages.settle(
        JOBS,
        "g",
        [
            Settlement(first.message.id, first.token),
            Settlement(second.message.id, second.token, Verb.NACK),
            Settlement(third.message.id, third.token, Verb.REJECT),
        ],
    )


def samples(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


async def test_metrics_say_what_happened(http: httpx.AsyncClient, node: Node) -> None:
    await work_a_little(node)
    answer = await http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(answer.text)
    queue = (("namespace", "default"), ("queue", "jobs"))
    group = (("group", "g"), *queue)
    assert found["holdfast_queue_depth"][queue] == 2
    assert found["holdfast_queue_enqueue_total"][queue] == 4
    assert found["holdfast_group_ack_total"][group] == 1
    assert found["holdfast_queue_dlq_total"][(*group, ("reason", "rejected"))] == 1
    assert found["holdfast_group_failure_total"][(*group, ("reason", "nack"))] == 1
    assert found["holdfast_queue_delivery_latency_seconds_count"][group] == 3
    assert found["holdfast_queue_oldest_message_age_seconds"][queue] > 0
    assert found["holdfast_group_consumers"][group] == 0
    assert found["holdfast_group_unattended_seconds"][group] >= 0
    assert sum(found["holdfast_commit_sync_seconds_count"].values()) > 0
    assert sum(found["holdfast_commit_batch_rows_count"].values()) > 0
    assert found["process_open_fds"]


async def test_every_metric_is_in_the_list_that_the_documentation_is_made_from(
    http: httpx.AsyncClient, node: Node
) -> None:
    await work_a_little(node)
    text = (await http.get("/metrics")).text
    types = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE holdfast_"))
    listed = {name: kind for name, kind, _, _ in all_series()}
    if "holdfast_store_free_bytes" not in types:
        for name in ("holdfast_store_free_bytes", "holdfast_store_full_in_seconds"):
            del listed[name]  # a store in memory has no disk
    assert types == listed


async def test_every_cache_is_counted_beside_its_bound(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    store = open_store("rocks", tmp_path / "store")
    node = Node(config, store)
    await node.start()
    front = HttpFront(config, node, Gate(config, node.clock))
    await front.start()
    await node.groups.create(("default", "orders"), "billing")
    await node.messages.enqueue(("default", "orders"), [Draft(b"x" * 1_000) for _ in range(10)])
    async with httpx.AsyncClient(base_url=front.url, timeout=PATIENCE_SECONDS) as http:
        before = samples((await http.get("/metrics")).text)
        await work_a_little(node)
        after = samples((await http.get("/metrics")).text)
    used, limits = after["holdfast_cache_bytes"], after["holdfast_cache_limit_bytes"]
    assert before["holdfast_cache_bytes"][(("cache", "payloads"),)] > 10_000
    assert used[(("cache", "ended_leases"),)] > 0
    assert used[(("cache", "write_buffers"),)] > 10_000
    assert used.keys() == limits.keys()
    assert all(used[name] <= limits[name] for name in used)
    assert after["holdfast_caches_limit_bytes"] == {(): sum(limits.values())}
    await front.stop()
    await node.stop()
    store.close()


async def test_what_is_staged_is_counted_until_it_is_published(http: httpx.AsyncClient, node: Node) -> None:
    await node.transactions.stage(TransactionName("default", "t"), [("jobs", [Draft(b"abc"), Draft(b"de")])])
    found = samples((await http.get("/metrics")).text)
    assert found["holdfast_transactions_open"] == {(): 1}
    assert (found["holdfast_transaction_staged"], found["holdfast_transaction_staged_bytes"]) == ({(): 2}, {(): 5})
    assert (await http.get("/api/v1/overview")).json()["staged"] == 2
    await node.transactions.publish(TransactionName("default", "t"))
    assert samples((await http.get("/metrics")).text)["holdfast_transaction_staged"] == {(): 0}


async def test_many_queues_have_sums_only(http: httpx.AsyncClient, node: Node, tmp_path: Path) -> None:
    await work_a_little(node)
    await node.messages.enqueue(("default", "other"), [Draft(b"x")])
    found = samples((await http.get("/metrics", params={"queues": "none"})).text)
    assert found["holdfast_queue_depth"] == {(): 4}
    assert found["holdfast_queue_dlq_total"] == {(("reason", "rejected"),): 1}


async def test_a_healthy_node_says_so(http: httpx.AsyncClient) -> None:
    answer = await http.get("/livez")
    assert (answer.status_code, answer.json()) == (200, {"ok": True, "problems": []})
    answer = await http.get("/readyz")
    lake = {"lake_bytes": answer.json()["lake_bytes"], "lake_full_in_seconds": None}
    assert (answer.status_code, answer.json()) == (200, {"ok": True, "problems": [], **lake})
    health = (await http.get("/api/v1/health")).json()
    assert health["ok"] is True
    assert {part["name"] for part in health["parts"]} == {"store", "disk", "loop", "journal", "lake", "webhooks"}


async def test_how_large_the_lake_is_and_when_its_disk_is_full_is_said(http: httpx.AsyncClient, node: Node) -> None:
    await work_a_little(node)
    await node.cell.export()
    scheduler = node.cell.export_scheduler
    await scheduler.look_after_lake()
    assert scheduler.lake.journal_bytes > 0
    found = samples((await http.get("/metrics")).text)
    assert found["holdfast_lake_free_bytes"] == {(): scheduler.lake.free_bytes}
    assert found["holdfast_lake_full_in_seconds"] == {(): math.inf}
    assert found["holdfast_lake_removed_bytes_total"] == {(): 0}
    assert found["holdfast_lake_retention_waiting"] == {(): 0}
    size = await node.lake_meter.read()
    assert size is not None
    ready = (await http.get("/readyz")).json()
    assert (ready["lake_bytes"], ready["lake_full_in_seconds"]) == (size.size_bytes, None)
    scheduler.lake = scheduler.lake._replace(full_seconds=3600.4)
    assert (await http.get("/readyz")).json()["lake_full_in_seconds"] == 3600
    parts = {part["name"]: part for part in (await http.get("/api/v1/health")).json()["parts"]}
    assert parts["lake"]["problem"] == "its disk will be full in 1 h if it goes on like this"
    assert (await http.get("/readyz")).json()["ok"] is True


async def test_how_far_the_lake_is_behind_is_said_and_nothing_is_lost_for_it(tmp_path: Path) -> None:
    plain = config_for(tmp_path)
    config = replace(plain, journal=replace(plain.journal, max_behind=5))
    node = Node(config, open_store("memory", tmp_path))
    await node.start()
    front = HttpFront(config, node, Gate(config, node.clock))
    await front.start()
    lake = tmp_path / "lake"
    (lake / "journal" / "_tmp").rmdir()
    (lake / "journal" / "_tmp").write_text("in the way")

    async def journal(http: httpx.AsyncClient) -> tuple[int, str, list[str]]:
        parts = {part["name"]: part for part in (await http.get("/api/v1/health")).json()["parts"]}
        behind = samples((await http.get("/metrics")).text)["holdfast_journal_behind_rows"]
        assert behind == {(): parts["journal"]["facts"]["rows_behind"]}
        problems = (await http.get("/readyz")).json()["problems"]
        return parts["journal"]["facts"]["rows_behind"], parts["journal"]["problem"], problems

    async with httpx.AsyncClient(base_url=front.url, timeout=PATIENCE_SECONDS) as http:
        await node.messages.enqueue(("default", "tasks"), [Draft(b"x")] * 4)
        assert await journal(http) == (4, "", [])
        await node.messages.enqueue(("default", "tasks"), [Draft(b"x")] * 4)
        rows, problem, problems = await journal(http)
        assert rows == 8
        assert "8 rows are not exported yet" in problem
        assert problems == ["journal"]
        with pytest.raises(LakeUnavailable):
            await node.cell.export()
        assert (await journal(http))[0] == 8
        (lake / "journal" / "_tmp").unlink()
        await node.cell.export()
        assert await journal(http) == (0, "", [])
    assert sum(pq.read_metadata(path).num_rows for path in lake.rglob("*.parquet")) == 8
    await front.stop()
    await node.stop()


async def test_readiness_fails_while_the_store_cannot_sync(tmp_path: Path) -> None:
    failing: list[Fault] = []

    def plan() -> Fault | None:
        return failing[0] if failing else None

    store = FaultyStore(open_store("memory", tmp_path), sync=plan, reopen=plan)
    config = config_for(tmp_path)
    node = Node(config, store)
    await node.start()
    front = HttpFront(config, node, Gate(config, node.clock))
    await front.start()
    async with httpx.AsyncClient(base_url=front.url, timeout=PATIENCE_SECONDS) as http:
        assert (await http.get("/readyz")).status_code == 200
        failing.append(Fault(StoreUnavailable(problem="the disk is gone")))
        with pytest.raises(StoreUnavailable):
            await node.messages.enqueue(JOBS, [Draft(b"x")])
        refused = await http.get("/readyz")
        assert refused.status_code == 503
        assert "store" in refused.json()["problems"][0]
        assert (await http.get("/livez")).status_code == 200
        assert "holdfast_store_up 0.0" in (await http.get("/metrics")).text
        enqueue = await http.post("/api/v1/queues/jobs/messages", json={"messages": [{}]})
        assert (enqueue.status_code, enqueue.json()["code"]) == (503, "store_unavailable")
    await front.stop()
    await node.stop()
    store.close()


async def test_the_overview(http: httpx.AsyncClient, node: Node) -> None:
    await work_a_little(node)
    shown = (await http.get("/api/v1/overview")).json()
    assert (shown["queues"], shown["depth"], shown["dead"], shown["acked"]) == (2, 3, 1, 1)
    assert shown["ok"] is True


async def test_a_request_gets_its_reply(http: httpx.AsyncClient, node: Node) -> None:
    asking = asyncio.create_task(http.post("/api/v1/request/jobs", json={"payload": {"n": 20}, "timeout": "30s"}))
    [asked] = await node.messages.lease(JOBS, "g", 1, wait=30_000_000)
    extra = asked.message.extra
    assert extra.reply_to is not None
    reply = {"messages": [{"payload": 400, "correlation_id": extra.correlation_id}]}
    name = extra.reply_to.replace("/", "%2F").replace("$", "%24")
    assert (await http.post(f"/api/v1/queues/{name}/messages", json=reply)).status_code == 200
    answer = (await asking).json()
    assert answer["reply"]["payload"] == 400
    assert answer["request_id"] == str(asked.message.id)
    assert answer["correlation_id"] == extra.correlation_id


async def test_a_request_without_a_reply_ends_with_its_timeout(http: httpx.AsyncClient) -> None:
    answer = await http.post("/api/v1/request/jobs", json={"text": "anybody?", "timeout": "20ms"})
    assert (answer.status_code, answer.json()["code"]) == (504, "reply_timeout")


async def test_a_reply_that_comes_too_late_is_dropped_and_counted(http: httpx.AsyncClient, node: Node) -> None:
    late = node.requests.late
    asking = asyncio.create_task(http.post("/api/v1/request/jobs", json={"text": "anybody?", "timeout": "30s"}))
    [asked] = await node.messages.lease(JOBS, "g", 1, wait=30_000_000)
    asking.cancel()
    await until(lambda: not node.requests.waiting)
    extra = asked.message.extra
    assert extra.reply_to is not None
    queue = ("default", extra.reply_to.removeprefix("$queue/"))
    # As an MQTT client replies: with the Correlation Data that it was sent.
    await node.messages.enqueue(queue, [Draft(b"here", extra=Extra(correlation_data=extra.correlation_data))])
    await until(lambda: node.requests.late == late + 1)
    await until(lambda: node.inspection.current_stats(queue).depth == 0)


async def test_a_correlation_id_of_a_request_that_waits_cannot_be_used_again(
    http: httpx.AsyncClient, node: Node
) -> None:
    body = {"text": "?", "correlation_id": "same", "timeout": "30s"}
    asking = asyncio.create_task(http.post("/api/v1/request/jobs", json=body))
    await until(lambda: node.requests.waiting)
    refused = await http.post("/api/v1/request/jobs", json=body)
    assert refused.json()["code"] == "invalid_argument"
    asking.cancel()
    await until(lambda: not node.requests.waiting)
