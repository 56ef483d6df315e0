"""An act of administration is answered when the audit log has it on disk."""

from __future__ import annotations

import asyncio
import os
import threading

import httpx
import pytest

from tests.waiting import PATIENCE_SECONDS


async def test_an_act_is_answered_when_its_line_is_on_disk(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_SECONDS)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    act = asyncio.ensure_future(http.post("/api/v1/queues", json={"name": "orders"}))
    assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    assert (await http.get("/api/v1/queues/orders")).status_code == 200, "it is done"
    assert not act.done()
    go_on.set()
    assert (await act).is_success
