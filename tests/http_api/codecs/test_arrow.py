"""Messages in bulk as Arrow streams."""

from __future__ import annotations

import struct
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pyarrow as pa
import pytest

from holdfast.core.commands import HomogeneousDrafts
from holdfast.http_api.codecs.arrow_request import drafts_of
from holdfast.http_api.endpoints import messages

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


TEXT = pa.string()
VALUES = {
    "view": pa.array(["a" * 99], pa.string_view()),
    "run-ends": pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["a"])),
    "list": pa.array([["a"]]),
    "list view": pa.array([["a"]], pa.list_view(TEXT)),
    "struct": pa.array([{"a": "b"}]),
    "extension of a view": pa.ExtensionArray.from_storage(
        pa.json_(pa.string_view()), pa.array(["1"], pa.string_view())
    ),
    "map of views": pa.array([[("a", "b")]], pa.map_(TEXT, pa.string_view())),
    "map by views": pa.array([[("a", "b")]], pa.map_(pa.string_view(), TEXT)),
    "map of nothing": pa.array([[("a", None)]], pa.map_(TEXT, pa.null())),
    "map of sizes 0": pa.array([[(b"", b"")]], pa.map_(pa.binary(0), pa.binary(0))),
    "map of lists": pa.array([[("a", ["b"])]], pa.map_(TEXT, pa.list_(TEXT))),
}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
async def test_a_column_that_is_not_in_a_plain_layout_is_refused_with_what_to_send(
    http: httpx.AsyncClient, values: Any
) -> None:
    for column in ("payload", "key", "priority", "deliver_at", "ttl", "properties"):
        refused = await send(http, pa.table({"payload": [b"x"]} | {column: values}))
        assert (refused.status_code, refused.json()["details"]["field"]) == (400, f"Column {column}")
        assert f"has the type {values.type}; send it as " in refused.json()["detail"]
    assert (await http.get("/api/v1/queues/bulk")).status_code == 404


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("priority", pa.array(["1"])),
        ("priority", pa.array([True])),
        ("ttl", pa.array([1], pa.timestamp("s"))),
        ("deliver_at", pa.array([1], pa.duration("s"))),
        ("payload", pa.array([1])),
        ("content_type", pa.array([0.5])),
    ],
    ids=lambda given: str(getattr(given, "type", given)),
)
async def test_a_type_that_cannot_be_meant_is_not_read_as_one_that_is(
    http: httpx.AsyncClient, column: str, values: Any
) -> None:
    refused = await send(http, pa.table({"payload": [b"x"]} | {column: values}))
    assert (refused.status_code, refused.json()["details"]["field"]) == (400, f"Column {column}")


async def test_a_type_with_a_long_name_is_abbreviated(http: httpx.AsyncClient) -> None:
    refused = await send(http, pa.table({"payload": pa.array([{"name" * 1_000: 1}])}))
    assert refused.status_code == 400
    assert len(refused.json()["detail"]) < 400


async def test_views_that_share_their_bytes_cannot_be_more_than_was_sent(http: httpx.AsyncClient) -> None:
    shared, count = b"A" * 10_000, 1_000
    views = pa.py_buffer(struct.pack("<i4sii", len(shared), shared[:4], 0, 0) * count)
    values = pa.Array.from_buffers(pa.binary_view(), count, [None, views, pa.py_buffer(shared)])
    refused = await send(http, pa.table({"payload": values}))
    assert (refused.status_code, "has the type binary_view" in refused.json()["detail"]) == (400, True)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), TEXT, pa.large_string(), pa.binary(2)], ids=str)
@pytest.mark.parametrize("column", ["payload", "key"])
async def test_every_plain_layout_of_bytes_is_taken_in_one_batch_or_several(
    http: httpx.AsyncClient, kind: Any, column: str
) -> None:
    await http.post("/api/v1/queues", json={"name": "bulk", "config": {"partitions": 1}})
    for chunks in ([["ab", "cd"]], [["ab"], [], ["cd"]]):
        values = pa.chunked_array([pa.array(chunk, TEXT).cast(pa.binary()).cast(kind) for chunk in chunks])
        table = pa.table({"payload": [b"x", b"y"]} | {column: values})
        receipt = await send(http, table)
        assert receipt.status_code == 200, receipt.text
    shown = (await http.get(MESSAGES)).json()["messages"]
    assert [message["text" if column == "payload" else "key"] for message in shown] == ["ab", "cd"] * 2


async def test_columns_without_a_value_whole_floats_and_numbers_as_text_are_taken(http: httpx.AsyncClient) -> None:
    table = pa.table(
        {
            "payload": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["1", "2"])),
            "key": [7, None],
            "priority": [5.0, None],
            "properties": pa.nulls(2),
            "ttl": pa.nulls(2),
            "reply_to": pa.nulls(2),
        }
    )
    assert (await send(http, table)).status_code == 200
    shown = (await http.get(MESSAGES)).json()["messages"]
    assert sorted((message["payload"], message.get("key"), message.get("priority")) for message in shown) == [
        (1, "7", 5),
        (2, None, None),
    ]
    half = await send(http, pa.table({"payload": [b"x"], "priority": [0.5]}))
    assert (half.status_code, half.json()["details"]["field"]) == (400, "Column priority")


async def test_columns_that_lie_in_the_same_bytes_are_refused(http: httpx.AsyncClient) -> None:
    size = 10_000
    content = stream(pa.table({"payload": [b"A" * size], "content_type": ["t"]}))
    for own, other in (((size + 8, 8), (0, 8)), ((size + 16, 1), (8, size))):  # where bounds are, where bytes are
        assert content.count(struct.pack("<qq", *own)) == 1
        content = content.replace(struct.pack("<qq", *own), struct.pack("<qq", *other))
    refused = await http.post(MESSAGES, content=content, headers={"content-type": ARROW})
    assert (refused.status_code, "with its own bytes" in refused.json()["detail"]) == (400, True)


@pytest.mark.parametrize(("kind", "code"), [(pa.binary(), "i"), (pa.large_binary(), "q")], ids=str)
async def test_values_whose_bounds_go_back_are_refused(http: httpx.AsyncClient, kind: Any, code: str) -> None:
    bounds = [0, 1_000] * 100 + [0]
    content = stream(pa.table({"payload": pa.array([b"A" * 1_000] + [b""] * 199, kind)}))
    sound = struct.pack(f"<201{code}", 0, *[1_000] * 200)
    assert content.count(sound) == 1
    content = content.replace(sound, struct.pack(f"<201{code}", *bounds))
    refused = await http.post(MESSAGES, content=content, headers={"content-type": ARROW})
    assert (refused.status_code, "not an Arrow IPC stream" in refused.json()["detail"]) == (400, True)


@pytest.mark.parametrize("kind", [pa.null(), pa.binary(0)], ids=str)
async def test_rows_that_need_no_bytes_are_counted_batch_by_batch(http: httpx.AsyncClient, kind: Any) -> None:
    count = 1 << 62  # four times that is 0 in 64 bits
    nothing = pa.Array.from_buffers(kind, count, [None] if pa.types.is_null(kind) else [None, pa.py_buffer(b"")])
    sink = pa.BufferOutputStream()
    schema = pa.schema({"payload": kind})
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(allow_64bit=True)) as writer:
        for _ in range(4):
            writer.write_batch(pa.RecordBatch.from_arrays([nothing], schema=schema))
    refused = await http.post(MESSAGES, content=sink.getvalue().to_pybytes(), headers={"content-type": ARROW})
    assert (refused.status_code, "send at most 10000" in refused.json()["detail"]) == (400, True)


async def test_a_repeated_stream_with_an_idempotency_key_stores_nothing_twice(http: httpx.AsyncClient) -> None:
    for number, table in enumerate(
        [
            pa.table({"payload": [b"a", b"b"]}),
            pa.table({"payload": [b"a", b"b"], "message_id": ["own", None]}),
            pa.table({"payload": [b"a"]}),
        ]
    ):
        headers = {"content-type": ARROW, "idempotency-key": f"order-{number}"}
        first = (await http.post(MESSAGES, content=stream(table), headers=headers)).json()
        again = (await http.post(MESSAGES, content=stream(table), headers=headers)).json()
        assert again["ids"] == first["ids"]
        assert (first["duplicates"], again["duplicates"]) == ([], list(range(table.num_rows)))
    shown = (await http.get(MESSAGES)).json()["messages"]
    expected = ["order-0/0", "order-0/1", "order-1/1", "order-2", "own"]
    assert sorted(message["message_id"] for message in shown) == expected


async def test_a_stream_repeated_as_json_has_the_same_ids(http: httpx.AsyncClient) -> None:
    table, key = pa.table({"payload": [b"1", b"2"]}), {"idempotency-key": "order"}
    first = (await http.post(MESSAGES, content=stream(table), headers={"content-type": ARROW, **key})).json()
    again = (await http.post(MESSAGES, json={"messages": [{"payload": 1}, {"payload": 2}]}, headers=key)).json()
    assert (again["ids"], again["duplicates"]) == (first["ids"], [0, 1])


async def test_only_payloads_without_an_idempotency_key_are_stored_in_bulk(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []

    def watched(*args: Any) -> Any:
        drafts = drafts_of(*args)
        found.append(isinstance(drafts, HomogeneousDrafts))
        return drafts

    monkeypatch.setattr(messages, "drafts_of", watched)
    content = stream(pa.table({"payload": [b"a", b"b"]}))
    for key in ({}, {"idempotency-key": "order"}):
        await http.post(MESSAGES, content=content, headers={"content-type": ARROW, **key})
    assert found == [True, False]


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
