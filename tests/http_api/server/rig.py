"""A server whose store can be made to fail or to wait, and connections to it by bytes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from holdfast.auth.gate import Gate
from holdfast.broker import cell
from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.http_api import HttpFront
from holdfast.http_api.server.connection import Connection
from holdfast.http_api.server.head import KnownHead
from holdfast.store.faulty import Fault, FaultyStore
from holdfast.store.memory import MemoryStore
from tests.waiting import until

JOBS = ("default", "jobs")
PATH = "/api/v1/queues/jobs/messages"
MILLISECOND = 1_000
LIVE = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"


def post(body: object, path: str = PATH, headers: str = "", length: str = "content-length") -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}{length}: {len(raw)}"
    return head.encode() + b"\r\n\r\n" + raw


def message(text: str = "x") -> dict[str, object]:
    return {"messages": [{"text": text}]}


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """A connection, by bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> Reply:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:-2])
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Reply(int(head[0].split()[1]), headers, body)

    async def ask(self, *parts: bytes) -> Reply:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
        return await self.answer()


class Rig:
    """A server on a store that can be made to fail or to wait, and how many requests it read by a known head."""

    def __init__(self, config: Config) -> None:
        self.fault: Fault | None = None
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.store = FaultyStore(MemoryStore(), sync=self._sync)
        self.node = Node(config, self.store)
        self.front = HttpFront(config, self.node, Gate(config, self.node.clock))
        self.known = 0

    def _sync(self) -> Fault | None:
        self.may_sync.wait()
        return self.fault

    @asynccontextmanager
    async def wire(self) -> AsyncIterator[Wire]:
        reader, writer = await asyncio.open_connection(*self.front.address)
        try:
            yield Wire(reader, writer)
        finally:
            writer.close()

    @property
    def connections(self) -> list[Connection]:
        return [one for one in self.front.connections.open if isinstance(one, Connection)]

    def depth(self) -> int:
        queue = self.node.cell.engine.queues.get(JOBS)
        return queue.depth if queue is not None else 0


@asynccontextmanager
async def serving(config: Config, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    rig = Rig(config)
    split = KnownHead.split

    def counted(self: KnownHead, data: bytes) -> tuple[int, int] | None:
        found = split(self, data)
        rig.known += found is not None
        return found

    monkeypatch.setattr(KnownHead, "split", counted)
    monkeypatch.setattr(cell, "RECOVERY_PAUSE_SECONDS", 0.005)
    await rig.node.start()
    await rig.front.start()
    try:
        yield rig
    finally:
        rig.may_sync.set()
        await rig.front.stop()
        await rig.node.stop()


def apart(data: bytes) -> tuple[bytes, bytes]:
    """A request as many clients write it: first its head, then its body."""
    head, _, body = data.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", body


async def begun(rig: Rig, wire: Wire, data: bytes) -> Connection:
    """The connection, when the beginning of a request is there and the rest is not."""
    wire.writer.write(data)
    await until(lambda: rig.front.api.working == 1)
    (connection,) = rig.connections
    return connection
