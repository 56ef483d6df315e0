"""Enqueue, lease and settle over HTTP."""

from __future__ import annotations

import httpx

MESSAGES = "/api/v1/queues/jobs/messages"
LEASES = "/api/v1/queues/jobs/leases"
SETTLE = "/api/v1/queues/jobs/settle"


async def test_a_message_is_stored_leased_and_acked(http: httpx.AsyncClient) -> None:
    stored = (await http.post(MESSAGES, json={"messages": [{"payload": {"n": 1}, "properties": {"a": "b"}}]})).json()
    assert stored["durability"] == "fsync"
    leased = (await http.post(LEASES, json={"limit": 10, "consumer": "me"})).json()["deliveries"]
    assert [delivery["id"] for delivery in leased] == stored["ids"]
    assert leased[0]["payload"] == {"n": 1}
    assert leased[0]["properties"] == {"a": "b"}
    assert leased[0]["attempt"] == 1
    settled = await http.post(
        SETTLE, json={"settlements": [{"id": leased[0]["id"], "lease_token": leased[0]["lease_token"]}]}
    )
    assert settled.json() == {"settled": 1, "errors": [], "deadlines": {}}
    assert (await http.post(LEASES)).json() == {"deliveries": []}


async def test_a_payload_comes_back_in_the_form_it_was_sent(http: httpx.AsyncClient) -> None:
    drafts = [{"payload": [1, "ä"]}, {"text": "123"}, {"base64": "/w=="}, {"text": "héllo"}, {}]
    await http.post(MESSAGES, json={"messages": drafts})
    leased = (await http.post(LEASES, json={"limit": 10})).json()["deliveries"]
    forms = [{key: item[key] for key in ("payload", "text", "base64") if key in item} for item in leased]
    assert forms == [{"payload": [1, "ä"]}, {"text": "123"}, {"base64": "/w=="}, {"text": "héllo"}, {"base64": ""}]


async def test_a_bad_message_is_reported_by_index_and_stops_nobody(http: httpx.AsyncClient) -> None:
    drafts = [{"text": "good"}, {"priority": "high"}, {"delay": "soon"}, {"priority": 999}, {"text": "good too"}]
    answer = await http.post(MESSAGES, json={"messages": drafts})
    assert answer.status_code == 200
    receipt = answer.json()
    assert [message_id is not None for message_id in receipt["ids"]] == [True, False, False, False, True]
    assert [error["index"] for error in receipt["errors"]] == [1, 2, 3]
    assert {error["code"] for error in receipt["errors"]} == {"invalid_argument"}


async def test_an_atomic_batch_with_a_bad_message_stores_nothing(http: httpx.AsyncClient) -> None:
    for bad in ({"priority": "high"}, {"priority": 999}):
        answer = await http.post(MESSAGES, json={"messages": [{"text": "good"}, bad], "atomic": True})
        assert answer.status_code == 400
        assert [error["index"] for error in answer.json()["errors"]] == [1]
    assert (await http.post(LEASES)).json() == {"deliveries": []}
    whole = await http.post(MESSAGES, json={"messages": [{"text": "good"}] * 3, "atomic": True})
    assert len(whole.json()["ids"]) == 3


async def test_an_atomic_batch_is_refused_whole_if_it_does_not_fit(http: httpx.AsyncClient) -> None:
    await http.post("/api/v1/queues", json={"name": "jobs", "config": {"max_depth": 2}})
    answer = await http.post(
        MESSAGES, json={"messages": [{"text": "a", "key": str(n)} for n in range(3)], "atomic": True}
    )
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["code"] == "queue_full"
    assert (await http.get("/api/v1/queues/jobs")).json()["depth"] == 0


async def test_settling_with_an_old_token_is_409_and_changes_nothing(http: httpx.AsyncClient) -> None:
    await http.post(MESSAGES, json={"messages": [{"text": "a"}, {"text": "b"}]})
    one, two = (await http.post(LEASES, json={"limit": 2})).json()["deliveries"]
    wrong = {"id": one["id"], "lease_token": two["lease_token"]}
    refused = await http.post(SETTLE, json={"settlements": [wrong]})
    assert refused.status_code == 409
    assert refused.json()["code"] == "lease_lost"
    mixed = await http.post(
        SETTLE,
        json={
            "settlements": [
                wrong,
                {"id": one["id"], "lease_token": one["lease_token"], "action": "extend", "timeout": "5m"},
            ]
        },
    )
    assert mixed.status_code == 200
    assert mixed.json()["settled"] == 1
    assert [error["index"] for error in mixed.json()["errors"]] == [0]
    assert mixed.json()["deadlines"][one["id"]] > one["lease_deadline"]
