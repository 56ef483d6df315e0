"""How fast a server takes messages on each of its stores, beside tables of PostgreSQL into which rows are inserted.

    python -m benchmarks stores [--seconds 5] [--rounds 3]

256 B payloads, everything durable before it is confirmed, one server at a time, by turns in one run: the medians may be
compared with each other, and with nothing else.

    batches   4 connections over MQTT, each sends 100 messages in one write and waits for their PUBACKs;
              PostgreSQL: one INSERT of 100 rows a transaction
    single    16 connections with one message at a time; PostgreSQL: one row a transaction

The CPU is that of the server's processes and, for the store `postgres`, of the database beside it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg

from benchmarks.load.loop import Load, percentile
from benchmarks.load.servers import create_queues, empty_server, free_port, processor_seconds
from benchmarks.load.wires import MqttWire, PublisherWire
from benchmarks.peers.wires import PostgresBatchWire, PostgresWire
from tools.postgres import Server

BATCH = 100
CONNECTIONS = {"batches": 4, "single": 16}
GOALS = (
    ("batches", "postgres", "INSERT", 1.0),
    ("batches", "postgres", "rocks", 0.5),
    ("single", "postgres", "INSERT", 3.0),
)


class Target(NamedTuple):
    """A server to send to: connections of a workload, how many messages a confirmation is for, and its processes."""

    publishers: Callable[[str], Sequence[PublisherWire]]
    burst: Callable[[str], tuple[int, int]]  # of a workload: messages in a write, messages a confirmation stands for
    pids: Sequence[int]


class Result(NamedTuple):
    rate: float
    p50_ms: float
    microseconds: float  # of the processors, a message


@contextmanager
def holdfast(environment: dict[str, str], *others: int) -> Iterator[Target]:
    with empty_server(environment=environment) as served:
        create_queues(served.http, ["bench"], {"max_depth": 0})

        def publishers(workload: str) -> Sequence[PublisherWire]:
            return [MqttWire(served.mqtt, f"p-{number}", "bench") for number in range(CONNECTIONS[workload])]

        yield Target(publishers, lambda workload: (BATCH if workload == "batches" else 1, 1), (served.pid, *others))


def rocks() -> AbstractContextManager[Target]:
    return holdfast({"HOLDFAST_STORE_KIND": "rocks"})


@contextmanager
def on_postgres(server: Server) -> Iterator[Target]:
    """In a database of its own."""
    with new_database(server) as name:
        environment = {"HOLDFAST_STORE_KIND": "postgres", "HOLDFAST_STORE_URL": server.url(name)}
        with holdfast(environment, server.pid) as target:
            yield target


@contextmanager
def inserts(server: Server, port: int) -> Iterator[Target]:
    wire = PostgresWire(port)
    wire.create_table()
    wire.close()

    def publishers(workload: str) -> Sequence[PublisherWire]:
        if workload == "batches":
            return [PostgresBatchWire(port, BATCH).prepare() for _ in range(CONNECTIONS[workload])]
        return [PostgresWire(port).prepare() for _ in range(CONNECTIONS[workload])]

    yield Target(publishers, lambda workload: (1, BATCH if workload == "batches" else 1), (server.pid,))
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("DROP TABLE messages")


@contextmanager
def new_database(server: Server) -> Iterator[str]:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE bench")
        yield "bench"
        connection.execute("DROP DATABASE bench WITH (FORCE)")


def measure(target: Target, workload: str, seconds: float) -> Result:
    burst, each = target.burst(workload)
    before = sum(map(processor_seconds, target.pids))
    with Load(target.publishers(workload), burst=burst, window=burst) as load:
        report = load.run(seconds)
    used = sum(map(processor_seconds, target.pids)) - before
    sent = report.sent * each
    return Result(sent / report.seconds, percentile(report.confirm_times, 0.5), used / sent * 1e6)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks stores")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    port = free_port()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        server = Server(Path(directory) / "postgres", {"shared_buffers": "512MB", "max_wal_size": "4GB"}, port)
        server.create()
        server.start()
        try:
            targets = {
                "rocks": rocks,
                "postgres": lambda: on_postgres(server),
                "INSERT": lambda: inserts(server, port),
            }
            results = run(targets, options.seconds, options.rounds)
        finally:
            server.remove()
    show(results)


def run(
    targets: dict[str, Callable[[], AbstractContextManager[Target]]], seconds: float, rounds: int
) -> dict[tuple[str, str], list[Result]]:
    results: dict[tuple[str, str], list[Result]] = {}
    for _ in range(rounds):
        for workload in CONNECTIONS:
            for name, start in targets.items():
                with start() as target:
                    results.setdefault((workload, name), []).append(measure(target, workload, seconds))
    return results


def show(results: dict[tuple[str, str], list[Result]]) -> None:
    medians = {place: Result(*map(statistics.median, zip(*found, strict=True))) for place, found in results.items()}
    print("256 B payloads, durable before the answer; medians of rounds by turns")
    for (workload, name), result in medians.items():
        print(
            f"  {workload:<9}{name:<10}{result.rate:>10,.0f} messages/s{result.p50_ms:>9.2f} ms"
            f"{result.microseconds:>9.1f} µs of processors a message"
        )
    for workload, name, base, goal in GOALS:
        ratio = medians[workload, name].rate / medians[workload, base].rate
        print(f"  {workload}: {name} / {base} = {ratio:.2f} (goal {goal:.1f})")
