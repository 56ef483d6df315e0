"""A day of traffic with failures, then what the pipeline makes of it: tables, report, triage, redrive and the proof.

.venv/bin/python examples/pipeline_day.py [DIRECTORY]

The day is simulated: the queue engine runs under a clock of its own, so it takes seconds. Then a real server is started
on what it left, dead letters are repaired and redriven to it, and it is proved that nothing was lost. Needs the
extra [spark]. Afterwards DIRECTORY (a temporary one by default) holds data and lake of the server, and report.html.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from holdfast.broker.export.exporter import Exporter
from holdfast.broker.export.worker import InThread
from holdfast.broker.snapshot_dump import take
from holdfast.client import SyncClient
from holdfast.core.commands import Draft, Settlement, Verb
from holdfast.core.records import Extra
from holdfast.engine.engine import Engine
from holdfast.engine.queues import create_queue
from holdfast.pipeline.build.build import Build
from holdfast.pipeline.jobs.history import history
from holdfast.pipeline.jobs.reconcile import reconcile
from holdfast.pipeline.jobs.redrive import plan, redrive
from holdfast.pipeline.jobs.report import report
from holdfast.pipeline.jobs.report_page import page
from holdfast.pipeline.jobs.triage import Cluster, triage
from holdfast.pipeline.lake.job_runs import JobRun
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.session import SparkTarget, open_session
from holdfast.pipeline.spark.stages import Stages
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.units import MINUTE, SECOND, parse_instant

MORNING = parse_instant("2026-03-02T00:00:00Z")
QUEUES = {"orders": 0.004, "emails": 0.02, "images/resize": 0.05}  # and how often their consumers fail
ERRORS = ["payment gateway timed out after {n} ms", "no such customer {n}", "cannot decode image: offset {n}"]


def simulate(data: Path) -> int:
    """A day: quiet at night, busy at noon, and from 14:00 to 14:40 the payment gateway is down. How many events."""
    chance = random.Random(2026)
    store: Store = open_store("rocks", data / "store")
    engine = Engine(store, 0)
    engine.open(MORNING)
    exporter = Exporter(engine.store, data / "lake", 0, 50_000, 64 << 20, converter=InThread(), clock=lambda: now)
    now = MORNING
    exporter.recover()
    for name in QUEUES:
        retry = {"max_retries": 2, "initial_backoff": "20s", "max_backoff": "2m"}
        create_queue(engine, ("default", name), {"partitions": 2, "retry": retry}, now)
    number = 0
    for minute in range(24 * 60):
        now = MORNING + minute * MINUTE
        busy = 1 + 9 * math.exp(-(((minute / 60 - 13) / 4) ** 2))
        down = 14 * 60 <= minute < 14 * 60 + 40
        for name, failing in QUEUES.items():
            drafts = []
            for _ in range(chance.randrange(int(busy) + 1)):
                number += 1
                body = f'{{"order": {number}, "amount": {chance.randrange(1, 500)}.50, "customer": "c-{number % 97}"}}'
                drafts.append(Draft(body.encode(), extra=Extra(key=f"c-{number % 97}")))
            if drafts:
                engine.enqueue(("default", name), drafts, "http", now)
                engine.write()
            now += chance.randrange(5 * SECOND)
            engine.tick(now)
            work(engine, name, 0.9 if down and name == "orders" else failing, now, chance)
        engine.write()
        if minute % 120 == 119:
            export(engine, exporter)
    export(engine, exporter)
    store.close()
    return engine.record.next_lsn - 1


def work(engine: Engine, name: str, failing: float, now: int, chance: random.Random) -> None:
    """Consumers take what is there and settle it some seconds later."""
    queue = ("default", name)
    consumer = f"worker-{chance.randrange(4)}"
    found = engine.lease(queue, "workers", 12, -1, consumer, "mqtt", now)
    engine.write()
    if not found:
        return
    slow = 4 if consumer == "worker-3" else 1
    settlements = []
    for one in found:
        if chance.random() < failing:
            error = chance.choice(ERRORS).format(n=chance.randrange(1000))
            settlements.append(Settlement(one.message.id, one.token, Verb.NACK, error=error, partition=one.partition))
        else:
            settlements.append(Settlement(one.message.id, one.token, Verb.ACK, partition=one.partition))
    engine.settle(queue, "workers", settlements, now + chance.randrange(SECOND // 10, 3 * SECOND) * slow)
    engine.write()


def export(engine: Engine, exporter: Exporter) -> None:
    """What a server does by itself, every minute."""
    while exported := exporter.export(engine.record.exported_block, True):
        engine.exported(exported.last_block, exported.last_lsn, exported.removal, exported.chain)
        engine.write()


@contextmanager
def serving(data: Path) -> Iterator[str]:
    """`holdfast serve` on the day's data. Its address."""
    command = ["serve", "--data-dir", str(data), "--log-format", "json"]
    command += ["--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0"]  # free ports: another server may run here
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", *command], stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        yield next(line["url"] for line in map(json.loads, server.stderr) if "listening" in line["event"])
        server.terminate()
        server.communicate()


def bring_back(client: SyncClient, lake: Lake, spark: SparkSession, worst: Cluster) -> JobRun:
    """Redrive one kind of death, with the payload repaired, and work on what came back."""
    run = JobRun(
        id="repair-1",
        job="redrive",
        began_at=datetime.now(UTC),
        queue=worst.dead_queue or "",
        where=f"fingerprint = '{worst.fingerprint}' AND payload.amount > 10",
        sets=["payload.amount = round(payload.amount)", "payload.repaired = true"],
    )
    redrive(client, lake, spark, Stages(), plan(lake, spark, run))
    left = run.moved
    while left and (messages := client.receive(worst.source_queue, group="workers", limit=left, wait="10s")):
        for message in messages:
            assert message.json()["repaired"] is True
            message.ack()
        left -= len(messages)
    assert not left
    return run


def snapshot(data: Path, directory: Path) -> None:
    """Of a server that has stopped: the rest of its journal into the lake, and what is live in its store."""
    store = open_store("rocks", data / "store")
    engine, now = Engine(store, 0), int(datetime.now(UTC).timestamp() * SECOND)
    engine.open(now)
    exporter = Exporter(store, data / "lake", 0, 50_000, 64 << 20, converter=InThread(), clock=lambda: now)
    exporter.recover(engine.record.exported_lsn)
    export(engine, exporter)
    take(engine, 0, now, directory)
    store.close()


def main(directory: Path) -> None:
    data = directory / "data"
    print(f"a day: {simulate(data):,} events")

    spark, lake = open_session(SparkTarget(quick=True)), Lake(data / "lake")
    with lake.lock():
        built = Build(lake, spark, Stages()).run()
    print(f"built: {built.rows['messages']:,} messages, {built.rows['dead_letters']:,} dead letters")

    minutes, messages, dead_letters = (lake.read(spark, name) for name in ("queue_minutes", "messages", "dead_letters"))
    day_report = report(minutes, messages, dead_letters, Stages())
    (directory / "report.html").write_text(page(day_report, datetime.now(UTC)))
    for queue in day_report.queues:
        for group in day_report.groups_of(queue):
            print(f"{queue.queue}: {queue.counts['enqueued']:,} enqueued, {group.counts['acked']:,} acked")

    worst = triage(dead_letters)[0]
    print(f"worst: {worst.deaths} deaths in {worst.source_queue}, {worst.error_pattern!r}")
    life = history(lake, spark, Stages(), worst.examples[0])
    print("one of them:", " → ".join(f"{one.event} ({one.queue})" for one in life.timeline))

    with serving(data) as url, SyncClient(url) as client:
        run = bring_back(client, lake, spark, worst)
    print(f"redrive {run.id}: {run.moved} of {run.chosen} redriven, repaired and done")

    snapshot(data, directory / "snapshot")
    with lake.lock():
        Build(lake, spark, Stages()).run()
    proof = reconcile(lake, spark, Stages(), directory / "snapshot")
    print("nothing was lost" if proof.good else f"broken: {proof.chain} {proof.broken}")
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
