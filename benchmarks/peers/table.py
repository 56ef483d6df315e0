"""Single messages and batches beside other servers, each line with its target: ours and the peer by turns, in one run.

    python -m benchmarks peers [--rounds 5] [--only NAME ...] [--dramatiq PYTHON]

Every measurement starts a fresh server of its own. The load is this process, on plain sockets (`load/`); how busy it
was stands below each: near 100 % the client was the limit, not the server. Everything is synced before it is confirmed.
Peers that are not installed are left out. Only ratios mean anything, and only on a quiet machine.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.load.loop import Load, LoadReport, percentile
from benchmarks.load.servers import empty_server, processor_seconds, resident_mib
from benchmarks.one import Setting, life
from benchmarks.peers.servers import (
    Broker,
    NotInstalledError,
    holdfast,
    holdfast_drained_over_http,
    holdfast_over_http,
    postgres,
    rabbitmq_classic,
    rabbitmq_quorum,
    redis,
)

END_TO_END_RATE = 2_000
MANY_QUEUES, MANY_QUEUES_RATE = 1_000, 1_000
IDLE_SECONDS = 2.0
JOBS_SECONDS_MAX = 120.0
HERE = Path(__file__).parent


class Options(argparse.Namespace):
    """The command line."""

    rounds: int
    seconds: float
    backlog: int
    jobs: int
    dramatiq: str
    only: list[str]


class Measured(NamedTuple):
    """A value for each line, and the part of a core that the client used."""

    values: tuple[float, ...]
    client: float = 0.0


Measure = Callable[[Options], Measured]
Serve = Callable[[], AbstractContextManager[Broker]]


class Line(NamedTuple):
    """A value and its target: of ours divided by the peer's, or of ours itself. `less` is better, or more."""

    title: str
    unit: str
    target: float
    less: bool = False
    absolute: bool = False


class Contest(NamedTuple):
    """What is measured together."""

    ours: Measure
    peer_name: str
    peer: Measure
    lines: tuple[Line, ...]


# --- loads ------------------------------------------------------------------------------------------------------------


def end_to_end(serve: Serve, options: Options) -> Measured:
    """One publisher and one consumer at a rate: processor time of the server for a message, times of delivery."""
    with serve() as broker:
        wires = broker.publishers(1), broker.consumers(1)
        with Load(*wires, rate=END_TO_END_RATE, window=END_TO_END_RATE) as load:
            load.run(options.seconds / 4)
            before = processor_seconds(broker.pid)
            report = load.run(options.seconds)
            cost = (processor_seconds(broker.pid) - before) / report.sent * 1e6
    times = report.delivery_times
    return Measured((cost, percentile(times, 0.5), percentile(times, 0.99)), client_part(report))


def publish(serve: Serve, connections: int, window: int, payload_bytes: int, options: Options) -> Measured:
    """Messages a second."""
    with serve() as broker:
        wires = broker.publishers(connections)
        with Load(wires, burst=window, window=window, payload_bytes=payload_bytes) as load:
            report = load.run(options.seconds)
    return Measured((report.sent / report.seconds,), client_part(report))


def drain(serve: Serve, options: Options) -> Measured:
    """Messages a second of a backlog, by 4 consumers that ack each."""
    with serve() as broker:
        with Load(broker.publishers(4), burst=100, window=100) as load:
            filled = load.fill(options.backlog)
        with Load([], broker.consumers(4)) as load:
            report = load.drain(filled.sent)
    return Measured((report.delivered / report.seconds,), client_part(report))


def client_part(report: LoadReport) -> float:
    return report.client_seconds / report.seconds


def idle_memory(serve: Serve, _: Options) -> Measured:
    with serve() as broker:
        time.sleep(IDLE_SECONDS)
        return Measured((resident_mib(broker.pid),))


def divided_among(queues: int, options: Options) -> Measured:
    """Processor time of the server for a message, at a rate over all queues."""
    with empty_server() as served:
        cost = life(served, Setting(queues=queues, partitions=1), MANY_QUEUES_RATE, options.seconds)
    return Measured((cost.total,), client_part(cost.report))


def holdfast_jobs(options: Options) -> Measured:
    with holdfast() as broker:
        return jobs(sys.executable, "worker_holdfast.py", broker, options)


def dramatiq_jobs(options: Options) -> Measured:
    python = options.dramatiq
    if subprocess.run([python, "-c", "import dramatiq, pika"], capture_output=True, check=False).returncode:
        raise NotInstalledError(f"{python} has no dramatiq[rabbitmq], see --dramatiq")
    with rabbitmq_classic() as broker:
        return jobs(python, "worker_dramatiq.py", broker, options)


def jobs(python: str, script: str, broker: Broker, options: Options) -> Measured:
    """No-op jobs a second that a worker executes, in a process of its own."""
    command = [python, str(HERE / script), broker.url, str(options.jobs)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=JOBS_SECONDS_MAX, check=True)
    return Measured((float(done.stdout),))


# --- the table --------------------------------------------------------------------------------------------------------

CONTESTS: dict[str, Contest] = {
    "end-to-end": Contest(
        partial(end_to_end, holdfast),
        "Redis",
        partial(end_to_end, redis),
        (
            Line("life of a message, MQTT: CPU of the server", "us", 150, less=True, absolute=True),
            Line("end to end at 2,000/s, MQTT, p50", "ms", 2.5, less=True),
            Line("end to end at 2,000/s, MQTT, p99", "ms", 2.0, less=True),
        ),
    ),
    "single": Contest(
        partial(publish, holdfast, 16, 1, 256),
        "Redis",
        partial(publish, redis, 16, 1, 256),
        (Line("publish, MQTT, 16 connections x window 1", "/s", 0.6),),
    ),
    "http-single": Contest(
        partial(publish, holdfast_over_http, 16, 1, 256),
        "PostgreSQL",
        partial(publish, postgres, 16, 1, 256),
        (Line("enqueue, HTTP, single, 16 connections", "/s", 1.5),),
    ),
    "publish": Contest(
        partial(publish, holdfast, 4, 100, 256),
        "Redis",
        partial(publish, redis, 4, 100, 256),
        (Line("publish, MQTT, 4 connections x window 100", "/s", 1.0),),
    ),
    "publish-1k": Contest(
        partial(publish, holdfast, 4, 100, 1024),
        "Redis",
        partial(publish, redis, 4, 100, 1024),
        (Line("the same, 1 KiB", "/s", 1.2),),
    ),
    "drain": Contest(
        partial(drain, holdfast),
        "Redis",
        partial(drain, redis),
        (Line("drain with acks, MQTT, 4 consumers, prefetch 100", "/s", 1.0),),
    ),
    "http-drain": Contest(
        partial(drain, holdfast_drained_over_http),
        "RabbitMQ quorum",
        partial(drain, rabbitmq_quorum),
        (Line("drain with acks, HTTP, 4 consumers, batches of 100", "/s", 1.5),),
    ),
    "worker": Contest(
        holdfast_jobs, "dramatiq", dramatiq_jobs, (Line("worker, concurrency 8, no-op jobs executed", "/s", 3.0),)
    ),
    "idle": Contest(
        partial(idle_memory, holdfast),
        "Redis",
        partial(idle_memory, redis),
        (Line("memory, idle", "MiB", 60, less=True, absolute=True),),
    ),
    "queues": Contest(
        partial(divided_among, MANY_QUEUES),
        "one queue",
        partial(divided_among, 1),
        (Line("1,000 queues, 1/s each: CPU of the server a message", "us", 2.0, less=True),),
    ),
}


def take_turns(contest: Contest, options: Options) -> tuple[list[Measured], list[Measured], str]:
    """What each measured in each round, and why there is nothing of the peer, if there is nothing."""
    ours: list[Measured] = []
    peers: list[Measured] = []
    missing = ""
    for _ in range(options.rounds):
        ours.append(contest.ours(options))
        if not missing:
            try:
                peers.append(contest.peer(options))
            except NotInstalledError as error:
                missing = str(error)
    return ours, peers, missing


def row(line: Line, ours: list[float], peers: list[float], peer_name: str) -> str:
    """Medians, and whether the target is met."""
    value = statistics.median(ours)
    other = f"{statistics.median(peers):10,.1f}" if peers else f"{'-':>10}"
    ratio = value / statistics.median(peers) if peers else None
    judged = value if line.absolute else ratio
    sign, unit = "<=" if line.less else ">=", line.unit if line.absolute else "x"
    met = "" if judged is None else "met" if (judged <= line.target) == line.less else "missed"
    shown = f"{ratio:6.2f} x" if ratio is not None else f"{'-':>8}"
    return (
        f"{line.title:52} {value:10,.1f} {other} {line.unit:3} {shown}"
        f"  {f'{sign} {line.target:g} {unit}':10} {met:6} {peer_name}"
    )


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="of each load")
    parser.add_argument("--backlog", type=int, default=100_000, help="messages that are drained")
    parser.add_argument("--jobs", type=int, default=5_000, help="that a worker executes")
    parser.add_argument("--dramatiq", default=sys.executable, help="a Python with dramatiq[rabbitmq]")
    parser.add_argument("--only", nargs="+", choices=CONTESTS, default=list(CONTESTS), metavar="NAME")
    options = parser.parse_args(arguments, Options())
    print(f"medians of {options.rounds} rounds by turns, 256 B, everything synced before it is confirmed")
    print(f"{'':52} {'Holdfast':>10} {'peer':>10}        ratio  target")
    for name in options.only:
        contest = CONTESTS[name]
        ours, peers, missing = take_turns(contest, options)
        for at, line in enumerate(contest.lines):
            values = [one.values[at] for one in ours], [one.values[at] for one in peers]
            print(row(line, *values, contest.peer_name))
        busy = [statistics.median(one.client for one in side) for side in (ours, peers) if side]
        if missing:
            print(f"  {missing}")
        elif any(busy):
            print(f"  client busy {100 * busy[0]:.0f} % and {100 * busy[1]:.0f} % of a core")
        sys.stdout.flush()
