"""One message to many subscribers: what they are sent is bounded, and those that read lose nothing."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from holdfast.mqtt.codec import Publish
from holdfast.mqtt.net import backpressure
from holdfast.mqtt.net.backpressure import Backpressure
from holdfast.mqtt.net.link import Link
from tests.mqtt.net.broker import Broker
from tests.mqtt.net.client import Client
from tests.waiting import until

SIZE = 32 << 10
COUNT = 128
READ_BYTES = 256 << 10
"""What the loop reads at a time."""


@pytest.fixture
def unsent(monkeypatch: pytest.MonkeyPatch) -> dict[Link, int]:
    """The most bytes that each connection had to send at a time."""
    most: dict[Link, int] = {}
    send = Link.send

    def measured(self: Link, data: bytes, close: bool) -> None:
        send(self, data, close)
        transport = cast("asyncio.Transport", self._transport)
        most[self] = max(most.get(self, 0), transport.get_write_buffer_size())

    monkeypatch.setattr(Link, "send", measured)
    return most


async def test_subscribers_that_read_lose_nothing_of_a_burst_and_buffer_little(
    broker: Broker, unsent: dict[Link, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backpressure, "PATIENCE_SECONDS", 1e6)  # on a busy machine a second is not long
    readers = [await broker.connect(f"reader-{number}") for number in range(10)]
    for reader in readers:
        await reader.subscribe("t")
    publisher = await broker.connect("publisher")
    burst = [Publish("t", b"%d" % number + b"x" * SIZE) for number in range(COUNT)]
    await asyncio.gather(publisher.send(*burst), *[_read_all(reader, burst) for reader in readers])
    assert broker.hub.dropped["slow"] == 0
    assert max(unsent.values()) <= broker.config.mqtt.buffer_bytes * 5 // 4 + READ_BYTES + 2 * SIZE


async def _read_all(reader: Client, burst: list[Publish]) -> None:
    assert [packet.payload for packet in await reader.publishes(COUNT)] == [packet.payload for packet in burst]


async def test_one_that_does_not_read_buffers_little_and_does_not_stop_the_others(
    broker: Broker, unsent: dict[Link, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backpressure, "PATIENCE_SECONDS", 0.05)
    stuck = await broker.connect("stuck")
    await stuck.subscribe("t")
    publisher = await broker.connect("publisher")
    for _ in range(8):  # the system buffers some megabytes
        await publisher.send(*[Publish("t", b"x" * SIZE)] * COUNT)
        await publisher.ping()
    assert broker.hub.dropped["slow"] > 0
    assert max(unsent.values()) <= broker.config.mqtt.buffer_bytes * 5 // 4 + READ_BYTES + 2 * SIZE
    stuck.cut()
    publisher.cut()
    await until(lambda: not broker.front._backpressure)


class Reading:
    """A link that may be held."""

    def __init__(self) -> None:
        self.held = False

    def hold(self, why: str) -> None:
        assert why == "subscribers"
        assert not self.held
        self.held = True

    def unhold(self, why: str) -> None:
        assert why == "subscribers"
        self.held = False


class Clock:
    """As much of a loop as backpressure uses."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, object]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: object) -> Clock:
        self.timers.append((self.now + seconds, callback))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for due, callback in list(self.timers):
            if due <= self.now:
                callback()  # type: ignore[operator]


def test_publishers_wait_for_a_subscriber_until_their_patience_is_used_up() -> None:
    clock = Clock()
    pressure = Backpressure(cast("asyncio.AbstractEventLoop", clock))
    publisher, late, subscriber = Reading(), Reading(), Reading()
    pressure.publishes(publisher)
    pressure.paused(subscriber)
    pressure.publishes(late)
    assert (publisher.held, late.held) == (True, True)
    clock.pass_time(0.5)
    pressure.resumed(subscriber)
    assert (publisher.held, late.held) == (False, False)
    pressure.paused(subscriber)
    clock.pass_time(0.25)
    held = [publisher.held]
    clock.pass_time(0.25)
    held.append(publisher.held)
    assert held == [True, False]  # after a second in all
    pressure.resumed(subscriber)
    pressure.paused(subscriber)
    assert not publisher.held
    clock.pass_time(5)  # half a second comes back
    pressure.resumed(subscriber)
    pressure.paused(subscriber)
    held = [publisher.held]
    clock.pass_time(0.5)
    held.append(publisher.held)
    assert held == [True, False]
    pressure.lost(subscriber)
    pressure.lost(publisher)
    assert not pressure.idle
    pressure.lost(late)
    assert pressure.idle


def test_publishers_go_on_when_the_last_they_wait_for_has_gone() -> None:
    clock = Clock()
    pressure = Backpressure(cast("asyncio.AbstractEventLoop", clock))
    publisher, one, other = Reading(), Reading(), Reading()
    pressure.publishes(publisher)
    pressure.paused(one)
    pressure.paused(other)
    pressure.lost(one)
    assert publisher.held
    pressure.resumed(other)
    assert not publisher.held
