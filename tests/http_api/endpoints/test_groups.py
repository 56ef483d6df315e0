"""Groups, cursor groups and consumers over HTTP."""

from __future__ import annotations

import httpx

from holdfast.broker.node import Node

QUEUE = "/api/v1/queues/log"


async def test_a_group_made_by_hand_starts_where_it_is_told(http: httpx.AsyncClient) -> None:
    await http.post(f"{QUEUE}/messages", json={"messages": [{"text": "a"}]})
    await http.put(f"{QUEUE}/groups/first")
    made = await http.put(f"{QUEUE}/groups/second", json={"start": "earliest"})
    assert made.json()["kind"] == "lease"
    await http.put(f"{QUEUE}/groups/third", json={"start": "latest"})
    counts = [
        len((await http.post(f"{QUEUE}/leases", json={"group": group, "limit": 5})).json()["deliveries"])
        for group in ("first", "second", "third")
    ]
    assert counts == [1, 1, 0]
    listed = (await http.get(f"{QUEUE}/groups")).json()["groups"]
    assert [group["name"] for group in listed] == ["first", "second", "third"]


async def test_a_group_is_made_once_and_not_as_another_kind(http: httpx.AsyncClient) -> None:
    one = await http.put(f"{QUEUE}/groups/g")
    two = await http.put(f"{QUEUE}/groups/g")
    assert one.json() == two.json()
    other = await http.put(f"{QUEUE}/groups/g", json={"kind": "cursor"})
    assert other.status_code == 409
    assert other.json()["code"] == "group_exists"
    assert (await http.delete(f"{QUEUE}/groups/g")).status_code == 204
    assert (await http.delete(f"{QUEUE}/groups/g")).json()["code"] == "group_not_found"


async def test_a_cursor_group_reads_a_range_again_until_it_commits(http: httpx.AsyncClient) -> None:
    await http.post("/api/v1/queues", json={"name": "log", "config": {"partitions": 1}})
    await http.post(f"{QUEUE}/messages", json={"messages": [{"payload": n} for n in range(5)]})
    read = f"{QUEUE}/groups/reader/read"
    first = (await http.post(read, json={"limit": 3})).json()
    assert [message["payload"] for message in first["messages"]] == [0, 1, 2]
    assert (first["next"], first["committed"], first["high"]) == (4, 0, 6)
    assert (await http.post(read, json={"limit": 3})).json() == first
    done = await http.post(f"{QUEUE}/groups/reader/commit", json={"positions": [{"partition": 0, "sequence": 3}]})
    assert done.json() == {"messages": 3}
    rest = (await http.post(read)).json()
    assert [message["payload"] for message in rest["messages"]] == [3, 4]
    past = await http.post(f"{QUEUE}/groups/reader/commit", json={"positions": [{"partition": 0, "sequence": 99}]})
    assert past.status_code == 416
    assert past.json()["code"] == "cursor_out_of_range"


async def test_consumers_and_waiting_requests_are_shown(http: httpx.AsyncClient, node: Node) -> None:
    subscription = await node.subscriptions.join(
        ("default", "log"), "g", "pusher", lambda _: None, credit=5, protocol="test"
    )
    shown = (await http.get(f"{QUEUE}/consumers")).json()
    assert shown["waiting"] == 0
    assert shown["consumers"] == [
        {
            "name": "pusher",
            "group": "g",
            "protocol": "test",
            "partitions": list(range(10)),
            "in_flight": 0,
            "credit": 5,
        }
    ]
    subscription.leave()


async def test_a_paused_queue_takes_and_does_not_give(http: httpx.AsyncClient) -> None:
    assert (await http.post("/api/v1/queues", json={"name": "log"})).status_code == 201
    assert (await http.post(f"{QUEUE}/pause")).json()["config"]["paused"] is True
    await http.post(f"{QUEUE}/messages", json={"messages": [{"text": "a"}, {"text": "b"}]})
    assert (await http.post(f"{QUEUE}/leases")).json() == {"deliveries": []}
    await http.post(f"{QUEUE}/resume")
    assert len((await http.post(f"{QUEUE}/leases")).json()["deliveries"]) == 1
    assert (await http.post(f"{QUEUE}/purge")).json() == {"messages": 1}


async def test_stats_of_a_queue(http: httpx.AsyncClient) -> None:
    await http.post(f"{QUEUE}/messages", json={"messages": [{"text": "a"}] * 3})
    await http.post(f"{QUEUE}/leases")
    stats = (await http.get(f"{QUEUE}/stats")).json()
    assert (stats["depth"], stats["enqueued"]) == (3, 3)
    assert stats["groups"][0]["leased"] == 1
    assert stats["groups"][0]["delivery_latency"]["count"] == 1
