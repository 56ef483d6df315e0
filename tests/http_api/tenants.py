"""A server with credentials, and callers of several namespaces with the scopes that a test gives them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from msgspec.structs import replace

from holdfast.auth import keys, tokens
from holdfast.auth.gate import Gate
from holdfast.broker.node import Node
from holdfast.config.secret import SecretText
from holdfast.http_api import HttpFront
from holdfast.store.memory import MemoryStore
from tests.http_api.conftest import config_for
from tests.waiting import PATIENCE_SECONDS

SECRET = "x" * 40
FAR_AWAY = int(time.time()) + 36_000


def token(*scopes: str, namespace: str = "default", subject: str = "somebody") -> str:
    claims = tokens.Claims(sub=subject, ns=namespace, scope=list(scopes), exp=FAR_AWAY)
    return tokens.sign(claims, keys.from_secret(SecretText(SECRET)))


class Tenants:
    """A server, and clients of it."""

    def __init__(self, front: HttpFront, http: httpx.AsyncClient) -> None:
        self.front = front
        self.node = front.api.node
        self._http = http

    async def call(
        self,
        method: str,
        path: str,
        *scopes: str,
        namespace: str = "default",
        subject: str = "somebody",
        json: object = None,
        content: bytes | None = None,
        content_type: str = "",
    ) -> httpx.Response:
        """A request of somebody who has these scopes in a namespace."""
        headers = {"authorization": f"Bearer {token(*scopes, namespace=namespace, subject=subject)}"}
        if content_type:
            headers["content-type"] = content_type
        if json is not None:
            return await self._http.request(method, path, headers=headers, json=json)
        return await self._http.request(method, path, headers=headers, content=content)


@asynccontextmanager
async def tenants(path: Path) -> AsyncIterator[Tenants]:
    config = config_for(path)
    config = replace(config, auth=replace(config.auth, token_secret=SecretText(SECRET)))
    node = Node(config, MemoryStore())
    await node.start()
    gate = Gate(config, node.clock)
    front = HttpFront(config, node, gate)
    await front.start()
    async with httpx.AsyncClient(base_url=front.url, timeout=PATIENCE_SECONDS) as http:
        yield Tenants(front, http)
    await front.stop()
    await node.stop()
    await gate.close()
