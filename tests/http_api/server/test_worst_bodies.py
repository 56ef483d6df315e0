"""No request, whatever it holds, keeps others waiting: each endpoint is sent the worst bodies that it takes.

What is counted is the work of one pass of the loop, and of one call on a thread of the server: see `tests/work.py`.
"""

from __future__ import annotations

import asyncio
import gc
import io
import re
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import get_args, get_origin

import msgspec
import pyarrow as pa
import pytest
import pytest_asyncio

from holdfast.auth.gate import Gate
from holdfast.broker.node import Node
from holdfast.core.commands import Draft
from holdfast.http_api import HttpFront
from holdfast.http_api.codecs.arrow_request import MEDIA_TYPE
from holdfast.http_api.dialects import sqs
from holdfast.http_api.dialects.sqs.endpoint import ACTIONS
from holdfast.http_api.dialects.sqs.protocols import FORM as QUERY
from holdfast.http_api.dialects.sqs.protocols import JSON, TARGET
from holdfast.http_api.server.app import ROUTES
from holdfast.http_api.server.routes import Endpoint, Right
from holdfast.store.memory import MemoryStore
from holdfast.units import MIB
from tests.http_api.conftest import config_for
from tests.work import Work

BODY_BYTES = MIB
"""The limit that is configured here. What is done in slices takes no longer slices for more."""

JSON_BYTES = 256 << 10
"""Of the bodies of JSON and forms: several times what one step takes."""

SMALL_JSON_BYTES = 160 << 10
"""The same where no body is large: these are refused by a count of what they may hold, or decoded."""

QUEUE = ("default", "jobs")
FORM = "multipart/form-data; boundary=x"

TAKING = [
    endpoint
    for routes in ROUTES
    for endpoint in routes.endpoints
    if (endpoint.body is not None or endpoint.request_types) and endpoint.right is not Right.ANONYMOUS
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def front(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpFront]:
    config = config_for(tmp_path_factory.mktemp("worst"), max_request_bytes=BODY_BYTES)
    node = Node(config, MemoryStore())
    await node.start()
    front = HttpFront(config, node, Gate(config, node.clock))
    await front.start()
    await node.messages.enqueue(QUEUE, [Draft(b"x")] * 10)
    gc.collect()
    gc.freeze()  # as the server does: what the tests have in memory is not looked through again and again
    yield front
    gc.unfreeze()
    await front.stop()
    await node.stop()


def post(address: tuple[str, int], endpoint: Endpoint, content_type: str, body: bytes, action: str) -> bytes:
    """The response to a request, from another thread than the server's."""
    path = re.sub(r"{name}", "jobs", endpoint.path)
    path = re.sub(r"{\w+}", "1", path)
    head = f"{endpoint.method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    head += f"x-amz-target: {TARGET}{action}\r\ncontent-type: {content_type}\r\n"
    with socket.create_connection(address) as connection:
        connection.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(body))
        answer = b""
        with suppress(OSError):  # it may be refused before all of it was sent
            connection.sendall(body)
        with suppress(OSError):
            while more := connection.recv(4096):
                answer = (answer + more)[:4096]  # this thread allocates next to nothing
        return answer


def filled(prefix: bytes, item: bytes, suffix: bytes, size: int, between: bytes = b",") -> bytes:
    count = (size - len(prefix) - len(suffix)) // (len(item) + len(between))
    return prefix + between.join([item] * count) + suffix


def list_field(endpoint: Endpoint) -> bytes:
    """The name of the array that a body has."""
    body = endpoint.body
    if not isinstance(body, type) or not issubclass(body, msgspec.Struct):
        return b"messages"
    names = [
        field.name for field in msgspec.structs.fields(body) if str(field.type).startswith(("list", "typing.List"))
    ]
    return (names or ["filter"])[0].encode()


def least_element(endpoint: Endpoint) -> bytes:
    """An element of that array which is not refused: it has what every element must have, and nothing else."""
    body = endpoint.body
    fields = msgspec.structs.fields(body) if isinstance(body, type) and issubclass(body, msgspec.Struct) else ()
    for field in fields:
        kinds = get_args(field.type)
        if get_origin(field.type) is list and issubclass(kinds[0], msgspec.Struct):
            needed = [one for one in msgspec.structs.fields(kinds[0]) if one.required]
            return msgspec.json.encode({one.encode_name: "" if one.type is str else 1 for one in needed})
    return b"{}"


def numbered(size: int) -> bytes:
    return b",".join(b'"%x":""' % number for number in range(size // 10))


def json_bodies(endpoint: Endpoint, size: int) -> dict[str, bytes]:
    field = list_field(endpoint)
    array = b'{"%b":[' % field
    return {
        "objects": filled(array, b"{}", b"]}", size),
        "least elements": filled(array, least_element(endpoint), b"]}", size),
        "objects alone": filled(b"[", b"{}", b"]", size),
        "lists": filled(b'{"%b":[{"payload":[' % field, b"[]", b"]}]}", size),
        "numbers": filled(array, b"1", b"]}", size),
        "texts": filled(array, b'""', b"]}", size),
        "nested": b"[" * size,
        "nested objects": filled(b"", b'{"a":', b"", size, b""),
        "properties": array + b'{"properties":{' + numbered(size - 100) + b"}}]}",
        "fields": b"{" + numbered(size - 100) + b"}",
        "repeated field": filled(array + b"{", b'"id":"1"', b"}]}", size),
        "hidden name": filled(b'{"\\u00%02x%b":[' % (field[0], field[1:]), b"{}", b"]}", size),
        "escapes": filled(array + b'{"text":"', b"\\u0041", b'"}]}', size, b""),
        "quotes": filled(array + b'{"text":"', b'\\"', b'"}]}', size, b""),
        "umlauts": filled(array + b'{"text":"', "ä".encode(), b'"}]}', size, b""),
        "not UTF-8": filled(array + b'{"text":"', b"\xff", b'"}]}', size, b""),
        "base64": filled(array + b'{"base64":"', b"AAAA", b'"}]}', size, b""),
        "long name": b'{"' + b"a" * (size - 10) + b'":1}',
        "config": filled(b'{"name":"q","config":{"a":[', b"[]", b"]}}", size),
        "many wrong": filled(array, b'{"priority":999,"id":"x","partition":-1}', b"]}", min(size, 380_000)),
        "wrong kinds": filled(array, b'{"priority":"x","id":1}', b"]}", min(size, 230_000)),
        "spaces": b" " * size,
        "digits": b"1" * size,
        "open text": b'{"' + b"a" * (size - 2),
    }


def stage_bodies(size: int) -> dict[tuple[str, str], bytes]:
    return {
        ("application/json", "batches"): filled(b'{"batches":[', b'{"queue":"jobs","messages":[{}]}', b"]}", size),
        ("application/json", "one batch"): filled(b'{"batches":[{"queue":"jobs","messages":[', b"{}", b"]}]}", size),
    }


def stream(table: pa.Table, batch_rows: int | None = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch_rows)
    return sink.getvalue()


def empty_batches(count: int) -> bytes:
    sink = io.BytesIO()
    schema = pa.schema([("payload", pa.binary()), *[(name, pa.string()) for name in ("key", "message_id", "reply_to")]])
    with pa.ipc.new_stream(sink, schema) as writer:
        for _ in range(count):
            writer.write_batch(pa.record_batch([pa.array([], field.type) for field in schema], schema=schema))
    return sink.getvalue()


def arrow_bodies() -> dict[str, bytes]:
    rows = 10_000
    kind = pa.map_(pa.string(), pa.string())
    properties = pa.array([[("", "")] * 8] * rows, kind)
    many = pa.array([[("", "")] * 100_000], kind)
    wide = pa.schema([(f"c{at}", pa.binary()) for at in range(10_000)])
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, wide):
        pass
    return {
        "empty batches": empty_batches(1_500),
        "one row a batch": stream(pa.table({"payload": [b"x"] * 2_500, "key": ["k"] * 2_500}), 1),
        "properties": stream(pa.table({"payload": [b""] * rows, "properties": properties})),
        "one row with all properties": stream(pa.table({"payload": [b""], "properties": many})),
        "columns": sink.getvalue(),
        "long texts": stream(pa.table({"payload": [b""], "key": ["ä" * (MIB // 4)]})),
        "nonsense": b"\xff" * BODY_BYTES,
        "zeros": b"\0" * BODY_BYTES,
    }


def form_bodies(size: int) -> dict[str, bytes]:
    part = b'--x\r\ncontent-disposition: form-data; name="meta"\r\n\r\n'
    return {
        "delimiters": filled(b"", b"\r\n--", b"", size, b""),
        "parts": filled(b"", part + b"{}\r\n", b"--x--", size, b""),
        "open head": b"--x\r\n" + b"a: b\r\n" * (size // 6),
        "parameters": b"--x\r\ncontent-disposition: form-data" + b"; a=b" * 1_600 + b"\r\n\r\n--x--",
        "meta": part + filled(b'{"attributes":{', b'"a":[[],[]]', b"}}", 200_000) + b"\r\n--x--",
        "text": b"a" * size,
    }


def query_bodies(size: int, action: str) -> dict[str, bytes]:
    """Forms of SQS's older protocol."""
    begin = b"Action=%b&" % action.encode()
    entry = b"SendMessageBatchRequestEntry.1."
    return {
        "form fields": begin + b"&".join(b"%x=" % number for number in range(size // 8)),
        "form escapes": begin + b"MessageBody=" + b"%41" * (size // 3),
        "form escapes in a name": begin + b"%41" * (size // 3),
        "form levels": begin + b"." * size,
        "form nested entries": begin + entry * (size // len(entry)) + b"Id=1",
        "form attributes": begin + b"&".join(b"Attribute.%d.Name=%x" % (at, at) for at in range(1_900)),
        "form entries": begin + b"&".join(b"SendMessageBatchRequestEntry.%d.Id=%x" % (at, at) for at in range(1_900)),
        "form not UTF-8": begin + b"MessageBody=" + b"%ff" * (size // 3),
    }


async def most_work(
    front: HttpFront,
    endpoint: Endpoint,
    bodies: dict[tuple[str, str], bytes],
    monkeypatch: pytest.MonkeyPatch,
    action: str = "SendMessageBatch",
) -> dict[tuple[str, str], Work]:
    """The bodies that took too much, and what they took."""
    excessive: dict[tuple[str, str], Work] = {}
    for (content_type, name), body in bodies.items():
        work = Work(front.api)
        async with work.counted(monkeypatch):
            answer = await asyncio.to_thread(post, front.address, endpoint, content_type, body, action)
        assert answer.startswith(b"HTTP/1.1 "), (content_type, name)
        assert not answer.startswith(b"HTTP/1.1 500"), (content_type, name, answer)
        if work.excessive(stored=answer.startswith(b"HTTP/1.1 2")):
            excessive[content_type, name] = work
    return excessive


@pytest.mark.parametrize("endpoint", TAKING, ids=lambda endpoint: f"{endpoint.method}:{endpoint.path}")
async def test_no_body_keeps_others_waiting(
    front: HttpFront, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = JSON_BYTES if endpoint.bulk else SMALL_JSON_BYTES
    json = JSON if JSON in endpoint.request_types else "application/json"
    bodies = {(json, name): body for name, body in json_bodies(endpoint, size).items()}
    if endpoint.path.endswith("/stage"):
        bodies |= stage_bodies(size)
    if MEDIA_TYPE in endpoint.request_types:
        bodies |= {(MEDIA_TYPE, name): body for name, body in arrow_bodies().items()}
    if any(kind.startswith("multipart/") for kind in endpoint.request_types):
        bodies |= {(FORM, name): body for name, body in form_bodies(size).items()}
    if QUERY in endpoint.request_types:
        bodies |= {(QUERY, name): body for name, body in query_bodies(size, "SendMessageBatch").items()}
    assert await most_work(front, endpoint, bodies, monkeypatch) == {}


@pytest.mark.parametrize("action", ACTIONS)
async def test_no_action_of_sqs_keeps_others_waiting(
    front: HttpFront, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = next(endpoint for endpoint in sqs.ROUTES.endpoints if endpoint.path == "/sqs")
    lists = filled(b'{"Entries":[', b"{}", b"],", JSON_BYTES // 3)
    lists += filled(b'"AttributeNames":[', b'""', b"],", JSON_BYTES // 3)
    bodies = {
        (JSON, "lists"): lists + filled(b'"MessageAttributeNames":[', b'""', b"]}", JSON_BYTES // 3),
        (JSON, "maps"): b'{"MessageAttributes":{%b},"Attributes":{}}' % numbered(JSON_BYTES),
    }
    forms = query_bodies(JSON_BYTES, action)
    bodies |= {(QUERY, name): forms[name] for name in ("form escapes", "form attributes", "form entries")}
    assert await most_work(front, endpoint, bodies, monkeypatch, action) == {}
