"""lockd's queue API: forms in, multipart out, leases with fencing, correlation ids, streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from email.message import Message
from email.parser import BytesParser
from typing import Any

import httpx
import pytest

from holdfast.broker.node import Node
from holdfast.core.commands import Draft
from holdfast.http_api.server.request import Request
from tests.waiting import until

Q = "orders"
NAME = ("default", Q)
Files = dict[str, tuple[str | None, bytes, str]]
Delivery = tuple[dict[str, Any], bytes]


async def enqueue(http: httpx.AsyncClient, payload: bytes = b"{}", **meta: object) -> dict[str, Any]:
    files: Files = {
        "meta": (None, json.dumps({"queue": Q, **meta}).encode(), "application/json"),
        "payload": ("p", payload, "application/json"),
    }
    answer = await http.post("/v1/queue/enqueue", files=files)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_an_idempotency_key_that_is_empty_is_refused(http: httpx.AsyncClient) -> None:
    files: Files = {"meta": (None, json.dumps({"queue": Q}).encode(), "application/json")}
    answer = await http.post("/v1/queue/enqueue", files=files, headers={"idempotency-key": ""})
    assert (answer.status_code, "Idempotency-Key is empty" in answer.text) == (400, True)


def parts_of(content_type: str, body: bytes) -> list[Message]:
    parsed = BytesParser().parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
    parts = parsed.get_payload()
    assert isinstance(parts, list)
    return [part for part in parts if isinstance(part, Message)]


def deliveries(answer: httpx.Response) -> list[Delivery]:
    parts = parts_of(answer.headers["content-type"], answer.content)
    metas, payloads = parts[::2], parts[1::2]
    return [
        (json.loads(str(meta.get_payload()))["message"], str(payload.get_payload()).encode())
        for meta, payload in zip(metas, payloads, strict=True)
    ]


async def dequeue(http: httpx.AsyncClient, **body: object) -> list[Delivery]:
    answer = await http.post("/v1/queue/dequeue", json={"queue": Q, "owner": "me", "wait_seconds": -1, **body})
    assert answer.status_code == 200, answer.text
    return deliveries(answer)


def lease_of(message: dict[str, Any]) -> dict[str, Any]:
    fields = ("message_id", "lease_id", "fencing_token", "meta_etag")
    return {"queue": Q, **{field: message[field] for field in fields}}


async def test_a_message_goes_its_way(http: httpx.AsyncClient, node: Node) -> None:
    stored = await enqueue(http, b'{"n": 1}', attributes={"a": 1, "b": ["x"]})
    assert stored["queue"] == Q
    assert stored["payload_bytes"] == 8
    assert stored["max_attempts"] == 11
    assert stored["correlation_id"]
    [(message, payload)] = await dequeue(http)
    assert payload == b'{"n": 1}'
    assert message["message_id"] == stored["message_id"]
    assert message["attributes"] == {"a": 1, "b": ["x"]}
    assert message["attempts"] == 1
    assert message["payload_content_type"] == "application/json"
    assert message["correlation_id"] == stored["correlation_id"]
    assert message["lease_id"] == message["meta_etag"] == str(message["fencing_token"])
    acked = await http.post("/v1/queue/ack", json=lease_of(message))
    assert acked.json() == {"acked": True, "correlation_id": stored["correlation_id"]}
    assert (await node.inspection.stats(NAME)).depth == 0


async def test_a_correlation_id_of_the_callers_is_kept_for_life(http: httpx.AsyncClient) -> None:
    files: Files = {"meta": (None, json.dumps({"queue": Q}).encode(), ""), "payload": (None, b"x", "")}
    answer = await http.post("/v1/queue/enqueue", files=files, headers={"X-Correlation-Id": "trace-7"})
    assert answer.headers["x-correlation-id"] == "trace-7"
    assert answer.json()["correlation_id"] == "trace-7"
    answer = await http.post("/v1/queue/dequeue", json={"queue": Q, "owner": "me"})
    assert answer.headers["x-correlation-id"] == "trace-7"
    [(message, _)] = deliveries(answer)
    assert message["correlation_id"] == "trace-7"
    extended = await http.post("/v1/queue/extend", json={**lease_of(message), "extend_by_seconds": 60})
    assert extended.json()["correlation_id"] == "trace-7"
    nacked = await http.post("/v1/queue/nack", json=lease_of(message))
    assert nacked.json()["correlation_id"] == "trace-7"


async def test_a_stale_lease_is_refused_as_lockd_does(http: httpx.AsyncClient) -> None:
    await enqueue(http)
    [(message, _)] = await dequeue(http)
    good = lease_of(message)
    for wrong in ({"fencing_token": 1}, {"lease_id": "1", "fencing_token": 1}):
        answer = await http.post("/v1/queue/ack", json={**good, **wrong})
        assert answer.status_code == 409
        assert answer.json()["error"] == "queue_message_lease_mismatch"
    assert (await http.post("/v1/queue/ack", json=good)).status_code == 200
    assert (await http.post("/v1/queue/ack", json=good)).status_code == 200  # again, as the first time


async def test_a_failure_spends_an_attempt_and_a_deferral_does_not(http: httpx.AsyncClient, node: Node) -> None:
    await enqueue(http)
    [(message, _)] = await dequeue(http)
    answer = await http.post("/v1/queue/nack", json={**lease_of(message), "intent": "defer"})
    assert answer.json()["requeued"] is True
    [(message, _)] = await dequeue(http)
    assert (message["attempts"], message.get("failure_attempts", 0)) == (1, 0)
    await http.post(
        "/v1/queue/nack", json={**lease_of(message), "delay_seconds": 60, "last_error": {"code": "E17", "why": "busy"}}
    )
    _, _, [status] = await node.inspection.find(NAME, int(message["message_id"]))
    assert status.state == "scheduled"
    assert json.loads(status.error) == {"code": "E17", "why": "busy"}


async def test_a_deferral_may_have_a_delay(http: httpx.AsyncClient, node: Node) -> None:
    await enqueue(http)
    [(message, _)] = await dequeue(http)
    await http.post("/v1/queue/nack", json={**lease_of(message), "intent": "defer", "delay_seconds": 60})
    answer = await http.post("/v1/queue/dequeue", json={"queue": Q, "owner": "me", "wait_seconds": -1})
    assert (answer.status_code, answer.json()["error"]) == (409, "waiting")
    assert answer.json()["retry_after_seconds"] > 0
    _, _, [status] = await node.inspection.find(NAME, int(message["message_id"]))
    assert (status.state, status.attempt) == ("scheduled", 1)  # a failure would make the next one the second


async def test_a_waiting_dequeue_is_answered_when_something_comes(http: httpx.AsyncClient, node: Node) -> None:
    import asyncio

    waiting = asyncio.create_task(
        http.post("/v1/queue/dequeue", json={"queue": Q, "owner": "me", "page_size": 5, "wait_seconds": 30})
    )
    await until(lambda: node.cell.dispatcher.waiters.count)
    stats = (await http.post("/v1/queue/stats", json={"queue": Q})).json()
    assert (stats["waiting_consumers"], stats["available"]) == (1, False)
    await enqueue(http, b"hello")
    [(_, payload)] = deliveries(await waiting)
    assert payload == b"hello"


async def test_several_come_in_one_answer(http: httpx.AsyncClient) -> None:
    for n in range(3):
        await enqueue(http, b"%d" % n)
    answer = await http.post("/v1/queue/dequeue", json={"queue": Q, "owner": "me", "page_size": 10})
    assert [payload for _, payload in deliveries(answer)] == [b"0", b"1", b"2"]
    names = [part.get_filename() for part in parts_of(answer.headers["content-type"], answer.content)]
    assert names == ["meta-0.json", "payload-0", "meta-1.json", "payload-1", "meta-2.json", "payload-2"]


async def test_extend_moves_the_end_of_the_lease(http: httpx.AsyncClient) -> None:
    await enqueue(http)
    [(message, _)] = await dequeue(http, visibility_timeout_seconds=10)
    answer = await http.post("/v1/queue/extend", json={**lease_of(message), "extend_by_seconds": 3600})
    extended = answer.json()
    assert extended["lease_expires_at_unix"] >= message["lease_expires_at_unix"] + 3000
    assert extended["visibility_timeout_seconds"] == 3600


async def test_a_subscriber_is_sent_what_comes_and_gives_back_what_it_leaves(
    http: httpx.AsyncClient, node: Node
) -> None:
    await enqueue(http, b"one")
    body = {"queue": Q, "owner": "me", "page_size": 2}
    async with http.stream("POST", "/v1/queue/subscribe", json=body) as stream:
        boundary = stream.headers["content-type"].partition("boundary=")[2]
        chunks = stream.aiter_bytes()
        first = await _until_payload(chunks, b"one")
        assert first.startswith(b"--" + boundary.encode())
        await enqueue(http, b"two")
        await _until_payload(chunks, b"two")
        assert (await node.inspection.stats(NAME)).groups[0].leased == 2
    await until(lambda: node.inspection.current_stats(NAME).groups[0].leased == 0)
    assert [payload for _, payload in await dequeue(http, page_size=5)] == [b"one", b"two"]


async def _until_payload(chunks: AsyncIterator[bytes], payload: bytes) -> bytes:
    seen = b""
    async for chunk in chunks:
        seen += chunk
        if seen.endswith(payload + b"\r\n"):
            return seen
    raise AssertionError(f"the stream ended after {seen!r}")


async def test_what_a_producer_says_of_a_payload_does_not_become_headers_of_the_answer(
    http: httpx.AsyncClient,
) -> None:
    evil = {"correlation_id": "a\r\nset-cookie: b", "content_type": "text/plain\r\nx-evil: 1\r\n\r\nfalse"}
    await http.post(f"/api/v1/queues/{Q}/messages", json={"messages": [{"text": "true", **evil}]})
    answer = await http.post("/v1/queue/dequeue", json={"queue": Q, "owner": "me", "wait_seconds": -1})
    assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)
    assert b"x-evil: 1\r\n" not in answer.content
    [(message, payload)] = deliveries(answer)
    assert payload == b"true"
    assert (message["correlation_id"], message["payload_content_type"]) == (
        evil["correlation_id"],
        evil["content_type"],
    )


async def test_what_is_found_when_the_client_has_gone_is_given_back(
    http: httpx.AsyncClient, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await enqueue(http)

    gone = asyncio.get_running_loop().create_future()
    gone.set_result(None)
    monkeypatch.setattr(Request, "disconnected", gone)
    with pytest.raises(httpx.TransportError):
        await http.post("/v1/queue/dequeue", json={"queue": Q, "owner": "me", "wait_seconds": 30})
    [leased] = await node.messages.lease(NAME, "default")
    assert leased.attempt == 1


async def test_how_a_queue_stands_costs_the_same_at_any_depth(
    http: httpx.AsyncClient, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.messages.enqueue(NAME, [Draft(b"later", deliver_at=node.clock() + 3_600_000_000) for _ in range(3000)])
    steps: list[object] = []
    step = node.cell.engine.step

    def counted(*args: Any) -> object:
        steps.append(args[2])
        return step(*args)

    monkeypatch.setattr(node.cell.engine, "step", counted)
    assert (await http.post("/v1/queue/stats", json={"queue": Q})).json()["available"] is False
    [now] = (await node.messages.enqueue(NAME, [Draft(b"now")])).ids
    steps.clear()
    shown = (await http.post("/v1/queue/stats", json={"queue": Q})).json()
    assert (shown["available"], shown["head_message_id"]) == (True, str(now))
    assert len(steps) <= 1


async def test_watch_reports_when_the_head_changes(http: httpx.AsyncClient) -> None:
    stored = await enqueue(http, b"one")
    async with http.stream("POST", "/v1/queue/watch", json={"queue": Q}) as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        lines = stream.aiter_lines()
        assert await _event(lines) == ("1", True, stored["message_id"])
        [(message, _)] = await dequeue(http)
        assert await _event(lines) == ("2", False, None)
        await http.post("/v1/queue/ack", json=lease_of(message))
        other = await enqueue(http, b"two")
        assert await _event(lines) == ("3", True, other["message_id"])


async def _event(lines: AsyncIterator[str]) -> tuple[str, bool, str | None]:
    fields: dict[str, str] = {}
    async for line in lines:
        if not line and fields:
            assert fields["event"] == "queue_watch"
            data = json.loads(fields["data"])
            return fields["id"], data["available"], data.get("head_message_id")
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
    raise AssertionError("the stream ended")


async def test_stats_show_the_head(http: httpx.AsyncClient) -> None:
    stored = await enqueue(http)
    stats = (await http.post("/v1/queue/stats", json={"queue": Q})).json()
    assert stats["available"] is True
    assert stats["head_message_id"] == stored["message_id"]
    assert stats["waiting_consumers"] == 0


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("dequeue", {"queue": Q}, 400, "invalid_argument"),
        ("dequeue", {"owner": "me"}, 400, "invalid_argument"),
        ("dequeue", {"queue": "a/#", "owner": "me"}, 400, "invalid_name"),
        ("ack", {"queue": Q, "message_id": "x", "lease_id": "1"}, 400, "invalid_argument"),
        ("ack", {"queue": Q, "message_id": "1"}, 400, "invalid_argument"),
        ("nack", {"queue": Q, "message_id": "1", "lease_id": "1", "intent": "maybe"}, 400, "invalid_argument"),
        ("stats", {"queue": "nowhere"}, 404, "queue_not_found"),
        ("watch", {"queue": "nowhere"}, 404, "queue_not_found"),
    ],
)
async def test_errors_are_in_lockds_envelope(
    http: httpx.AsyncClient, path: str, body: object, status: int, code: str
) -> None:
    answer = await http.post(f"/v1/queue/{path}", json=body)
    assert (answer.status_code, answer.json()["error"]) == (status, code)
    assert answer.json()["detail"]


async def test_a_form_without_meta_is_refused(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/queue/enqueue", files={"payload": (None, b"x")})
    assert (answer.status_code, answer.json()["error"]) == (400, "malformed_request")
    answer = await http.post("/v1/queue/enqueue", json={"queue": Q})
    assert answer.status_code == 400


async def dequeue_with_state(http: httpx.AsyncClient) -> dict[str, Any]:
    answer = await http.post("/v1/queue/dequeueWithState", json={"queue": Q, "owner": "me", "wait_seconds": -1})
    assert answer.status_code == 200, answer.text
    [(message, _)] = deliveries(answer)
    return message


async def test_state_is_made_lazily_and_kept_through_a_retry(http: httpx.AsyncClient, node: Node) -> None:
    await enqueue(http)
    message = await dequeue_with_state(http)
    assert message["state_etag"] == "1"
    assert message["state_lease_id"] == message["lease_id"]
    message_id, token = int(message["message_id"]), int(message["lease_id"])
    await node.workflow_state.put(NAME, "default", message_id, token, b'{"step": 2}', 1)
    await http.post("/v1/queue/nack", json={**lease_of(message), "intent": "defer"})
    again = await dequeue_with_state(http)
    assert again["state_etag"] == "2"
    state = await node.workflow_state.get(NAME, "default", message_id)
    assert state is not None
    assert state.data == b'{"step": 2}'


async def test_an_ack_that_has_not_seen_the_state_is_refused(http: httpx.AsyncClient, node: Node) -> None:
    await enqueue(http)
    message = await dequeue_with_state(http)
    await node.workflow_state.put(NAME, "default", int(message["message_id"]), int(message["lease_id"]), b"{}", 1)
    stale = await http.post("/v1/queue/ack", json={**lease_of(message), "state_etag": "1"})
    assert (stale.status_code, stale.json()["error"]) == (412, "state_changed")
    other = await http.post("/v1/queue/ack", json={**lease_of(message), "state_lease_id": "7"})
    assert (other.status_code, other.json()["error"]) == (409, "queue_message_lease_mismatch")
    acked = await http.post("/v1/queue/ack", json={**lease_of(message), "state_etag": "2"})
    assert acked.status_code == 200


async def test_a_subscriber_can_have_states_too(http: httpx.AsyncClient) -> None:
    await enqueue(http, b"one")
    body = {"queue": Q, "owner": "me"}
    async with http.stream("POST", "/v1/queue/subscribeWithState", json=body) as stream:
        assert b'"state_etag":"1"' in await _until_payload(stream.aiter_bytes(), b"one")
