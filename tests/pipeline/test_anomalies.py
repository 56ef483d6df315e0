"""What is unlike other times is found, with the messages behind it, and nothing else is."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession

from holdfast.pipeline.jobs.anomalies import anomalies
from holdfast.pipeline.lake.tables import MESSAGES

BEGUN = datetime(2026, 3, 2, tzinfo=UTC)
DAYS = 5
UNTIL = BEGUN + timedelta(days=DAYS)
STEP = timedelta(minutes=10)
NOON = UNTIL - timedelta(hours=12)
MINUTES = (
    "namespace string, queue string, `group` string, minute timestamp, enqueued bigint, acked bigint, failed bigint,"
    " dead bigint, dropped bigint, expired bigint, depth bigint, wait_p95_ms double, processing_p95_ms double"
)


def minutes(spark: SparkSession, days: int = DAYS) -> Any:
    """Quiet at night, busy at noon; on the last day silent from 12:00, with failures from 15:00 and waits at 18:00."""
    chance = random.Random(7)
    rows: list[tuple[object, ...]] = []
    for number in range(days * 144):
        at = BEGUN + STEP * number
        share = math.sin(math.pi * (at.hour * 6 + at.minute / 10) / 144) ** 2
        count = round(chance.gauss(400 * share, 20 * share**0.5))
        failed, wait = round(chance.gauss(count / 40, 1)), chance.uniform(80, 120)
        if NOON <= at < NOON + timedelta(hours=1):
            continue  # a minute in which nothing happens has no row
        if NOON + timedelta(hours=3) <= at < NOON + timedelta(hours=3, minutes=20):
            failed = 90
        if at == NOON + timedelta(hours=6):
            wait = 9_000.0
        rows.append(("default", "orders", None, at, max(count, 0), 0, 0, 0, 0, 0, 3, None, None))
        rows.append(("default", "orders", "work", at, 0, max(count, 0), max(failed, 0), 0, 0, 0, 3, wait, 12.0))
    return spark.createDataFrame(rows, MINUTES)


def message(spark: SparkSession) -> Any:
    """Two messages that failed in the time of the failures, and one long after it."""
    fields = [
        {"message_id": number, "namespace": "default", "queue": "orders", "group": "work", "failures": number}
        | {"last_failed_at": at, "error": "gateway down", "consumer": "c1"}
        for number, at in (
            (1, NOON + timedelta(hours=3)),
            (2, NOON + timedelta(hours=3, minutes=5)),
            (9, NOON + timedelta(hours=8)),
        )
    ]
    return spark.createDataFrame([tuple(one.get(name) for name in MESSAGES.names) for one in fields], MESSAGES.ddl)


def test_silence_failures_and_waits_are_found_and_nothing_else_of_five_days(spark: SparkSession) -> None:
    found = anomalies(minutes(spark), message(spark), BEGUN, UNTIL)
    assert {(one.queue, one.group, one.what, one.since, one.until) for one in found} == {
        ("orders", None, "enqueued", NOON, NOON + timedelta(hours=1)),
        ("orders", "work", "acked", NOON, NOON + timedelta(hours=1)),
        ("orders", "work", "failures", NOON + timedelta(hours=3), NOON + timedelta(hours=3, minutes=20)),
        ("orders", "work", "wait_p95_ms", NOON + timedelta(hours=6), NOON + timedelta(hours=6, minutes=10)),
    }
    (silence,) = [one for one in found if one.what == "enqueued"]
    assert silence.value == 0
    assert 350 < silence.usual < 420, "what is usual at that time of the day"
    (failures,) = [one for one in found if one.what == "failures"]
    assert (failures.value, failures.behind.messages, failures.behind.examples) == (90, 2, [2, 1])
    assert (failures.behind.error, failures.behind.consumer) == ("gateway down", "c1")
    later = anomalies(minutes(spark), message(spark), NOON + timedelta(hours=4), UNTIL)
    assert [one.what for one in later] == ["wait_p95_ms"]


def test_a_queue_without_a_past_is_not_judged(spark: SparkSession) -> None:
    young = minutes(spark).where("minute < TIMESTAMP '2026-03-02T01:00:00Z'")
    assert anomalies(young, message(spark), BEGUN, BEGUN + timedelta(hours=1)) == []
