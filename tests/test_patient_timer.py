"""Time in which the process did not run does not count as a peer's silence."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from holdfast.mqtt.codec import Disconnect, PingReq, PingResp
from holdfast.patient_timer import PatientTimer
from tests.mqtt.net.test_durability import Process


async def test_a_timer_that_is_on_time_calls_back_and_can_be_cancelled() -> None:
    loop = asyncio.get_running_loop()
    fired = asyncio.Event()
    PatientTimer(loop, 0.01, fired.set)
    cancelled = PatientTimer(loop, 0.005, lambda: pytest.fail("it was cancelled"))
    cancelled.cancel()
    await fired.wait()


async def test_a_client_whose_ping_waits_unread_is_not_cut_by_its_keep_alive(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await process.start()
    try:
        pinging = await process.connect("pinging", keep_alive=2)
        silent = await process.connect("silent", keep_alive=2)
        process.signal(signal.SIGSTOP)
        await pinging.send(PingReq())
        await asyncio.sleep(4.5)  # one and a half keep alives, and late by more than a second
        process.signal(signal.SIGCONT)
        assert isinstance(await pinging.next(), PingResp)
        assert [type(packet) for packet in await silent.ended()] == [Disconnect]
    finally:
        await process.kill()
