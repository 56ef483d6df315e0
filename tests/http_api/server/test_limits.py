"""What a client may not do: send too much, too slowly, too often at once, or nonsense."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
import trustme
from msgspec.structs import replace

from holdfast.auth.gate import Gate
from holdfast.broker.node import Node
from holdfast.config.settings import TlsSettings
from holdfast.core.commands import Draft
from holdfast.http_api import HttpFront
from holdfast.store import open_store
from holdfast.store.memory import MemoryStore
from tests.http_api.conftest import config_for
from tests.waiting import PATIENCE_SECONDS, until

JOBS = ("default", "jobs")
ARROW = "application/vnd.apache.arrow.stream"
MESSAGES = "/api/v1/queues/jobs/messages"
MILLISECOND = 1_000
HEAD = b"POST /api/v1/queues/jobs/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@asynccontextmanager
async def serving(path: Path, **http: object) -> AsyncIterator[tuple[Node, HttpFront]]:
    config = config_for(path, **http)
    store = open_store("memory", path)
    node = Node(config, store)
    await node.start()
    front = HttpFront(config, node, Gate(config, node.clock))
    await front.start()
    try:
        yield node, front
    finally:
        await front.stop()
        await node.stop()
        store.close()


async def talk(front: HttpFront, *parts: bytes) -> bytes:
    """Send parts and give all that comes back until the server closes."""
    reader, writer = await asyncio.open_connection(*front.address)
    for part in parts:
        writer.write(part)
        await writer.drain()
    answer = await reader.read()
    writer.close()
    return answer


async def test_a_body_that_is_too_large_is_refused_whether_its_length_is_told_or_not(tmp_path: Path) -> None:
    async with serving(tmp_path, max_request_bytes=2048) as (node, front):
        async with httpx.AsyncClient(base_url=front.url, timeout=PATIENCE_SECONDS) as http:

            async def chunks() -> AsyncIterator[bytes]:
                for _ in range(5):
                    yield b"x" * 1000

            for content in (b"x" * 3000, chunks()):
                refused = await http.post(MESSAGES, content=content, headers={"content-type": "text/plain"})
                assert (refused.status_code, refused.json()["code"]) == (413, "request_too_large")
        assert front.api.buffered_bytes == 0
        assert node.queues.in_namespace("default") == []


async def test_a_body_that_comes_too_slowly_ends_with_408_and_the_connection_with_it(tmp_path: Path) -> None:
    timeouts = {"body_timeout": 100 * MILLISECOND, "header_timeout": 300 * MILLISECOND}
    async with serving(tmp_path, **timeouts) as (_, front):
        answer = await talk(front, HEAD + b"content-length: 100\r\n\r\n{")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"request_timeout"' in answer


@pytest.mark.parametrize("sent", [b"", b"P", HEAD])
async def test_headers_that_come_too_slowly_do_not_hold_a_connection(tmp_path: Path, sent: bytes) -> None:
    async with serving(tmp_path, header_timeout=100 * MILLISECOND) as (_, front):
        assert (await talk(front, sent)).startswith(b"HTTP/1.1 408 ")


async def test_a_handshake_that_does_not_go_on_does_not_hold_a_connection(tmp_path: Path) -> None:
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    config = replace(
        config_for(tmp_path, header_timeout=100 * MILLISECOND),
        tls=TlsSettings(certificate_file=tmp_path / "server.pem"),
    )
    node = Node(config, MemoryStore())
    await node.start()
    front = HttpFront(config, node, Gate(config, node.clock))
    await front.start()
    try:
        for sent in (b"", b"\x16\x03\x01"):
            reader, writer = await asyncio.open_connection(*front.address)
            writer.write(sent)
            async with asyncio.timeout(PATIENCE_SECONDS):
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()
    finally:
        await front.stop()
        await node.stop()


async def test_a_second_request_on_a_connection_must_come_in_time_too(tmp_path: Path) -> None:
    async with serving(tmp_path, header_timeout=2_000 * MILLISECOND) as (_, front):
        first = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
        answer = await talk(front, first, HEAD[:30])
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 408 " in answer


@pytest.mark.parametrize("together", [True, False])
async def test_headers_that_are_too_large_are_refused(tmp_path: Path, together: bool) -> None:
    async with serving(tmp_path, max_header_bytes=1024) as (_, front):
        head = HEAD + b"x-long: " + b"y" * 2000
        answer = await talk(front, head + b"\r\ncontent-length: 2\r\n\r\n{}" if together else head)
        assert answer.startswith(b"HTTP/1.1 431 ")


async def test_more_connections_than_allowed_are_closed(tmp_path: Path) -> None:
    async with serving(tmp_path, max_connections=2) as (_, front):
        held = [await asyncio.open_connection(*front.address) for _ in range(2)]
        for reader, writer in held:
            writer.write(b"GET /api/v1/queues HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        reader, writer = await asyncio.open_connection(*front.address)
        writer.write(b"GET /api/v1/queues HTTP/1.1\r\nhost: localhost\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            raise ConnectionResetError if await reader.read() == b"" else AssertionError
        for _, one in [*held, (reader, writer)]:
            one.close()


async def test_more_concurrent_requests_than_allowed_are_refused_as_retryable(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, max_concurrency=1) as (_, front),
        httpx.AsyncClient(base_url=front.url, timeout=PATIENCE_SECONDS) as http,
    ):
        _, slow = await asyncio.open_connection(*front.address)
        slow.write(HEAD + b"content-length: 100\r\n\r\n{")
        await until(lambda: front.api.working == 1)
        refused = await http.post(MESSAGES, json={"messages": [{}]})
        assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
        assert refused.headers["retry-after"] == "1"
        slow.close()
        await until(lambda: front.api.working == 0)
        assert (await http.post(MESSAGES, json={"messages": [{}]})).status_code == 200


async def test_bodies_that_arrive_together_may_not_fill_the_memory(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, max_buffered_bytes=4096) as (_, front),
        httpx.AsyncClient(base_url=front.url, timeout=PATIENCE_SECONDS) as http,
    ):
        _, slow = await asyncio.open_connection(*front.address)
        slow.write(HEAD + b"content-length: 9000\r\n\r\n" + b" " * 3000)
        await until(lambda: front.api.buffered_bytes == 3000)
        refused = await http.post(MESSAGES, content=b"x" * 2000, headers={"content-type": "text/plain"})
        assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
        slow.close()
        await until(lambda: front.api.buffered_bytes == 0)


@pytest.mark.parametrize("expect", [b"", b"expect: 100-continue\r\n"])
async def test_a_long_body_in_chunks_is_read_whole(tmp_path: Path, expect: bytes) -> None:
    text = "".join(f"{number:06}" for number in range(100_000))
    body = json.dumps({"messages": [{"text": text}]}).encode()
    async with serving(tmp_path) as (node, front):
        reader, writer = await asyncio.open_connection(*front.address)
        for _ in range(2):  # one after the other over one connection
            writer.write(HEAD + expect + b"content-length: %d\r\n\r\n" % len(body) + body[:10])
            for start in range(10, len(body), 70_001):
                writer.write(body[start : start + 70_001])
                await writer.drain()
            heads = [await reader.readuntil(b"\r\n\r\n")]
            if b" 100 " in heads[0]:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
            assert heads[-1].startswith(b"HTTP/1.1 200 ")
            assert (len(heads) == 2) is bool(expect)
            await reader.readuntil(b"}")
        writer.close()
        assert [leased.message.payload.decode() for leased in await node.messages.lease(JOBS, "default", 5)] == [
            text
        ] * 2
        await until(lambda: front.api.buffered_bytes == 0)


async def test_a_long_body_that_fills_the_memory_is_refused_before_all_of_it_is_there(tmp_path: Path) -> None:
    async with serving(tmp_path, max_buffered_bytes=200_000, header_timeout=2_000 * MILLISECOND) as (node, front):
        answer = await talk(front, HEAD + b"content-length: 900000\r\n\r\n" + b" " * 300_000)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert front.api.buffered_bytes == 0
        assert node.queues.in_namespace("default") == []


async def test_a_stream_that_is_not_read_gives_its_deliveries_back(tmp_path: Path) -> None:
    async with serving(tmp_path, write_timeout=200 * MILLISECOND) as (node, front):
        await node.queues.create(JOBS, {"max_message_size": "8MiB"})
        await node.messages.enqueue(JOBS, [Draft(b"\xff" * (4 << 20)) for _ in range(8)])
        _, writer = await asyncio.open_connection(*front.address, limit=1024)
        writer.write(b"POST /api/v1/queues/jobs/stream?credit=8 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await until(lambda: node.inspection.consumers(JOBS))
        await until(lambda: not node.inspection.consumers(JOBS))
        assert len(await node.messages.lease(JOBS, "default", 1)) == 1
        writer.close()


async def test_more_streams_than_allowed_are_refused(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, max_streams=1) as (_, front),
        httpx.AsyncClient(base_url=front.url, timeout=PATIENCE_SECONDS) as http,
        http.stream("POST", "/api/v1/queues/jobs/stream"),
    ):
        refused = await http.post("/api/v1/queues/jobs/stream")
        assert (refused.status_code, refused.json()["code"]) == (400, "limit_exceeded")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "route_not_found"),
        ("GET", "/api/v1/queues/a/b", 404, "route_not_found"),
        ("DELETE", "/api/v1/queues", 405, "method_not_allowed"),
        ("HEAD", "/api/v1/queues/q/stream", 405, ""),
        ("GET", "/api/v1/queues/%ff", 400, "malformed_request"),
        ("GET", "/api/v1/queues/a%23", 400, "invalid_name"),
        ("GET", "/api/v1/queues?limit=x", 400, "invalid_argument"),
        ("GET", "/api/v1/queues?limit=1&limit=2", 400, "malformed_request"),
        ("GET", "/api/v1/queues?nonsense=1", 400, "invalid_argument"),
        ("GET", "/api/v1/queues?%ff=1", 400, "malformed_request"),
        ("GET", "/api/v1/queues?limit=0", 400, "invalid_argument"),
        ("GET", "/api/v1/queues/none/messages?cursor=1,2,x", 404, "queue_not_found"),
    ],
)
async def test_nonsense_gets_a_clear_answer(
    http: httpx.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    answer = await http.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-correlation-id"]
    if code:
        assert answer.json()["code"] == code
    if status == 405:
        assert answer.headers["allow"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "malformed_request"),
        (b"{", "malformed_request"),
        (b'{"messages": ' + b"[" * 100_000, "malformed_request"),
        (b'{"messages": 1}', "invalid_argument"),
        (b'{"messages": []}', "invalid_argument"),
        (b'{"messages": [{}], "atomik": true}', "invalid_argument"),
        (b'{"messages": [{"text": "\xff"}]}', "malformed_request"),
        (b'{"messages": [{"payload": ["\xff"]}]}', "malformed_request"),
        (b'{"messages": [{"text": "a", "payload": 1}]}', "invalid_argument"),
        (b'{"messages": [{"delay": "1s", "deliver_at": 0}]}', "invalid_argument"),
        (b'{"messages": [{"deliver_at": 1e300}]}', "invalid_argument"),
        (b'{"messages": [{"ttl": -1}]}', "invalid_argument"),
        (b'{"messages": [{"priority": 99999999999999999999}]}', "invalid_argument"),
        (b'{"messages": [{"base64": "!"}]}', "invalid_argument"),
        (b'{"messages": [{"message_id": ""}]}', "invalid_argument"),
    ],
)
async def test_a_body_that_is_wrong_stores_nothing(http: httpx.AsyncClient, body: bytes, code: str) -> None:
    answer = await http.post(MESSAGES, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert (await http.get("/api/v1/queues/jobs")).json().get("depth", 0) == 0


async def test_json_is_not_taken_under_another_name(http: httpx.AsyncClient) -> None:
    refused = await http.post("/api/v1/queues", content=b'{"name": "q"}', headers={"content-type": "text/plain"})
    assert (refused.status_code, refused.json()["code"]) == (415, "media_type_unsupported")


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
async def test_a_packed_body_is_not_taken_for_what_is_in_it(http: httpx.AsyncClient, kind: str) -> None:
    body = b'{"messages": [{"text": "a"}]}'
    headers = {"content-type": kind, "content-encoding": "gzip"}
    refused = await http.post(MESSAGES, content=body, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (415, "media_type_unsupported")
    assert "Send it without Content-Encoding" in refused.json()["detail"]
    taken = await http.post(MESSAGES, content=body, headers={**headers, "content-encoding": "identity"})
    assert taken.status_code == 200


@pytest.mark.parametrize(
    "name", ["authorization", "content-type", "idempotency-key", "holdfast-key", "x-correlation-id"]
)
async def test_a_header_that_means_something_is_given_once(http: httpx.AsyncClient, name: str) -> None:
    headers = [("content-type", "application/json")] if name != "content-type" else []
    refused = await http.post(MESSAGES, content=b'{"messages": [{}]}', headers=[*headers, (name, "a"), (name, "b")])
    assert (refused.status_code, refused.json()["code"]) == (400, "malformed_request")
    assert f"header {name} is given twice" in refused.json()["detail"]
    assert refused.headers["x-correlation-id"] == refused.json()["correlation_id"]


async def test_other_headers_may_be_given_as_often_as_one_likes(http: httpx.AsyncClient) -> None:
    await http.post(MESSAGES, json={"messages": [{}]})
    twice = [("x-forwarded-for", "a"), ("x-forwarded-for", "b"), ("accept", ARROW), ("accept", "*/*")]
    answer = await http.get(MESSAGES, headers=twice)
    assert (answer.status_code, answer.headers["content-type"]) == (200, ARROW)


async def test_an_id_that_is_empty_does_not_make_all_messages_duplicates(http: httpx.AsyncClient) -> None:
    headers = {"content-type": "text/plain", "holdfast-message-id": ""}
    refused = await http.post(MESSAGES, content=b"a", headers=headers)
    assert (refused.status_code, refused.json()["details"]["field"]) == (400, "message_id")
    assert "leave it out" in refused.json()["detail"]


def arrow_of(*payloads: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"payload": list(payloads)})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@pytest.mark.parametrize(
    "body",
    [
        {"json": {"messages": [{"text": "a"}]}},
        {"json": {"messages": [{"text": "a"}, {"text": "b"}]}},
        {"json": {"messages": [{"text": "a", "message_id": "own"}]}},
        {"content": b"a", "headers": {"content-type": "text/plain"}},
        {"content": b"{}", "headers": {"content-type": "application/json"}, "params": {"raw": "true"}},
        {"files": {"payload": b"a"}},
        {"content": arrow_of(b"a", b"b"), "headers": {"content-type": ARROW}},
    ],
    ids=["one", "batch", "own id", "text", "raw", "form", "arrow"],
)
async def test_an_idempotency_key_that_is_empty_is_refused_whatever_the_body_is(
    http: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    headers = {**body.get("headers", {}), "idempotency-key": ""}
    refused = await http.post(MESSAGES, **{**body, "headers": headers})
    assert (refused.status_code, refused.json()["details"]["field"]) == (400, "Idempotency-Key")
    assert "leave it out" in refused.json()["detail"]
    assert (await http.get("/api/v1/queues/jobs")).status_code == 404


async def test_an_idempotency_key_that_is_too_long_is_refused_before_it_is_copied_for_each_message(
    http: httpx.AsyncClient,
) -> None:
    batch = {"messages": [{"text": "a"}, {"text": "b", "message_id": "own"}]}
    refused = await http.post(MESSAGES, json=batch, headers={"idempotency-key": "k" * 1_025})
    assert (refused.status_code, refused.json()["details"]["field"]) == (400, "Idempotency-Key")
    assert "at most 1024 bytes" in refused.json()["detail"]
    longest = {"idempotency-key": "k" * 1_024}
    assert (await http.post(MESSAGES, json={"messages": [{"text": "a"}]}, headers=longest)).status_code == 200


async def test_a_correlation_id_that_would_break_a_log_or_a_header_is_replaced(http: httpx.AsyncClient) -> None:
    kept = await http.get("/livez", headers={"x-correlation-id": "trace 1"})
    assert kept.headers["x-correlation-id"] == "trace 1"
    for bad in ("x" * 300, "a\tb"):
        replaced = await http.get("/livez", headers={"x-correlation-id": bad})
        assert replaced.headers["x-correlation-id"] != bad
