"""Numbers of any size in every numeric field: they are refused or taken, and the node goes on."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow as pa
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from holdfast.broker.node import Node
from holdfast.http_api.codecs.arrow_request import COLUMNS, SOURCES
from holdfast.http_api.openapi.document import document
from holdfast.http_api.server.app import ROUTES
from holdfast.quotas import Quota
from tests.numbers import WILD_NUMBERS
from tests.waiting import PATIENCE_SECONDS

Q = "/api/v1/queues/numbers"
ANY = object()
"""Stands for the number."""

DOCUMENT = document([endpoint for routes in ROUTES for endpoint in routes.endpoints])
NAMES = {
    "name": "numbers",
    "group": "g",
    "id": "1",
    "job": "1",
    "namespace": "other",
    "partition": "0",
    "transaction": "t",
    "audit": "a",
}


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def _choices(schema: dict[str, Any]) -> list[dict[str, Any]]:
    schema = _resolved(schema)
    return [choice for one in schema["anyOf"] for choice in _choices(one)] if "anyOf" in schema else [schema]


def _samples(schema: dict[str, Any], depth: int = 0) -> Iterator[Any]:
    """Bodies of the fields that are required, with ANY in place of each field that may be a number."""
    for choice in _choices(schema):
        kind = choice.get("type")
        if kind in ("integer", "number"):
            yield ANY
        elif kind == "array" and depth < 8:
            yield from ([value] for value in _samples(choice["items"], depth + 1))
        elif kind == "object" and depth < 8:
            fields = choice.get("properties", {})
            least = {name: _plain(fields[name], depth) for name in choice.get("required", ())}
            for name, field in fields.items():
                yield from ({**least, name: value} for value in _samples(field, depth + 1))
            if isinstance(more := choice.get("additionalProperties"), dict):
                yield from ({**least, "requests_per_second": value} for value in _samples(more, depth + 1))


def _plain(schema: dict[str, Any], depth: int = 0) -> Any:
    choice = _choices(schema)[0]
    if "enum" in choice:
        return choice["enum"][0]
    match choice.get("type"):
        case "object" if depth < 8:
            fields = choice.get("properties", {})
            return {name: _plain(fields[name], depth + 1) for name in choice.get("required", ())}
        case "array" if depth < 8:
            return [_plain(choice["items"], depth + 1)]
        case "integer" | "number":
            return 1
        case "boolean":
            return False
    return "1"


def _path(template: str, **values: str) -> str:
    for name, value in (NAMES | values).items():
        template = template.replace(f"{{{name}}}", quote(value, safe=""))
    return template


def _generated() -> Iterator[tuple[str, str, Any]]:
    """Each field of each body in the description of the API that may be a number."""
    for template, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body is not None:
                for sample in _samples(body["schema"]):
                    yield method.upper(), _path(template), sample


def _parameters() -> Iterator[tuple[str, str]]:
    """Each parameter of a path or query, as a number."""
    for template, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            for parameter in operation.get("parameters", ()):
                name = parameter["name"]
                if parameter["in"] == "path":
                    yield method.upper(), _path(template, **{name: "\0"}).replace("%00", "{}")
                elif parameter["in"] == "query":
                    yield method.upper(), f"{_path(template)}?{name}={{}}"


REQUESTS = list(_generated())


def _with(body: Any, number: float) -> Any:
    if body is ANY:
        return number
    if isinstance(body, dict):
        return {name: _with(value, number) for name, value in body.items()}
    return [_with(value, number) for value in body] if isinstance(body, list) else body


@pytest.fixture(autouse=True)
def no_failure() -> Iterator[None]:
    with capture_logs() as logs:
        yield
    failed = [entry for entry in logs if entry["log_level"] in ("error", "critical")]
    assert failed == [], "the node took a caller's number for a failure of its own"


@pytest_asyncio.fixture(loop_scope="session")
async def prepared(http: httpx.AsyncClient, node: Node) -> AsyncIterator[httpx.AsyncClient]:
    """A queue with a message, and a check that the node goes on as before."""
    await http.post(f"{Q}/messages", json={"messages": [{"text": "x"}]})
    engine = node.cell.engine
    yield http
    assert node.cell.engine is engine, "the store was opened again"
    stored = await http.post("/api/v1/queues/after/messages", json={"messages": [{"text": "x"}]})
    assert stored.status_code == 200, stored.text
    for namespace in node.cell.quotas.own_namespaces:  # other tests use the node too
        await node.quotas.change(namespace, dict.fromkeys(Quota))


async def _send(http: httpx.AsyncClient, method: str, path: str, **body: Any) -> None:
    """Send a request. It is done, waits, or is refused with a code."""
    try:
        async with http.stream(method, path, timeout=httpx.Timeout(PATIENCE_SECONDS, read=1), **body) as response:
            if response.status_code < 400:
                return
            text = (await response.aread()).decode()
    except httpx.ReadTimeout:
        return  # a long poll that was taken
    assert response.status_code < 500, text
    assert re.search(r'"(code|error|error_code)":', text), text


@pytest.mark.parametrize("number", WILD_NUMBERS, ids=lambda text: text[:20])
async def test_no_number_in_a_body_is_too_much(prepared: httpx.AsyncClient, number: str) -> None:
    headers = {"Content-Type": "application/json"}
    for method, path, body in REQUESTS:
        raw = json.dumps(_with(body, 12345)).replace("12345", number)
        await _send(prepared, method, path, content=raw, headers=headers)


@pytest.mark.parametrize("number", WILD_NUMBERS, ids=lambda text: text[:20])
async def test_no_number_in_a_path_or_query_is_too_much(prepared: httpx.AsyncClient, number: str) -> None:
    for method, path in _parameters():
        await _send(prepared, method, path.replace("{}", number))


@pytest.mark.parametrize("column", [name for name, text in {**COLUMNS, **SOURCES}.items() if "integer" in text])
async def test_no_number_in_a_column_is_too_much(prepared: httpx.AsyncClient, column: str) -> None:
    kinds = [pa.int64(), pa.uint64(), pa.float64(), pa.duration("s"), pa.timestamp("s"), pa.timestamp("ns")]
    headers = {"Content-Type": "application/vnd.apache.arrow.stream"}
    for kind in kinds:
        for number in (2**31, 2**63 - 1, 2**64 - 1, -1, -(2**63)):
            try:
                values = pa.array([float(number) if kind == pa.float64() else number], type=kind)
            except (OverflowError, pa.ArrowInvalid):
                continue  # the kind has no such number
            table = pa.table({"payload": pa.array([b"x"], type=pa.binary()), column: values})
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            for path in (f"{Q}/messages", "/api/v1/transactions/t/stage?queue=numbers"):
                await _send(prepared, "POST", path, content=sink.getvalue().to_pybytes(), headers=headers)


async def test_a_redrive_that_is_refused_leaves_no_job(http: httpx.AsyncClient) -> None:
    """Sixteen may run at a time."""
    path = "/api/v1/queues/limits/dlq/redrive"
    await http.post("/api/v1/queues", json={"name": "limits"})
    for _ in range(20):
        assert (await http.post(path, json={"limit": 2**70})).status_code == 400
    assert (await http.get(path)).json() == {"redrives": []}
    assert (await http.post(path, json={"limit": 1})).status_code == 202
