"""What the life of a single message over MQTT costs the server's processor: publish, deliver, ack, all journalled.

    python -m benchmarks one [--rate 1000] [--seconds 3] [--growth]

A publisher and a consumer, 256 B, at a rate that leaves the server time for each message by itself. First by step, from
a server whose functions are timed (`timed_server.py`), which costs some microseconds more; then of a plain server, with
`--growth` also with more connections, queues, groups and partitions: each message goes to one queue and to every group.
Processor time holds on a busy machine too, times of delivery do not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.load.loop import Load, LoadReport, percentile
from benchmarks.load.servers import Served, create_groups, create_queues, empty_server, loop_seconds, processor_seconds
from benchmarks.load.wires import MqttWire

PREFETCH = 100
SUBSCRIPTIONS_MAX = 1_000  # of a session, by default
CONNECTIONS = (1, 10, 100, 1_000)
QUEUES = (1, 10, 100, 1_000, 10_000)
GROUPS = (1, 10, 64)
PARTITIONS = (1, 10, 100)


class Setting(NamedTuple):
    """What there is beside the one message."""

    connections: int = 1
    queues: int = 1
    groups: int = 1
    partitions: int = 10

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in self._asdict().items())


class Cost(NamedTuple):
    """Microseconds of the server's processor a message: of all its threads and processes, of its loop."""

    total: float
    loop: float
    report: LoadReport


def life(served: Served, setting: Setting, rate: float, seconds: float) -> Cost:
    """Messages go to each queue in turn, and from each connection in turn."""
    names = [f"{setting.partitions}-{number}" for number in range(setting.queues)]
    create_queues(served.http, names, {"partitions": setting.partitions, "max_depth": 0})
    groups = [f"group-{number}" for number in range(setting.groups)]
    if setting.groups > 1:  # consumers may create fewer of them than an administrator
        for name in names:
            create_groups(served.http, name, groups)
    consumers: list[MqttWire] = []
    for group in groups:
        for start in range(0, len(names), SUBSCRIPTIONS_MAX):
            wire = MqttWire(served.mqtt, f"{group}-{start}", *names[start : start + SUBSCRIPTIONS_MAX])
            consumers.append(wire.consume(PREFETCH, group))
    publishers = [MqttWire(served.mqtt, f"p-{number}", *names) for number in range(setting.connections)]
    with Load(publishers, consumers, rate=rate, window=PREFETCH, copies=setting.groups) as load:
        load.run(seconds / 4)  # windows and caches fill
        before, loop_before = processor_seconds(served.pid), loop_seconds(served.pid)
        report = load.run(seconds)
        total, loop = processor_seconds(served.pid) - before, loop_seconds(served.pid) - loop_before
    return Cost(total / report.sent * 1e6, loop / report.sent * 1e6, report)


def by_step(rate: float, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "steps.json"
        with empty_server((sys.executable, "-m", "benchmarks.timed_server", str(result))) as served:
            cost = life(served, Setting(), rate, seconds)
        steps = json.loads(result.read_text())
    messages = cost.report.sent * 1.25  # with those of the first quarter
    on_loop = {step: nanoseconds / messages / 1000 for step, nanoseconds in steps["loop"].items()}
    on_threads = steps["threads"] / messages / 1000
    rest = cost.loop - sum(on_loop.values())
    others = cost.total - cost.loop - on_threads
    print(f"CPU of the server for a message at {rate:,.0f} a second, by step (us)")
    for step, microseconds in on_loop.items():
        print(f"  {step:10} {microseconds:7.1f}")
    print(f"  {'loop':10} {rest:7.1f}   between the steps: epoll, recv, callbacks")
    print(f"  {'sync':10} {on_threads:7.1f}   on its thread")
    print(f"  {'others':10} {others:7.1f}   RocksDB's threads, export of the journal")
    print(f"  {'total':10} {cost.total:7.1f}   of a server that is timed")


def plain(settings: Sequence[Setting], rate: float, seconds: float) -> None:
    print(
        f"CPU of a plain server for a message at {rate:,.0f} a second (us): all, loop; delivery p50, p99 (ms); client %"
    )
    for setting in settings:
        with empty_server() as served:
            cost = life(served, setting, rate, seconds)
        times, client = cost.report.delivery_times, 100 * cost.report.client_seconds / cost.report.seconds
        print(
            f"  {setting!s:62} {cost.total:8.1f} {cost.loop:8.1f}"
            f" {percentile(times, 0.5):8.2f} {percentile(times, 0.99):8.2f} {client:5.0f}",
            flush=True,
        )


def growth() -> list[Setting]:
    return [
        *(Setting(connections=count) for count in CONNECTIONS),
        *(Setting(queues=count, partitions=1) for count in QUEUES),
        *(Setting(groups=count) for count in GROUPS),
        *(Setting(partitions=count) for count in PARTITIONS),
    ]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks one", description=__doc__)
    parser.add_argument("--rate", type=float, default=1000, help="messages a second")
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement")
    parser.add_argument("--growth", action="store_true", help="also with more connections, queues, groups, partitions")
    options = parser.parse_args(arguments)
    by_step(options.rate, options.seconds)
    plain(growth() if options.growth else [Setting()], options.rate, options.seconds)
