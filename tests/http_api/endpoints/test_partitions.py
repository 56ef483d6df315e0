"""Partitions looked at one by one, with columns and conditions."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pyarrow as pa
import pytest

from holdfast.broker.node import Node

ARROW = "application/vnd.apache.arrow.stream"
QUEUE = "/api/v1/queues/bulk"


async def fill(http: httpx.AsyncClient, count: int, partitions: int = 2) -> None:
    config = {"partitions": partitions, "retry": {"initial_backoff": "1m"}}
    assert (await http.post("/api/v1/queues", json={"name": "bulk", "config": config})).status_code == 201
    messages = [
        {"text": f"n{number}", "key": f"k{number % 3}", "priority": number, "delay": "1h" if number == 4 else None}
        for number in range(count)
    ]
    assert (await http.post(f"{QUEUE}/messages", json={"messages": messages})).status_code == 200


async def bounds(http: httpx.AsyncClient, **params: str) -> list[dict[str, int]]:
    found: list[dict[str, int]] = (await http.get(f"{QUEUE}/partitions", params=params)).json()["partitions"]
    return found


async def table(http: httpx.AsyncClient, partition: int, **params: Any) -> tuple[Any, int]:
    answer = await http.get(f"{QUEUE}/partitions/{partition}/messages", params=params, headers={"accept": ARROW})
    assert answer.status_code == 200, answer.text
    return pa.ipc.open_stream(answer.content).read_all(), int(answer.headers["holdfast-next"])


async def rows(http: httpx.AsyncClient, **params: Any) -> list[dict[str, Any]]:
    """Over all partitions, in pages."""
    found: list[dict[str, Any]] = []
    for one in await bounds(http):
        at = one["first"]
        while at:
            page, at = await table(http, one["partition"], **params, first=at, until=one["end"])
            found += page.to_pylist()
    return found


async def test_ranges_of_all_partitions_are_all_messages_once(http: httpx.AsyncClient) -> None:
    await fill(http, 30)
    ends = await bounds(http)
    assert sum(one["end"] - one["first"] for one in ends) == 30
    found = await rows(http, limit=4)
    assert sorted(row["payload"] for row in found) == sorted(f"n{number}".encode() for number in range(30))
    assert len({(row["partition"], row["sequence"]) for row in found}) == 30
    assert {row["size_bytes"] for row in found} == {2, 3}
    shown = (await http.get(f"{QUEUE}/partitions/0/messages", params={"first": 2, "until": 4})).json()
    assert [(message["sequence"], message["partition"]) for message in shown["messages"]] == [(2, 0), (3, 0)]
    assert shown["next"] == 0


async def test_only_the_columns_that_are_asked_for_travel(http: httpx.AsyncClient) -> None:
    await fill(http, 3, 1)
    page, _ = await table(http, 0, columns="sequence,key")
    assert page.to_pydict() == {"sequence": [1, 2, 3], "key": ["k0", "k1", "k2"]}
    body = {"partition": 0, "first": 1, "columns": ["size_bytes"]}
    answer = await http.post(f"{QUEUE}/groups/log/read", json=body, headers={"accept": ARROW})
    assert pa.ipc.open_stream(answer.content).read_all().to_pydict() == {"size_bytes": [2, 2, 2]}
    wrong = await http.get(f"{QUEUE}/partitions/0/messages", params={"columns": "sequnce"}, headers={"accept": ARROW})
    assert wrong.status_code == 400
    assert "has no 'sequnce'; known are id, sequence" in wrong.json()["detail"]


@pytest.mark.parametrize(
    ("conditions", "numbers"),
    [
        ([["priority", "<", 3]], {0, 1, 2}),
        ([["priority", ">=", 3], ["priority", "<=", 4]], {3, 4}),
        ([["key", "=", "k1"], ["priority", ">", 4]], {7}),
        ([["priority", "in", [1, 5, 99]]], {1, 5}),
        ([["key", "in", ["k2"]]], {2, 5, 8}),
        ([["reason", "null"], ["priority", "=", 6]], {6}),
        ([["reason", "=", "expired"]], set()),
        ([["message_id", "not null"]], set()),
        ([["enqueued_at", ">", "2026-01-01T00:00:00Z"], ["sequence", "=", 1]], {0}),
        ([["enqueued_at", "<", 1_000]], set()),
        ([["id", ">", "1"], ["id", ">", 1], ["sequence", "=", 2]], {1}),
    ],
)
async def test_only_what_meets_the_conditions_travels(
    http: httpx.AsyncClient, conditions: list[object], numbers: set[int]
) -> None:
    await fill(http, 9, 1)
    found = await rows(http, where=json.dumps(conditions), limit=4)
    assert {int(row["payload"][1:]) for row in found} == numbers
    shown = (await http.get(f"{QUEUE}/partitions/0/messages", params={"where": json.dumps(conditions)})).json()
    assert {int(message["text"][1:]) for message in shown["messages"]} == numbers


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"where": '[["payload","=","x"]]'}, "cannot ask for 'payload'"),
        ({"where": '[["priority","=","x"]]'}, "not of its kind"),
        ({"where": '[["priority","~",1]]'}, 'is not like [["priority","<=",5]]'),
        ({"where": '[["priority","in",1]]'}, "wants a list"),
        ({"where": json.dumps([["priority", "=", 1]] * 65)}, "more than 64"),
        ({"where": '[["group","=","a"]]'}, "cannot ask for 'group'"),
        ({"limit": 10_001}, "is 1 to 10000"),
        ({"first": -1}, "is a sequence"),
        ({"max_bytes": 0}, "is at least 1"),
    ],
)
async def test_what_makes_no_sense_is_named(http: httpx.AsyncClient, params: dict[str, Any], problem: str) -> None:
    await fill(http, 1, 1)
    answer = await http.get(f"{QUEUE}/partitions/0/messages", params=params)
    assert answer.status_code == 400
    assert problem in answer.json()["detail"]


@pytest.mark.parametrize("partition", ["1", "x", "-1"])
async def test_a_partition_that_is_not_there_is_refused(http: httpx.AsyncClient, partition: str) -> None:
    await fill(http, 1, 1)
    assert (await http.get(f"{QUEUE}/partitions/{partition}/messages")).status_code == 400


async def test_deliveries_show_who_has_what_and_what_failed(http: httpx.AsyncClient) -> None:
    await fill(http, 5, 1)
    for group in ("work", "audit"):
        await http.put(f"{QUEUE}/groups/{group}", json={"start": "earliest"})
    leased = (await http.post(f"{QUEUE}/leases", json={"group": "work", "limit": 3, "consumer": "w1"})).json()
    first, second, _ = leased["deliveries"]
    settle = [
        {"id": first["id"], "lease_token": first["lease_token"], "action": "ack"},
        {"id": second["id"], "lease_token": second["lease_token"], "action": "nack", "error": "no route"},
    ]
    answer = await http.post(f"{QUEUE}/settle", json={"group": "work", "settlements": settle})
    assert answer.status_code == 200, answer.text
    found = {(row["group"], row["sequence"]): row for row in await rows(http, view="deliveries")}
    assert len(found) == 10
    states = {sequence: row["state"] for (group, sequence), row in found.items() if group == "work"}
    assert states == {1: "settled", 2: "scheduled", 3: "leased", 4: "ready", 5: "scheduled"}
    failed, held, untouched = found["work", 2], found["work", 3], found["audit", 3]
    assert (failed["attempt"], failed["error"], failed["consumer"]) == (2, "no route", "w1")
    assert failed["ready_at"] > failed["enqueued_at"]
    assert (held["attempt"], held["consumer"]) == (1, "w1")
    assert held["lease_deadline"] > held["enqueued_at"]
    assert (untouched["state"], untouched["lease_deadline"]) == ("ready", None)
    where = json.dumps([["group", "=", "work"], ["state", "=", "leased"]])
    assert [row["sequence"] for row in await rows(http, view="deliveries", where=where)] == [3]
    assert await rows(http, view="deliveries", where=json.dumps([["consumer", "=", "w2"]])) == []
    shown = (await http.get(f"{QUEUE}/partitions/0/messages", params={"view": "deliveries", "where": where})).json()
    assert [message["sequence"] for message in shown["messages"]] == [3]


async def test_bounds_begin_where_the_records_or_the_wanted_time_do(http: httpx.AsyncClient, node: Node) -> None:
    assert (await http.get(f"{QUEUE}/partitions")).status_code == 404
    await fill(http, 5, 1)
    found = await rows(http, columns="sequence,enqueued_at")
    last = found[-1]["enqueued_at"]
    assert await bounds(http, since="2026-01-01T00:00:00Z") == [{"partition": 0, "first": 1, "end": 6}]
    assert await bounds(http, since="2199-01-01T00:00:00Z") == [{"partition": 0, "first": 6, "end": 6}]
    while node.clock() <= last.timestamp() * 1_000_000 + 1_000:
        pass
    await http.post(f"{QUEUE}/messages", json={"messages": [{"text": "later"}] * 3})
    later = (await rows(http, columns="sequence,enqueued_at"))[5]["enqueued_at"]
    assert (await bounds(http, since=later.isoformat()))[0] == {"partition": 0, "first": 6, "end": 9}
    assert (await bounds(http, since=last.isoformat()))[0]["first"] == 1
