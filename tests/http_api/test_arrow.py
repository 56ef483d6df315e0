"""Messages in bulk as Arrow streams."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pyarrow as pa
import pytest

MESSAGES = "/api/v1/queues/bulk/messages"
ARROW = "application/vnd.apache.arrow.stream"


def stream(table: Any, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


async def send(http: httpx.AsyncClient, table: Any, **params: str) -> httpx.Response:
    return await http.post(MESSAGES, content=stream(table), headers={"content-type": ARROW}, params=params)


def read(content: bytes) -> Any:
    return pa.ipc.open_stream(content).read_all()


@pytest.mark.parametrize("behind", [stream(pa.table({"payload": [b"b"]})), b"\0" * 8, b"x"])
async def test_what_stands_behind_a_stream_is_not_lost_without_a_word(http: httpx.AsyncClient, behind: bytes) -> None:
    content = stream(pa.table({"payload": [b"a"]}))
    refused = await http.post(MESSAGES, content=content + behind, headers={"content-type": ARROW})
    assert (refused.status_code, "behind the end" in refused.json()["detail"]) == (400, True)
    without_end = content[:-8]  # as some write it
    taken = await http.post(MESSAGES, content=without_end, headers={"content-type": ARROW})
    assert len(taken.json()["ids"]) == 1


async def test_an_id_that_is_empty_is_refused(http: httpx.AsyncClient) -> None:
    refused = await send(http, pa.table({"payload": [b"a", b"b"], "message_id": ["m", ""]}))
    assert (refused.status_code, refused.json()["details"]["field"]) == (400, "Column message_id")


async def test_rows_are_messages_with_all_their_fields(http: httpx.AsyncClient) -> None:
    later = datetime(2200, 1, 1, tzinfo=UTC)
    table = pa.table(
        {
            "payload": pa.array([b"a", b"", b"\xff"]),
            "key": ["k", None, None],
            "priority": pa.array([1, None, 3], pa.int16()),
            "deliver_at": pa.array([None, None, later], pa.timestamp("s", "UTC")),
            "ttl": pa.array([None, timedelta(hours=1), None], pa.duration("ms")),
            "properties": pa.array([[("a", "b"), ("a", "c")], None, None], pa.map_(pa.string(), pa.string())),
            "correlation_id": [None, "c", None],
            "content_type": ["text/plain", None, None],
            "message_id": [None, "m", None],
        }
    )
    receipt = (await send(http, table)).json()
    assert len(receipt["ids"]) == 3
    shown = (await http.get(MESSAGES, params={"encoding": "base64"})).json()["messages"]
    assert [message["base64"] for message in shown] == ["YQ==", "", "/w=="]
    one, two, three = shown
    assert (one["key"], one["priority"], one["content_type"]) == ("k", 1, "text/plain")
    assert one["properties"] == {"a": ["b", "c"]}
    assert (two["correlation_id"], two["message_id"]) == ("c", "m")
    assert three["deliver_at"] == "2200-01-01T00:00:00.000Z"
    hour = datetime.fromisoformat(two["expires_at"]) - datetime.fromisoformat(two["enqueued_at"])
    assert hour == timedelta(hours=1)


async def test_payloads_of_several_batches_and_types_are_cut_out_exactly(http: httpx.AsyncClient) -> None:
    chunks = [pa.array(["x", "yy"], pa.string()), pa.array(["zero", "zzz", "last"], pa.string())[1:]]
    table = pa.table({"payload": pa.chunked_array(chunks)})
    assert (await send(http, table)).status_code == 200
    shown = (await http.get(MESSAGES)).json()["messages"]
    assert [message["text"] for message in shown] == ["x", "yy", "zzz", "last"]


async def test_a_bad_row_is_reported_by_index_and_atomic_takes_all_or_none(http: httpx.AsyncClient) -> None:
    table = pa.table({"payload": [b"a", b"b"], "priority": [1, 999]})
    receipt = (await send(http, table)).json()
    assert [error["index"] for error in receipt["errors"]] == [1]
    assert receipt["ids"][1] is None
    refused = await send(http, table, atomic="true")
    assert refused.status_code == 400
    assert (await http.get("/api/v1/queues/bulk")).json()["depth"] == 1


async def test_browsing_and_cursor_reads_as_arrow(http: httpx.AsyncClient) -> None:
    await http.post("/api/v1/queues", json={"name": "bulk", "config": {"partitions": 1}})
    properties = pa.array([[("n", "1")], None, None], pa.map_(pa.string(), pa.string()))
    await send(http, pa.table({"payload": [b"a", b"b", b"c"], "properties": properties}))
    page = await http.get(MESSAGES, params={"limit": 2}, headers={"accept": ARROW})
    assert page.headers["content-type"] == ARROW
    table = read(page.content)
    assert table["payload"].to_pylist() == [b"a", b"b"]
    assert table["properties"].to_pylist() == [[("n", "1")], None]
    assert page.headers["holdfast-cursor"]
    found = await http.post("/api/v1/queues/bulk/groups/reader/read", json={"first": 2}, headers={"accept": ARROW})
    table = read(found.content)
    assert table["sequence"].to_pylist() == [2, 3]
    assert (found.headers["holdfast-next"], found.headers["holdfast-high"]) == ("4", "4")
    assert table.schema.metadata[b"next"] == b"4"
    assert str(table.schema.field("enqueued_at").type) == "timestamp[us, tz=UTC]"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not an Arrow IPC stream"),
        (b"not arrow at all, but long enough to be looked at", "not an Arrow IPC stream"),
        (stream(pa.table({"payload": [b"x"]}))[:-20][:150], "not an Arrow IPC stream"),
        (stream(pa.table({"body": [b"x"]})), "unknown columns body"),
        (stream(pa.table({"key": ["x"]})), "no column payload"),
        (stream(pa.table({"payload": [b"x", None]})), "has nulls"),
        (stream(pa.table({"payload": [b"x"], "priority": ["high"]})), "Column priority"),
        (stream(pa.table({"payload": [b"x" * 1000]}), compression="zstd"), "compressed"),
        (stream(pa.table({"payload": pa.array([b"x"]).dictionary_encode()})), "dictionaries"),
        (stream(pa.table({"payload": [b""] * 10_001})), "at most 10000"),
    ],
)
async def test_a_stream_that_is_wrong_says_so_and_stores_nothing(
    http: httpx.AsyncClient, content: bytes, problem: str
) -> None:
    refused = await http.post(MESSAGES, content=content, headers={"content-type": ARROW})
    assert refused.status_code == 400
    assert problem in refused.json()["detail"]
    assert (await http.get("/api/v1/queues/bulk")).status_code == 404


async def test_every_cut_and_flip_of_a_stream_is_an_answer_and_not_a_crash(http: httpx.AsyncClient) -> None:
    whole = stream(pa.table({"payload": [b"abc", b"de"], "key": ["k", None]}))
    for at in range(0, len(whole), 23):
        flipped = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
        for content in (whole[:at], flipped):
            answer = await http.post(MESSAGES, content=content, headers={"content-type": ARROW})
            assert answer.status_code in {200, 400}, answer.text


async def test_without_pyarrow_the_error_says_what_is_missing(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = stream(pa.table({"payload": [b"x"]}))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused = await http.post(MESSAGES, content=content, headers={"content-type": ARROW})
    assert (refused.status_code, refused.json()["code"]) == (501, "arrow_missing")
