"""The loop that drives the loads of benchmarks, against a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.load.loop import Load
from benchmarks.load.servers import Served, server
from benchmarks.load.wires import MqttWire


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with server() as served:
        yield served


def test_messages_at_a_rate_are_each_confirmed_delivered_and_timed(served: Served) -> None:
    publishers = [MqttWire(served.mqtt, f"publisher-{number}", "paced") for number in range(2)]
    consumer = MqttWire(served.mqtt, "consumer", "paced").consume(10)
    with Load(publishers, [consumer], rate=200) as load:
        report = load.run(0.5)
    assert (report.sent, report.delivered) == (100, 100)
    assert len(report.confirm_times) == len(report.delivery_times) == 100
    assert 0 < report.delivery_times[0] <= report.delivery_times[-1] < report.seconds
    assert report.seconds >= 0.495  # the hundredth is due then


def test_bursts_that_fill_the_window_are_drained_by_a_consumer_that_acks(served: Served) -> None:
    publishers = [MqttWire(served.mqtt, f"filling-{number}", "filled") for number in range(2)]
    with Load(publishers, burst=50, window=50) as load:
        filled = load.run(0.2)
    assert filled.sent == 50 * len(filled.confirm_times) > 0
    consumer = MqttWire(served.mqtt, "draining", "filled").consume(100)
    with Load([], [consumer]) as load:
        assert load.drain(filled.sent).delivered == filled.sent
