"""Enqueue, lease and settle over HTTP."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import httpx
import pytest

from holdfast.broker.node import Node

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


async def test_a_raw_body_is_a_payload_with_its_fields_in_headers(http: httpx.AsyncClient) -> None:
    sent = await http.post(
        MESSAGES,
        content=b"\x89PNG",
        headers={
            "content-type": "image/png",
            "holdfast-priority": "3",
            "holdfast-key": "k",
            "holdfast-ttl": "1h",
            "holdfast-properties": '{"Colour": "red"}',
            "x-correlation-id": "trace-1",
        },
    )
    assert sent.status_code == 200, sent.text
    [delivery] = (await http.post(LEASES)).json()["deliveries"]
    assert delivery["base64"] == "iVBORw=="
    assert delivery["content_type"] == "image/png"
    assert (delivery["priority"], delivery["key"]) == (3, "k")
    assert delivery["properties"] == {"Colour": "red"}
    assert delivery["correlation_id"] == "trace-1"
    assert sent.headers["x-correlation-id"] == "trace-1"


async def test_a_slip_in_the_name_of_a_header_is_not_passed_over(http: httpx.AsyncClient) -> None:
    headers = {"content-type": "text/plain", "holdfast-delays": "1h"}
    refused = await http.post(MESSAGES, content=b"x", headers=headers)
    assert (refused.status_code, refused.json()["details"]["field"]) == (400, "holdfast-delays")
    assert "Holdfast-Delay," in refused.json()["detail"]


async def test_a_json_document_can_be_sent_raw(http: httpx.AsyncClient) -> None:
    await http.post(MESSAGES, params={"raw": "true"}, json={"messages": "not a batch"})
    [delivery] = (await http.post(LEASES)).json()["deliveries"]
    assert delivery["payload"] == {"messages": "not a batch"}


async def test_what_curl_sends_by_default_is_not_taken_for_a_payload(http: httpx.AsyncClient) -> None:
    refused = await http.post(MESSAGES, data={"a": "b"})
    assert refused.status_code == 415
    assert refused.json()["code"] == "media_type_unsupported"


async def test_a_large_payload_comes_as_a_part_of_a_form(http: httpx.AsyncClient) -> None:
    await http.post("/api/v1/queues", json={"name": "jobs", "config": {"max_message_size": "3MiB"}})
    payload = bytes(range(256)) * 4096 * 3
    form: dict[str, Any] = {
        "meta": (None, '{"priority": 7, "properties": {"a": ["b", "c"]}}'),
        "payload": ("x.bin", payload),
    }
    sent = await http.post(MESSAGES, files=form)
    assert sent.status_code == 200, sent.text
    [delivery] = (await http.post(LEASES, json={"encoding": "base64"})).json()["deliveries"]
    assert b64decode(delivery["base64"]) == payload
    assert (delivery["priority"], delivery["properties"]) == (7, {"a": ["b", "c"]})
    refused = await http.post(MESSAGES, files={"payload": payload + b"x"})
    assert refused.status_code == 413
    assert refused.json()["code"] == "message_too_large"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"--b\r\n\r\nno name\r\n--b--", "no name"),
        (b'--b\r\ncontent-disposition: form-data; name="other"\r\n\r\nx\r\n--b--', "'other'"),
        (b'--b\r\ncontent-disposition: form-data; name="payload"\r\n\r\nx\r\n', "last delimiter"),
        (b'--b\r\ncontent-disposition: form-data; name="meta"\r\n\r\n{}\r\n--b--', "no part named payload"),
        (b'--b\r\ncontent-disposition: form-data; name="meta"\r\n\r\n{\r\n--b--', "no part named payload"),
        (b"--bx", "delimiter"),
        (b"", "last delimiter"),
        (b"--b\r\nx: " + b"y" * 10_000, "headers are too large"),
    ],
)
async def test_a_form_that_is_wrong_says_so(http: httpx.AsyncClient, body: bytes, problem: str) -> None:
    refused = await http.post(MESSAGES, content=body, headers={"content-type": "multipart/form-data; boundary=b"})
    assert refused.status_code == 400
    assert problem in refused.json()["detail"]


async def test_an_empty_part_is_an_empty_payload(http: httpx.AsyncClient) -> None:
    body = b'--b\r\ncontent-disposition: form-data; name="payload"\r\n\r\n\r\n--b--'
    sent = await http.post(MESSAGES, content=body, headers={"content-type": "multipart/form-data; boundary=b"})
    assert sent.status_code == 200, sent.text
    assert (await http.post(LEASES)).json()["deliveries"][0]["base64"] == ""


async def test_a_repeated_request_with_an_idempotency_key_stores_nothing_twice(http: httpx.AsyncClient) -> None:
    batch = {"messages": [{"text": "a"}, {"text": "b"}, {"text": "c", "message_id": "own"}]}
    headers = {"idempotency-key": "order-17"}
    first = (await http.post(MESSAGES, json=batch, headers=headers)).json()
    again = (await http.post(MESSAGES, json=batch, headers=headers)).json()
    assert again["ids"] == first["ids"]
    assert again["duplicates"] == [0, 1, 2]


async def test_ten_thousand_messages_are_one_request_and_one_more_is_too_many(http: httpx.AsyncClient) -> None:
    stored = (await http.post(MESSAGES, json={"messages": [{"payload": n} for n in range(10_000)]})).json()
    assert len(set(stored["ids"])) == 10_000
    refused = await http.post(MESSAGES, json={"messages": [{}] * 10_001})
    assert refused.status_code == 400
    assert refused.json()["code"] == "limit_exceeded"


async def test_one_message_is_shown_edited_and_deleted(http: httpx.AsyncClient) -> None:
    [message_id] = (await http.post(MESSAGES, json={"messages": [{"text": "a"}]})).json()["ids"]
    path = f"{MESSAGES}/{message_id}"
    edited = (await http.patch(path, json={"priority": 5, "deliver_at": "2200-01-01T00:00:00Z"})).json()
    assert edited["priority"] == 5
    shown = (await http.get(path)).json()
    assert shown["deliver_at"] == "2200-01-01T00:00:00.000Z"
    assert (await http.delete(path)).status_code == 204
    assert (await http.get(path)).json()["code"] == "message_not_found"


@pytest.mark.parametrize("wrong", ["x", "-1", "99999999999999999999", "1e3", "%ff", "٣"])
async def test_a_message_id_that_is_none_is_an_error_of_the_caller(http: httpx.AsyncClient, wrong: str) -> None:
    assert (await http.get(f"{MESSAGES}/{wrong}")).status_code == 400


async def test_browsing_goes_on_where_a_page_ended(http: httpx.AsyncClient) -> None:
    await http.post(MESSAGES, json={"messages": [{"payload": n, "key": str(n)} for n in range(25)]})
    seen: list[int] = []
    cursor = ""
    while True:
        page = (await http.get(MESSAGES, params={"limit": 10, "cursor": cursor})).json()
        seen += [message["payload"] for message in page["messages"]]
        cursor = page["cursor"]
        if not cursor:
            break
    assert seen == list(range(25))


async def test_the_history_of_a_message_goes_on_after_its_export_and_its_end(
    http: httpx.AsyncClient, node: Node
) -> None:
    await node.queues.create(("default", "jobs"), {"retry.initial_backoff": "0s", "partitions": 1})
    ids = (await http.post(MESSAGES, json={"messages": [{"text": "a"}, {"text": "b"}]})).json()["ids"]
    one, _ = (await http.post(LEASES, json={"limit": 2, "consumer": "me"})).json()["deliveries"]
    nack = {"id": one["id"], "lease_token": one["lease_token"], "action": "nack", "error": "oh"}
    await http.post(SETTLE, json={"settlements": [nack]})
    shown = (await http.get(f"{MESSAGES}/{ids[0]}", params={"history": "true"})).json()
    assert [step["event"] for step in shown["history"]] == ["enqueued", "leased", "failed"]
    await node.cell.export()
    [again] = (await http.post(LEASES, json={"wait": "30s"})).json()["deliveries"]
    await http.post(SETTLE, json={"settlements": [{"id": again["id"], "lease_token": again["lease_token"]}]})
    steps = (await http.get(f"{MESSAGES}/{ids[0]}/history")).json()["steps"]
    assert [step["event"] for step in steps] == ["enqueued", "leased", "failed", "leased", "acked"]
    assert [step.get("attempt") for step in steps] == [None, 1, 1, 2, 2]
    assert (steps[1]["consumer"], steps[2]["error"], steps[0]["protocol"]) == ("me", "oh", "http")
    assert [step["lsn"] for step in steps] == sorted({step["lsn"] for step in steps})
    assert (await http.get(f"{MESSAGES}/17/history")).json()["code"] == "message_not_found"


@pytest.mark.parametrize("exported", [False, True])
async def test_a_life_goes_on_across_deaths_redrives_and_undos(
    http: httpx.AsyncClient, node: Node, exported: bool
) -> None:
    """Followed from each of the messages that it consists of it is the same."""
    await node.queues.create(("default", "jobs"), {"partitions": 1})
    await http.post(MESSAGES, json={"messages": [{"text": "another"}]})
    other = (await http.post(LEASES, json={})).json()["deliveries"][0]
    await _reject(http, other)
    sent = (await http.post(MESSAGES, json={"messages": [{"text": "a"}]})).json()["ids"][0]
    dead, audit = "/api/v1/queues/jobs/dlq", f"exported-{exported}"

    async def die() -> str:
        [delivery] = (await http.post(LEASES, json={"wait": "30s"})).json()["deliveries"]
        await _reject(http, delivery)
        return str((await http.get(dead)).json()["messages"][-1]["id"])

    first = await die()
    retried = (await http.post(f"{dead}/{first}/retry")).json()["id"]
    second = await die()
    move = {"dead_letters": [{"id": second}]}
    again = (await http.post(f"{dead}/audits/{audit}", json=move)).json()["dead_letters"][0]["message"]
    undone = (await http.post(f"{dead}/audits/{audit}/undo", json={})).json()["dead_letters"][0]["again"]
    if exported:
        await node.cell.export()
    whole = [
        ("enqueued", "jobs", sent),
        ("leased", "jobs", sent),
        ("dead", "jobs", sent),
        ("enqueued", "dlq/jobs", first),
        ("enqueued", "jobs", retried),
        ("leased", "jobs", retried),
        ("dead", "jobs", retried),
        ("enqueued", "dlq/jobs", second),
        ("enqueued", "jobs", again),
        ("enqueued", "dlq/jobs", undone),
    ]
    for queue, message in {(queue, message) for _, queue, message in whole}:
        path = f"/api/v1/queues/{queue.replace('/', '%2F')}/messages/{message}/history"
        steps = (await http.get(path, params={"related": "true"})).json()["steps"]
        known = [(step["event"], step["queue"], step["message_id"]) for step in steps]
        assert set(whole) <= set(known), (queue, message)
        assert {name for _, _, name in known} == {name for _, _, name in whole}
        alone = (await http.get(path)).json()["steps"]
        assert len(alone) == sum(name == message for _, _, name in known)
        assert "queue" not in alone[0]


async def _reject(http: httpx.AsyncClient, delivery: dict[str, Any]) -> None:
    settlement = {"id": delivery["id"], "lease_token": delivery["lease_token"], "action": "reject", "error": "bad"}
    await http.post(SETTLE, json={"settlements": [settlement]})


QUEUE = "/api/v1/queues/jobs"


async def test_what_no_group_has_seen_is_browsed_by_its_state(http: httpx.AsyncClient) -> None:
    await http.post(f"{QUEUE}/messages", json={"messages": [{"text": "now"}, {"text": "later", "delay": "1h"}]})
    for state, text in (("ready", "now"), ("scheduled", "later")):
        page = (await http.get(f"{QUEUE}/messages", params={"state": state})).json()
        assert [one["text"] for one in page["messages"]] == [text]


async def test_a_state_or_a_group_that_is_none_is_refused_when_browsing(http: httpx.AsyncClient) -> None:
    await http.post(f"{QUEUE}/messages", json={"messages": [{"text": "x"}]})
    state = await http.get(f"{QUEUE}/messages", params={"state": "lost"})
    assert (state.status_code, state.json()["code"]) == (400, "invalid_argument")
    group = await http.get(f"{QUEUE}/messages", params={"state": "ready", "group": "nobody"})
    assert (group.status_code, group.json()["code"]) == (404, "group_not_found")


async def test_a_path_that_is_none_is_a_problem_like_any_other(http: httpx.AsyncClient) -> None:
    for path in ("/api/v1/nothing", "/elsewhere"):
        lost = await http.get(path)
        assert (lost.status_code, lost.headers["content-type"]) == (404, "application/problem+json"), lost.text
        assert lost.json()["code"] == "route_not_found"


async def test_a_lease_lasts_for_a_while_and_not_for_ever(http: httpx.AsyncClient) -> None:
    await http.post(f"{QUEUE}/messages", json={"messages": [{"text": "a"}, {"text": "b"}]})
    for timeout in (0, "13h"):
        refused = await http.post(f"{QUEUE}/leases", json={"timeout": timeout})
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_argument")
        assert "timeout is more than 0 and at most 43200 s" in refused.json()["detail"]
        stream = await http.post(f"{QUEUE}/stream", params={"timeout": timeout})
        assert stream.status_code == 400
    held = (await http.post(f"{QUEUE}/leases", json={"limit": 2})).json()["deliveries"]
    settlements = [
        {"id": one["id"], "lease_token": one["lease_token"], "action": "extend", "timeout": timeout}
        for one, timeout in ((held[0], "300d"), (held[1], "1h"), (held[0], 0))
    ]
    settled = (await http.post(f"{QUEUE}/settle", json={"settlements": settlements})).json()
    assert settled["settled"] == 1
    assert [(error["index"], error["code"]) for error in settled["errors"]] == [
        (0, "invalid_argument"),
        (2, "invalid_argument"),
    ]
    assert list(settled["deadlines"]) == [held[1]["id"]]


async def test_ids_in_errors_are_texts(http: httpx.AsyncClient) -> None:
    await http.post(f"{QUEUE}/messages", json={"messages": [{"text": "a"}]})
    found = 116377587260850176
    missing = (await http.get(f"{QUEUE}/messages/{found}")).json()
    assert (missing["code"], missing["details"]["message_id"]) == ("message_not_found", str(found))
    await http.put(f"{QUEUE}/groups/default", json={})
    settlement = {"settlements": [{"id": str(found), "lease_token": "1"}]}
    lost = (await http.post(f"{QUEUE}/settle", json=settlement)).json()
    assert lost["errors"][0]["details"] == {"message_id": str(found)}
