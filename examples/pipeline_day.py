"""A day of traffic with failures, then what the pipeline makes of it: tables, report, triage, history and the proof.

.venv/bin/python examples/pipeline_day.py [DIRECTORY]

The day is simulated: the queue engine runs under a clock of its own, so it takes seconds. Needs the extra [spark].
Afterwards DIRECTORY (a temporary one by default) holds the lake and report.html.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from holdfast.broker import admin
from holdfast.broker.engine import Engine
from holdfast.broker.export import Exporter, removal_ops
from holdfast.broker.snapshot import take
from holdfast.core.commands import Draft, Settlement, Verb
from holdfast.core.records import Extra
from holdfast.pipeline.build import Build
from holdfast.pipeline.history import history
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.reconcile import reconcile
from holdfast.pipeline.report import report
from holdfast.pipeline.report_page import page
from holdfast.pipeline.session import Where, open_session
from holdfast.pipeline.stages import Stages
from holdfast.pipeline.triage import triage
from holdfast.store import MemoryDisk, MemoryStore
from holdfast.units import MINUTE, SECOND, parse_instant

MORNING = parse_instant("2026-03-02T00:00:00Z")
QUEUES = {"orders": 0.004, "emails": 0.02, "images/resize": 0.05}  # and how often their consumers fail
ERRORS = ["payment gateway timed out after {n} ms", "no such customer {n}", "cannot decode image: offset {n}"]


def simulate(lake: Path) -> tuple[Engine, int]:
    """A day: quiet at night, busy at noon, and from 14:00 to 14:40 the payment gateway is down."""
    chance = random.Random(2026)
    engine = Engine(MemoryStore(MemoryDisk()), 0)
    engine.open(MORNING)
    exporter = Exporter(engine.store, lake, 0, 50_000, 64 << 20, clock=lambda: now)
    now = MORNING
    exporter.recover()
    for name in QUEUES:
        retry = {"max_retries": 2, "initial_backoff": "20s", "max_backoff": "2m"}
        admin.create_queue(engine, ("default", name), {"partitions": 2, "retry": retry}, now)
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
    return engine, now


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
        engine.exported(exported.last_block, exported.last_lsn, removal_ops(exported))
        engine.write()


def main(directory: Path) -> None:
    engine, now = simulate(directory / "lake")
    take(engine, 0, now, directory / "snapshot")
    print(f"a day: {engine.record.next_lsn - 1:,} events")

    spark, lake = open_session(Where(quick=True)), Lake(directory / "lake")
    with lake.lock():
        built = Build(lake, spark, Stages()).run()
    print(f"built: {built.rows['messages']:,} messages, {built.rows['dead_letters']:,} dead letters")

    minutes, messages, letters = (lake.read(spark, name) for name in ("queue_minutes", "messages", "dead_letters"))
    figures = report(minutes, messages, letters, Stages())
    (directory / "report.html").write_text(page(figures, datetime.now(UTC)))
    for queue in figures.queues:
        for group in figures.groups_of(queue):
            print(f"{queue.queue}: {queue.counts['enqueued']:,} enqueued, {group.counts['acked']:,} acked")

    worst = triage(letters)[0]
    print(f"worst: {worst.deaths} deaths in {worst.source_queue}, {worst.error_pattern!r}")
    life = history(lake, spark, Stages(), worst.examples[0])
    print("one of them:", " → ".join(f"{one.event} ({one.queue})" for one in life.timeline))

    proof = reconcile(lake, spark, Stages(), directory / "snapshot")
    print("nothing was lost" if proof.good else f"broken: {proof.chain} {proof.broken}")
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
