"""The description of the API: it is complete, and the server does nothing that it does not say."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from msgspec.structs import replace
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from holdfast.auth.gate import Gate
from holdfast.broker.node import Node
from holdfast.config.secret import SecretText
from holdfast.config.settings import LimitSettings
from holdfast.errors import all_errors
from holdfast.http_api import HttpFront
from holdfast.http_api.openapi.document import document
from holdfast.http_api.openapi.examples import BODIES, body_of, path_of
from holdfast.http_api.server.app import ROUTES
from holdfast.http_api.server.routes import Endpoint, Right
from holdfast.store import open_store
from tests.http_api.conftest import config_for
from tests.waiting import PATIENCE_SECONDS

ENDPOINTS = [endpoint for routes in ROUTES for endpoint in routes.endpoints]


async def test_the_description_has_every_endpoint(http: httpx.AsyncClient) -> None:
    described = (await http.get("/openapi.json")).json()
    assert described["openapi"] == "3.1.0"
    operations = {(method.upper(), path) for path, item in described["paths"].items() for method in item}
    assert operations == {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}


async def test_the_page_needs_nothing_from_outside_and_has_every_endpoint_and_error(http: httpx.AsyncClient) -> None:
    answer = await http.get("/docs")
    page = answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]
    assert not any(mark in page for mark in ("http://", "https://", "src=", "@import", "url("))
    assert [endpoint.path for endpoint in ENDPOINTS if f"<code>{endpoint.path}</code>" not in page] == []
    assert [error.code for error in all_errors() if f"id='error-{error.code}'" not in page] == []


def test_every_body_has_an_example_that_is_one() -> None:
    missing = [endpoint.path for endpoint in ENDPOINTS if endpoint.body is not None and not _has_example(endpoint)]
    assert missing == []
    for endpoint in ENDPOINTS:
        if endpoint.body is not None:
            msgspec.json.decode(msgspec.json.encode(body_of(endpoint)), type=endpoint.body)
        assert "{" not in path_of(endpoint)


def _has_example(endpoint: Endpoint) -> bool:
    return getattr(endpoint.body, "__name__", "list") in BODIES


async def test_the_server_takes_the_examples(http: httpx.AsyncClient) -> None:
    """Those that need nothing but what the ones before have made."""
    by_name = {(endpoint.method, endpoint.path): endpoint for endpoint in ENDPOINTS}
    for method, path, status in (
        ("POST", "/api/v1/queues", 201),
        ("PUT", "/api/v1/queues/{name}/config", 200),
        ("PUT", "/api/v1/queues/{name}/groups/{group}", 200),
        ("POST", "/api/v1/queues/{name}/messages", 200),
        ("POST", "/api/v1/queues/{name}/import", 200),
        ("POST", "/api/v1/queues/{name}/leases", 200),
        ("POST", "/api/v1/queues/{name}/dlq/redrive", 202),
        ("POST", "/api/v1/transactions/{transaction}/stage", 200),
        ("POST", "/api/v1/transactions/{transaction}/publish", 200),
        ("PUT", "/api/v1/schedules/{name}", 200),
        ("PUT", "/api/v1/quotas/{namespace}", 200),
        ("POST", "/enqueue", 200),
        ("POST", "/v1/queue/stats", 200),
    ):
        endpoint = by_name[method, path]
        answer = await http.request(method, path_of(endpoint), json=body_of(endpoint))
        assert answer.status_code == status, (path, answer.text)


def test_every_endpoint_says_what_it_is_for_and_every_field_has_a_type() -> None:
    assert [endpoint.path for endpoint in ENDPOINTS if len(endpoint.summary) < 10] == []
    schemas = document(ENDPOINTS)["components"]["schemas"]
    assert [name for name, schema in schemas.items() if not schema.get("description")] == []


async def test_without_a_credential_nothing_is_told_but_health_and_description(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    config = replace(config, auth=replace(config.auth, token_secret=SecretText("x" * 40)))
    store = open_store("memory", tmp_path)
    node = Node(config, store)
    await node.start()
    gate = Gate(config, node.clock)
    front = HttpFront(config, node, gate)
    await front.start()
    async with httpx.AsyncClient(base_url=front.url, timeout=PATIENCE_SECONDS) as http:
        for endpoint in ENDPOINTS:
            path = re.sub(r"{\w+}", "1", endpoint.path)
            for headers in ({}, {"authorization": "Bearer nonsense"}, {"authorization": "nonsense"}):
                answer = await http.request(endpoint.method, path, headers=headers)
                wanted = 200 if endpoint.right is Right.ANONYMOUS else 401
                assert answer.status_code == wanted, (endpoint.method, path, headers, answer.text)
                if wanted == 401:
                    assert "Bearer" in answer.headers["www-authenticate"]
    assert node.queues.in_namespace("default") == []
    await front.stop()
    await node.stop()
    await gate.close()
    store.close()


class Serving:
    """A server on a loop and a thread of its own, for a client that blocks."""

    def __init__(self, path: Path) -> None:
        self.url = ""
        self._path = path
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()))

    def __enter__(self) -> Serving:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        # No waiting: random requests would ask for minutes of it.
        config = replace(config_for(self._path), limits=LimitSettings(max_wait=1000))
        store = open_store("memory", self._path)
        node = Node(config, store)
        await node.start()
        front = HttpFront(config, node, Gate(config, node.clock))
        await front.start()
        self.url = front.url
        self._ready.set()
        await self._stop.wait()
        await front.stop()
        await node.stop()
        store.close()


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("schema")) as found:
        yield found


@schemathesis.serializer("application/vnd.apache.arrow.stream")
def as_bytes(_context: object, value: object) -> bytes:
    """Random bytes are no Arrow stream: what the server says to that is what is looked at."""
    return repr(value).encode()


described = schemathesis.openapi.from_dict(document(ENDPOINTS)).exclude(path_regex="/stream$")
CHOSEN = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    unsupported_method,
]


@described.parametrize()
@settings(
    max_examples=int(os.environ.get("SCHEMA_EXAMPLES", "3")),
    deadline=None,
    derandomize="SCHEMA_EXAMPLES" not in os.environ,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_random_requests_get_only_what_is_described(case: schemathesis.Case[Any], serving: Serving) -> None:
    response = case.call(base_url=serving.url)
    case.validate_response(response, checks=CHOSEN)
