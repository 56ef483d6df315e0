"""The lake's transformations, for jobs, notebooks and Spark Declarative Pipelines of your own.

Each is a function of DataFrames that runs nothing itself, opens no file and knows no lake: give it the rows of the
table `events` (or of any part of it that has whole messages) and use what it returns as you like. They are the build's
own: the same rows come out.

    messages(events)            the table `messages`
    queue_minutes(events)       the table `queue_minutes`
    every_minute(minutes)       depths, also in minutes in which nothing happened
    failures(events)            what went wrong, with the error's pattern; also of a stream
    with_fingerprint(deaths)    deaths with `error_pattern`, `payload_shape` and `fingerprint`
    clusters(dead_letters)      dead letters by cause
    payload_shapes(events)      the shapes of each queue's payloads over time
    masked(rows, rules)         rows whose named fields are hidden
    matching(rows, where)       rows with a payload for which a condition holds
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.pipeline.build.dead_letters import error_pattern, payload_shape, with_fingerprint
from holdfast.pipeline.build.messages import messages
from holdfast.pipeline.build.queue_minutes import every_minute, queue_minutes
from holdfast.pipeline.jobs.masking import masked
from holdfast.pipeline.jobs.payload_fields import matching
from holdfast.pipeline.jobs.schema_drift import payload_shapes
from holdfast.pipeline.jobs.triage import clusters

__all__ = [
    "clusters",
    "error_pattern",
    "every_minute",
    "failures",
    "masked",
    "matching",
    "messages",
    "payload_shape",
    "payload_shapes",
    "queue_minutes",
    "with_fingerprint",
]

FAILURES = ("failed", "dead", "dropped", "expired")


def failures(events: DataFrame) -> DataFrame:
    """Attempts that failed, and deliveries that died."""
    chosen = events.where(F.col("event").isin(*FAILURES))
    pattern = error_pattern(F.col("error")).alias("error_pattern")
    return chosen.select("at", "namespace", "queue", "group", "message_id", "event", "attempt", "reason", pattern)
