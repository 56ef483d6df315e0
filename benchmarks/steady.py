"""Single messages at a steady rate for an hour: what memory and processor the server uses, minute by minute.

    python -m benchmarks steady --rate 1500 --minutes 60

64 publishers over MQTT, each with one message unconfirmed, and 4 consumers that ack each message. Memory may grow until
the caches are full, which the first lines list; after that it must not.
"""

from __future__ import annotations

import argparse
import time

from benchmarks.load.loop import Load, LoadReport, percentile
from benchmarks.load.servers import MemoryPeaks, MemorySampler, processor_seconds, resident_mib, server
from benchmarks.load.wires import MqttWire
from holdfast.broker.caches import limits_bytes
from holdfast.config import Config
from holdfast.units import MIB

PUBLISHERS, CONSUMERS = 64, 4
PREFETCH = 100


def line(minute: float, report: LoadReport, peaks: MemoryPeaks, busy: float) -> str:
    confirm, delivery = report.confirm_times, report.delivery_times
    return (
        f"{minute:6.1f} {report.sent / report.seconds:8,.0f}"
        f" {peaks.server:7.1f} {peaks.converting:7.1f} {peaks.together:7.1f} {100 * busy / report.seconds:7.0f}"
        f" {busy / report.sent * 1e6:8.0f} {100 * report.client_seconds / report.seconds:7.0f}"
        f" {percentile(confirm, 0.5):7.2f} {percentile(confirm, 0.99):7.2f}"
        f" {percentile(delivery, 0.5):7.2f} {percentile(delivery, 0.99):7.2f} {1000 * report.behind:7.1f}"
    )


def run(rate: float, intervals: int, every_seconds: float) -> list[float]:
    """Prints a line for each interval and returns the most resident MiB of the server in each."""
    residents: list[float] = []
    with server() as served:
        publishers = [MqttWire(served.mqtt, f"p-{number}", "bench") for number in range(PUBLISHERS)]
        consumers = [MqttWire(served.mqtt, f"c-{number}", "bench").consume(PREFETCH) for number in range(CONSUMERS)]
        print(f"at the start {resident_mib(served.pid):.1f} MiB resident")
        print("                   most resident MiB            CPU us  client  confirm ms      delivery ms      behind")
        print(
            "minute      a s  server convert.   both   CPU % a message CPU %  p50     p99     p50     p99      ms",
            flush=True,
        )
        started = time.monotonic()
        with MemorySampler(served.pid) as sampler, Load(publishers, consumers, rate=rate) as load:
            for _ in range(intervals):
                before = processor_seconds(served.pid)
                report = load.run(every_seconds)
                peaks = sampler.peaks()
                residents.append(peaks.server)
                busy = processor_seconds(served.pid) - before
                print(line((time.monotonic() - started) / 60, report, peaks, busy), flush=True)
    return residents


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks steady", description=__doc__)
    parser.add_argument("--rate", type=float, default=1500, help="messages a second over all publishers")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=60, help="seconds between two lines")
    options = parser.parse_args(arguments)
    print(f"{options.rate:,.0f} messages a second of 256 B over MQTT for {options.minutes:g} minutes:")
    print(f"{PUBLISHERS} publishers, window 1; {CONSUMERS} consumers, prefetch {PREFETCH}")
    limits = limits_bytes(Config())
    for name, limit in limits.items():
        print(f"  {name:32} at most {limit / MIB:5.0f} MiB")
    print(f"  {'together':32} at most {sum(limits.values()) / MIB:5.0f} MiB")
    residents = run(options.rate, max(1, round(60 * options.minutes / options.every)), options.every)
    half = residents[len(residents) // 2 :]
    print(f"the server's second half: {half[0]:.1f} MiB at first, {half[-1]:.1f} at last, {max(half):.1f} at most")
