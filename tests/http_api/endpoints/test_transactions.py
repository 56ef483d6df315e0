"""Transactions over HTTP."""

from __future__ import annotations

import httpx
import pyarrow as pa

TRANSACTION = "/api/v1/transactions/query-7"
ARROW = "application/vnd.apache.arrow.stream"


async def depth(http: httpx.AsyncClient, queue: str) -> int:
    answer = await http.get(f"/api/v1/queues/{queue}")
    found: int = answer.json().get("depth", 0)
    return found


async def test_staged_messages_are_seen_all_immediately_and_once(http: httpx.AsyncClient) -> None:
    batches = [
        {"queue": "a", "messages": [{"text": "1"}, {"text": "2"}]},
        {"queue": "b", "messages": [{"text": "3"}]},
    ]
    staged = (await http.post(f"{TRANSACTION}/stage", json={"batches": batches})).json()
    assert (staged["messages"], staged["repeated"]) == (3, False)
    again = (await http.post(f"{TRANSACTION}/stage", json={"batches": batches})).json()
    assert (again["messages"], again["repeated"]) == (3, True)
    assert (await depth(http, "a"), await depth(http, "b")) == (0, 0)
    assert (await http.get(TRANSACTION)).json()["state"] == "open"

    published = (await http.post(f"{TRANSACTION}/publish")).json()
    assert (published["state"], published["published"], published["repeated"]) == ("published", 3, False)
    assert (await http.post(f"{TRANSACTION}/publish")).json()["repeated"] is True
    assert (await depth(http, "a"), await depth(http, "b")) == (2, 1)
    late = await http.post(f"{TRANSACTION}/stage", json={"batches": batches, "chunk": 1})
    assert late.json()["code"] == "transaction_published"


async def test_only_the_attempts_that_count_are_published(http: httpx.AsyncClient) -> None:
    path = "/api/v1/transactions/tasks"
    for attempt in ("0", "1"):
        batch = {"queue": "a", "messages": [{"text": attempt}]}
        await http.post(f"{path}/stage", json={"batches": [batch], "part": "0", "attempt": attempt})
    undecided = await http.post(f"{path}/publish")
    assert undecided.json()["code"] == "transaction_incomplete"
    await http.post(f"{path}/publish", json={"parts": {"0": "1"}})
    [message] = (await http.get("/api/v1/queues/a/messages")).json()["messages"]
    assert message["text"] == "1"


async def test_rows_of_an_arrow_stream_are_staged(http: httpx.AsyncClient) -> None:
    table = pa.table({"payload": [b"x", b"y"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    path = "/api/v1/transactions/arrow"
    staged = await http.post(
        f"{path}/stage",
        params={"queue": "a", "part": "p"},
        content=sink.getvalue().to_pybytes(),
        headers={"content-type": ARROW},
    )
    assert staged.json()["messages"] == 2
    assert (await http.post(f"{path}/publish")).json()["published"] == 2


async def test_an_aborted_transaction_leaves_nothing(http: httpx.AsyncClient) -> None:
    path = "/api/v1/transactions/gone"
    await http.post(f"{path}/stage", json={"batches": [{"queue": "a", "messages": [{"text": "1"}]}]})
    assert (await http.post(f"{path}/abort")).json() == {"aborted": True}
    assert (await http.post(f"{path}/abort")).json() == {"aborted": False}
    missing = await http.post(f"{path}/publish")
    assert (missing.status_code, missing.json()["code"]) == (404, "transaction_not_found")


async def test_a_stage_with_a_bad_message_stages_nothing(http: httpx.AsyncClient) -> None:
    path = "/api/v1/transactions/bad"
    batches = [
        {"queue": "a", "messages": [{"text": "1"}]},
        {"queue": "b", "messages": [{"text": "2"}, {"text": "3", "priority": 999}]},
    ]
    refused = await http.post(f"{path}/stage", json={"batches": batches})
    assert refused.status_code == 400
    assert [error["index"] for error in refused.json()["errors"]] == [2]
    assert (await http.get(path)).status_code == 404


async def test_staged_messages_may_be_replays_which_are_not_taken_for_duplicates(http: httpx.AsyncClient) -> None:
    for name in ("one", "two"):
        message = {"text": "again", "source_id": "41", "source_queue": "past"}
        await http.post(f"/api/v1/transactions/{name}/stage", json={"batches": [{"queue": "q", "messages": [message]}]})
        published = (await http.post(f"/api/v1/transactions/{name}/publish")).json()
        assert (published["published"], published["duplicates"]) == (1, 0)
    table = pa.table({"payload": [b"x"], "source_id": [41], "source_queue": ["past"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    headers = {"Content-Type": "application/vnd.apache.arrow.stream"}
    stream = sink.getvalue().to_pybytes()
    staged = await http.post("/api/v1/transactions/three/stage?queue=q", content=stream, headers=headers)
    assert staged.json()["messages"] == 1
    await http.post("/api/v1/transactions/three/publish")
    found = (await http.get("/api/v1/queues/q/messages")).json()["messages"]
    assert [one["origin"] for one in found] == [{"source_id": "41", "source_queue": "past", "reason": "replayed"}] * 3
    plain = await http.post("/api/v1/queues/q/messages", content=stream, headers=headers)
    assert plain.json()["code"] == "invalid_argument", "only what is staged may be a replay"
    for wrong in ({"source_id": "x"}, {"source_queue": "past"}):
        body = {"batches": [{"queue": "q", "messages": [{"text": "a", **wrong}]}]}
        refused = await http.post("/api/v1/transactions/four/stage", json=body)
        assert refused.status_code == 400
