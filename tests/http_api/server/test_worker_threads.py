"""Long bodies are read, and long answers made, on a thread: whoever else calls is served meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pyarrow as pa
import pytest

from holdfast.http_api.codecs.arrow_request import MEDIA_TYPE
from holdfast.http_api.endpoints import groups, messages, partitions, transactions

ARROW = {"accept": MEDIA_TYPE}
FEW, MANY = 3, 1_200
TEXT = "x" * 250  # so that MANY are more than a thread is worth


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Where rows are read or shown."""
    found: set[str] = set()

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            found.add(threading.current_thread().name)
            return function(*args, **keywords)

        return call

    for module, name in (
        (groups, "message_to_wire"),
        (groups, "write_messages"),
        (partitions, "view_to_wire"),
        (partitions, "write_rows"),
        (messages, "read_draft"),
        (messages, "drafts_of"),
        (transactions, "read_staged"),
        (transactions, "read_drafts"),
    ):
        monkeypatch.setattr(module, name, watched(getattr(module, name)))
    return found


def apart(threads: set[str]) -> bool:
    """Whether it was on other threads, and on no others."""
    where, here = set(threads), threading.current_thread().name
    threads.clear()
    assert len(where) == 1
    return where != {here}


async def fill(http: httpx.AsyncClient, count: int) -> None:
    await http.post("/api/v1/queues", json={"name": "log", "config": {"partitions": 1}})
    drafts = [{"payload": {"n": n, "text": TEXT}, "key": f"k{n % 7}"} for n in range(count)]
    receipt = (await http.post("/api/v1/queues/log/messages", json={"messages": drafts})).json()
    assert len(set(receipt["ids"])) == count


def stream(columns: dict[str, Any]) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table(columns)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@pytest.mark.parametrize("count", [FEW, MANY])
async def test_a_long_enqueue_and_long_reads_are_done_apart(
    http: httpx.AsyncClient, threads: set[str], count: int
) -> None:
    await fill(http, count)
    assert apart(threads) is (count == MANY)
    read = {"limit": 10_000}
    shown = (await http.post("/api/v1/queues/log/groups/g/read", json=read)).json()["messages"]
    assert [message["payload"]["n"] for message in shown] == list(range(count))
    assert apart(threads) is (count == MANY)
    columns = await http.post("/api/v1/queues/log/groups/g/read", json=read, headers=ARROW)
    assert columns.headers["holdfast-next"] == str(count + 1)
    assert pa.ipc.open_stream(columns.content).read_all()["sequence"].to_pylist() == list(range(1, count + 1))
    assert apart(threads) is (count == MANY)

    where = "/api/v1/queues/log/partitions/0/messages?limit=10000"
    assert len((await http.get(where)).json()["messages"]) == count
    assert apart(threads) is (count == MANY)
    assert pa.ipc.open_stream((await http.get(where, headers=ARROW)).content).read_all().num_rows == count
    assert apart(threads) is (count == MANY)


@pytest.mark.parametrize("count", [FEW, MANY])
async def test_a_long_stage_is_read_apart(http: httpx.AsyncClient, threads: set[str], count: int) -> None:
    rows = [{"payload": {"n": n, "text": TEXT}, "key": f"k{n % 7}"} for n in range(count)]
    batches = [{"queue": "log", "messages": rows}]
    staged = (await http.post(f"/api/v1/transactions/apart-{count}-a/stage", json={"batches": batches})).json()
    assert staged["messages"] == count
    assert apart(threads) is (count == MANY)

    content = stream({"payload": [TEXT.encode()] * count})
    headers = {"content-type": MEDIA_TYPE}
    path = f"/api/v1/transactions/apart-{count}-b/stage?queue=log"
    assert (await http.post(path, content=content, headers=headers)).json()["messages"] == count
    assert apart(threads) is (count == MANY)


@pytest.mark.parametrize("count", [FEW, MANY])
async def test_long_streams_are_read_apart_unless_they_are_payloads(
    http: httpx.AsyncClient, threads: set[str], count: int
) -> None:
    payloads = [TEXT.encode()] * count
    path, headers = "/api/v1/queues/log/messages", {"content-type": MEDIA_TYPE}
    keyed = {"payload": payloads, "key": [f"k{n % 7}" for n in range(count)]}
    bare, repeatable = {"payload": payloads}, {**headers, "idempotency-key": f"apart-{count}"}
    for columns, sent, much in (
        (bare, headers, False),
        (keyed, headers, count == MANY),
        (bare, repeatable, count == MANY),
    ):
        receipt = (await http.post(path, content=stream(columns), headers=sent)).json()
        assert len(set(receipt["ids"])) == count
        assert apart(threads) is much


async def test_what_is_wrong_in_a_long_body_is_reported_as_ever(http: httpx.AsyncClient) -> None:
    drafts: list[dict[str, object]] = [{"payload": TEXT} for _ in range(MANY)]
    drafts[MANY - 1]["priority"] = 256
    some = await http.post("/api/v1/queues/log/messages", json={"messages": drafts})
    assert (some.status_code, some.json()["errors"][0]["index"]) == (200, MANY - 1)
    none = await http.post("/api/v1/queues/log/messages", json={"messages": drafts, "atomic": True})
    assert (none.status_code, none.json()["errors"][0]["index"]) == (400, MANY - 1)
    batches = [{"queue": "log", "messages": drafts}]
    staged = await http.post("/api/v1/transactions/apart-c/stage", json={"batches": batches})
    assert (staged.status_code, staged.json()["errors"][0]["index"]) == (400, MANY - 1)
