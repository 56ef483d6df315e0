"""Rights are decided from the head of a request: who may not do something is refused before the body is there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec.structs import replace

from holdfast.auth import keys, tokens
from holdfast.auth.gate import Gate
from holdfast.auth.tokens import Claims
from holdfast.broker.node import Node
from holdfast.config.secret import SecretText
from holdfast.http_api import HttpFront
from holdfast.http_api.server.app import ROUTES
from holdfast.http_api.server.routes import Endpoint, Right
from holdfast.store.memory import MemoryStore
from holdfast.units import SECOND
from tests.http_api.conftest import config_for
from tests.http_api.server.rig import Wire

SECRET = "s" * 40
CHANGING = [
    endpoint
    for routes in ROUTES
    for endpoint in routes.endpoints
    if endpoint.method != "GET" and endpoint.right is not Right.ANONYMOUS
]


IN_PATH = [endpoint for endpoint in CHANGING if endpoint.path.startswith("/api/v1/queues/{")]
"""Those whose path names the queue."""

ELSEWHERE = "produce:other consume:other admin:other"
CASES = [("", endpoint) for endpoint in CHANGING] + [(ELSEWHERE, endpoint) for endpoint in IN_PATH]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpFront]:
    """A server that wants credentials."""
    config = config_for(tmp_path_factory.mktemp("guarded"), body_timeout=SECOND)
    config = replace(config, auth=replace(config.auth, token_secret=SecretText(SECRET)))
    node = Node(config, MemoryStore())
    await node.start()
    gate = Gate(config, node.clock)
    front = HttpFront(config, node, gate)
    await front.start()
    yield front
    await front.stop()
    await node.stop()
    await gate.close()


def token(front: HttpFront, scope: str) -> str:
    claims = Claims(sub="shop", ns="acme", scope=scope, exp=front.api.node.clock() // SECOND + 60)
    return tokens.sign(claims, keys.from_secret(SecretText(SECRET)))


def _name(case: object) -> str:
    return f"{case.method} {case.path}" if isinstance(case, Endpoint) else str(case)


@pytest.mark.parametrize("content_type", ["application/json", "multipart/form-data; boundary=x"])
@pytest.mark.parametrize(("scope", "endpoint"), CASES, ids=_name)
async def test_a_caller_without_the_right_is_refused_before_its_body_comes(
    guarded: HttpFront, endpoint: Endpoint, scope: str, content_type: str
) -> None:
    path = re.sub(r"{\w+}", "1", endpoint.path)
    head = (
        f"{endpoint.method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token(guarded, scope)}\r\n"
        f"content-type: {content_type}\r\ncontent-length: 45000000\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(*guarded.address)
    answer = await Wire(reader, writer).ask(head.encode())
    writer.close()
    assert (answer.status, b"forbidden" in answer.body) == (403, True), answer.body
    assert guarded.api.buffered_bytes == 0
