"""Queues over HTTP."""

from __future__ import annotations

import httpx


async def test_a_queue_is_created_shown_changed_listed_and_deleted(http: httpx.AsyncClient) -> None:
    made = await http.post("/api/v1/queues", json={"name": "tasks/image", "config": {"retry": {"max_retries": 3}}})
    assert made.status_code == 201
    assert made.json()["config"]["retry"]["max_retries"] == 3
    assert made.json()["config"]["message_ttl"] == "7d"

    changed = await http.put("/api/v1/queues/tasks%2Fimage/config", json={"retry.jitter": 0.5, "max_depth": 5})
    assert changed.status_code == 200
    shown = (await http.get("/api/v1/queues/tasks%2Fimage")).json()
    assert shown == changed.json()
    assert shown["config"]["retry"]["jitter"] == 0.5
    assert shown["config"]["retry"]["max_retries"] == 3

    listed = (await http.get("/api/v1/queues", params={"prefix": "tasks/"})).json()
    assert [queue["name"] for queue in listed["queues"]] == ["tasks/image"]

    gone = await http.delete("/api/v1/queues/tasks%2Fimage")
    assert gone.json() == {"messages": 0}
    missing = await http.get("/api/v1/queues/tasks%2Fimage")
    assert missing.status_code == 404
    assert missing.headers["content-type"] == "application/problem+json"
    assert missing.json()["code"] == "queue_not_found"


async def test_queues_are_listed_in_pages(http: httpx.AsyncClient) -> None:
    for name in ("c", "a", "b"):
        await http.post("/api/v1/queues", json={"name": name, "config": {"partitions": 1}})
    first = (await http.get("/api/v1/queues", params={"limit": 2})).json()
    assert [queue["name"] for queue in first["queues"]] == ["a", "b"]
    rest = (await http.get("/api/v1/queues", params={"limit": 2, "cursor": first["cursor"]})).json()
    assert [queue["name"] for queue in rest["queues"]] == ["c"]
    assert rest["cursor"] == ""


async def test_a_wrong_setting_is_refused_by_name_and_range(http: httpx.AsyncClient) -> None:
    refused = await http.post("/api/v1/queues", json={"name": "q", "config": {"partitions": 0}})
    assert refused.status_code == 400
    assert refused.json()["code"] == "invalid_config"
    assert "partitions" in refused.json()["detail"]
    assert "1 to 1024" in refused.json()["detail"]
    assert (await http.get("/api/v1/queues/q")).status_code == 404
