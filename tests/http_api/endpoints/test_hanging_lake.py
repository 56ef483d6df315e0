"""A lake on a disk that hangs keeps those who ask for histories, and nobody else."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from holdfast.auth.gate import Gate
from holdfast.broker.history import History
from holdfast.broker.node import Node
from holdfast.broker.parts import inspection as look_calls
from holdfast.core.commands import Draft
from holdfast.http_api import HttpFront
from holdfast.store.memory import MemoryStore
from tests.http_api.conftest import config_for
from tests.waiting import PATIENCE_SECONDS

MANY = 33  # more than asyncio has threads of its own


async def test_all_else_is_served_while_histories_hang_and_the_server_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, answers = threading.Semaphore(0), threading.Event()

    def hang(*_: object) -> History:
        hanging.release()
        answers.wait()
        return History([])

    monkeypatch.setattr(look_calls, "read_history", hang)
    config = config_for(tmp_path)
    config = replace(config, journal=replace(config.journal, max_reads=MANY))
    node = Node(config, MemoryStore())
    await node.start()
    gate = Gate(config, node.clock)
    front = HttpFront(config, node, gate)
    await front.start()
    receipt = await node.messages.enqueue(("default", "jobs"), [Draft(b"x")])
    message = f"/api/v1/queues/jobs/messages/{receipt.ids[0]}"
    try:
        async with httpx.AsyncClient(base_url=front.url, timeout=PATIENCE_SECONDS) as http:
            asked = [f"{message}/history", f"{message}?history=true"]
            hang_on = [asyncio.create_task(http.get(asked[n % 2])) for n in range(MANY)]
            for _ in range(MANY):
                while not hanging.acquire(blocking=False):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            refused = await http.get(f"{message}/history")
            assert (refused.status_code, refused.json()["code"]) == (503, "lake_unreadable")
            assert refused.json()["retryable"]

            large = {"messages": [{"text": "x" * 300_000}]}
            assert (await http.post("/api/v1/queues/jobs/messages", json=large)).status_code == 200
            assert (await http.get("/metrics")).status_code == 200
            assert (await http.post("/api/v1/queues", json={"name": "other"})).status_code == 201  # its audit is synced

            async with asyncio.timeout(PATIENCE_SECONDS):
                await front.stop()
                await node.stop()
                await gate.close()
            assert {(await one).status_code for one in hang_on} == {503}
    finally:
        answers.set()
