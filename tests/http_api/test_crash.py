"""SIGKILL under load over HTTP: nothing confirmed is lost, nothing settled comes back, nothing retried is doubled."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import httpx
import pytest

HOLDFAST = Path(sys.executable).parent / "holdfast"
KILLS = 3
PRODUCERS = 3
QUEUE = "/api/v1/queues/jobs"


async def start(path: Path) -> tuple[Process, str]:
    """A server on any free port; its address, once it listens."""
    process = await asyncio.create_subprocess_exec(
        HOLDFAST,
        "serve",
        "--data-dir",
        path,
        "--http",
        "127.0.0.1:0",
        "--mqtt",
        "127.0.0.1:0",
        "--log-format",
        "json",
        stderr=PIPE,
    )
    assert process.stderr is not None
    async for line in process.stderr:
        entry = json.loads(line)
        if entry["event"] == "HTTP API is listening":
            return process, entry["url"]
    raise AssertionError("the server ended")


class Load:
    """Producers that repeat what was not confirmed, and a consumer."""

    def __init__(self) -> None:
        self.numbers = iter(range(1 << 30))
        self.sent: set[int] = set()
        self.confirmed: dict[int, str] = {}
        self.pending: list[list[int]] = []
        self.acked: set[str] = set()
        self.received: dict[int, set[str]] = {}  # by number, the ids under which it came

    async def produce(self, http: httpx.AsyncClient) -> None:
        while True:
            batch = self.pending.pop() if self.pending else [next(self.numbers) for _ in range(20)]
            self.sent.update(batch)
            try:
                messages = [{"payload": number, "message_id": str(number)} for number in batch]
                answer = await http.post(f"{QUEUE}/messages", json={"messages": messages})
            except httpx.HTTPError:
                self.pending.append(batch)
                return
            if answer.status_code != 200:
                self.pending.append(batch)
                return
            self.confirmed.update(zip(batch, answer.json()["ids"], strict=True))

    async def consume(self, http: httpx.AsyncClient) -> None:
        while True:
            try:
                answer = await http.post(f"{QUEUE}/leases", json={"limit": 50, "wait": "1s", "timeout": "1s"})
                taken = answer.json()["deliveries"] if answer.status_code == 200 else []
                for item in taken:
                    assert item["id"] not in self.acked, "what was acked came back"
                    self.received.setdefault(item["payload"], set()).add(item["id"])
                settlements = [{"id": item["id"], "lease_token": item["lease_token"]} for item in taken]
                if not taken:
                    continue
                settled = await http.post(f"{QUEUE}/settle", json={"settlements": settlements})
            except httpx.HTTPError:
                return
            if settled.status_code == 200:
                refused = {error["index"] for error in settled.json()["errors"]}
                self.acked.update(item["id"] for index, item in enumerate(taken) if index not in refused)


@pytest.mark.crash
async def test_kills_under_load_lose_and_double_nothing(tmp_path: Path) -> None:
    load, chance = Load(), random.Random(7)
    for _ in range(KILLS):
        process, url = await start(tmp_path / "data")
        before = len(load.confirmed)
        async with httpx.AsyncClient(base_url=url, timeout=20) as http:
            work = [asyncio.create_task(load.produce(http)) for _ in range(PRODUCERS)]
            work.append(asyncio.create_task(load.consume(http)))
            target = before + chance.randint(100, 800)
            while len(load.confirmed) < target:
                await asyncio.sleep(0)
                for task in work:
                    if task.done():
                        task.result()
                        raise AssertionError("a client gave up while the server ran")
            process.send_signal(signal.SIGKILL)
            await process.wait()
            await asyncio.wait(work)
            for task in work:
                task.result()

    process, url = await start(tmp_path / "data")
    async with httpx.AsyncClient(base_url=url, timeout=20) as http:
        again = [number for batch in load.pending for number in batch]
        messages = [{"payload": number, "message_id": str(number)} for number in again]
        if messages:
            answer = await http.post(f"{QUEUE}/messages", json={"messages": messages})
            load.confirmed.update(zip(again, answer.json()["ids"], strict=True))
        consumer = asyncio.create_task(load.consume(http))
        while (await http.get(QUEUE)).json()["depth"]:
            if consumer.done():
                consumer.result()
        consumer.cancel()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert set(load.received) == set(load.confirmed) == load.sent, "something confirmed was lost, or came from nowhere"
    assert load.received == {number: {message_id} for number, message_id in load.confirmed.items()}, (
        "something was stored twice"
    )
