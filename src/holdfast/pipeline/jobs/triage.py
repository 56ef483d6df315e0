"""`triage`: groups dead letters by cause, with a command that redrives each group.

Dead letters belong together when reason, error pattern and payload shape are the same (`fingerprint`).
"""

from __future__ import annotations

import shlex
from datetime import datetime

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

EXAMPLES = 3
CLUSTERS_MAX = 1_000


class Cluster(msgspec.Struct, kw_only=True):
    fingerprint: str
    namespace: str
    dead_queue: str | None
    source_queue: str
    reason: str | None
    error_pattern: str
    payload_shape: str
    deaths: int
    waiting: int
    """Dead letters that are still in the dead queue."""
    first_seen: datetime
    last_seen: datetime
    consumers: list[str]
    examples: list[int]
    """Ids of dead letters, the newest first."""
    example_error: str | None
    redrive: str
    """The command that redrives the waiting ones."""


def clusters(dead_letters: DataFrame) -> DataFrame:
    """One row for each queue and fingerprint, the most frequent first."""
    newest = F.slice(F.sort_array(F.collect_list(F.struct("died_at", "letter_id", "error")), asc=False), 1, EXAMPLES)
    return (
        dead_letters.groupBy(
            "namespace", "dead_queue", "source_queue", "fingerprint", "reason", "error_pattern", "payload_shape"
        )
        .agg(
            F.count("*").alias("deaths"),
            F.sum(F.col("outcome").isNull().cast("int")).alias("waiting"),
            F.min("died_at").alias("first_seen"),
            F.max("died_at").alias("last_seen"),
            F.slice(F.sort_array(F.collect_set("consumer")), 1, EXAMPLES).alias("consumers"),
            newest.alias("newest"),
        )
        .orderBy(F.desc("deaths"), "fingerprint")
    )


def triage(
    dead_letters: DataFrame, since: datetime | None = None, queue: str = "", waiting_only: bool = False
) -> list[Cluster]:
    """The clusters, for deaths since an instant, in one source queue or in all."""
    chosen = dead_letters
    if since is not None:
        chosen = chosen.where(F.col("died_at") >= F.lit(since))
    if queue:
        chosen = chosen.where((F.col("source_queue") == queue) | (F.col("dead_queue") == queue))
    if waiting_only:
        chosen = chosen.where(F.col("outcome").isNull())
    found: list[Cluster] = []
    for fields in clusters(chosen).limit(CLUSTERS_MAX).toArrow().to_pylist():
        newest = fields.pop("newest")
        found.append(
            Cluster(
                **fields,
                examples=[one["letter_id"] for one in newest if one["letter_id"] is not None],
                example_error=newest[0]["error"] if newest else None,
                redrive=redrive_command(fields["namespace"], fields["dead_queue"], fields["fingerprint"]),
            )
        )
    return found


def redrive_command(namespace: str, dead_queue: str | None, fingerprint: str) -> str:
    """The command that redrives the dead letters of a cluster. None if the lake has no dead letters because their queue
    keeps no journal."""
    if dead_queue is None:
        return ""
    place = "" if namespace == "default" else f" --namespace {shlex.quote(namespace)}"
    condition = f"fingerprint = '{fingerprint}'"
    return f'holdfast{place} pipeline redrive --queue {shlex.quote(dead_queue)} --where "{condition}"'
