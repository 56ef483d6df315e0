"""`reconcile`: proves from the journal that nothing was lost, and names every message that breaks the proof.

Three things together are the proof:

    chain      every segment is there once, as it was written; each manifest line seals the one before; no lsn lacks
    balance    each enqueued message ended in each group that it was for, or is live: nothing else became of it
    broker     what the journal says is live is live in the broker at the same lsn, and nothing else is

Without a snapshot of the broker the third part is left out, and the result says so.

A group that was removed lets go of what it had not done: such deliveries are counted apart and break nothing. A message
that a group never came to, though it had begun with an earlier one of the same partition, is missed: a leasing group
touches every message after its start before the message can go.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.broker.export_verify import verify
from holdfast.broker.snapshot import Snapshot
from holdfast.errors import InvalidArgument
from holdfast.pipeline.delta import read_files, spark_path
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.segments import Segment
from holdfast.pipeline.stages import Stages
from holdfast.pipeline.tables import ENDS, EVENTS

NAMED_MAX = 10_000
"""Messages that are named one by one. More than that are counted, and the first so many named."""


class Broken(msgspec.Struct, frozen=True):
    """A message that breaks the proof."""

    problem: str
    namespace: str
    queue: str
    group: str | None
    message_id: int
    detail: str


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """A queue, or one of its groups: what was enqueued and what became of it."""

    namespace: str
    queue: str
    group: str | None
    enqueued: int
    acked: int = 0
    dead: int = 0
    dropped: int = 0
    expired: int = 0
    purged: int = 0
    live: int = 0
    let_go: int = 0
    """Open when their group was removed."""
    before: int = 0
    """Enqueued before the group's first message, and not for it."""
    broken: int = 0


class Proof(msgspec.Struct, kw_only=True):
    good: bool = False
    last_lsn: dict[int, int] = {}
    segments: int = 0
    events: int = 0
    chain: list[str] = []
    """What is wrong with files and manifests."""
    balances: list[Balance] = []
    broken: list[Broken] = []
    broken_total: int = 0
    against_broker: bool = False


def read_snapshot(directory: Path) -> Snapshot:
    """What `holdfast pipeline snapshot` wrote."""
    try:
        return msgspec.json.decode((directory / "snapshot.json").read_bytes(), type=Snapshot)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidArgument(field="--snapshot", problem=f"{directory} holds no snapshot: {error}") from error


def reconcile(lake: Lake, spark: SparkSession, stages: Stages, snapshot_dir: Path | None = None) -> Proof:
    """See the module."""
    proof = Proof(chain=[])
    snapshot = read_snapshot(snapshot_dir) if snapshot_dir is not None else None
    with stages.stage("check segments and manifests"):
        segments = _chain(lake, proof, snapshot)
    events = read_files(spark, EVENTS, [segment.path for segment in segments])
    if snapshot_dir is not None:
        tail = spark.read.schema(EVENTS.ddl).parquet(spark_path(snapshot_dir / "tail.parquet"))
        events = events.unionByName(tail)
    stages.note_read("segments", len(segments))
    stages.note_read("events", proof.events)
    with stages.stage("follow every message"):
        lives = _lives(events).cache()
        lives.count()
    live = _live(spark, snapshot_dir)
    with stages.stage("find what breaks the proof"):
        broken = _broken(lives, live, snapshot).cache()
        proof.broken_total = broken.count()
        proof.broken = [Broken(*row) for row in broken.orderBy("message_id").limit(NAMED_MAX).collect()]
    with stages.stage("balance"):
        proof.balances = _balances(lives, live, broken, snapshot)
    broken.unpersist()
    lives.unpersist()
    proof.against_broker = snapshot is not None
    proof.good = not proof.chain and not proof.broken_total
    return proof


# --- chain ----------------------------------------------------------------------------------------------------------


def _chain(lake: Lake, proof: Proof, snapshot: Snapshot | None) -> list[Segment]:
    """Check files and manifests. Returns the segments that can be read, each once."""
    proof.chain = [str(problem) for problem in verify(lake.path)]
    found: dict[Path, Segment] = {}
    for node, chain in lake.segments().items():
        for segment in chain:
            proof.last_lsn[node] = max(proof.last_lsn.get(node, 0), segment.entry.last_lsn)
            if segment.path.is_file():
                found[segment.path] = segment
    proof.segments = len(found)
    proof.events = sum(segment.rows for segment in found.values())
    if snapshot is not None:
        ends = proof.last_lsn.get(snapshot.node, 0)
        if ends != snapshot.exported_lsn:
            proof.chain.append(
                f"the store has let go of rows up to lsn {snapshot.exported_lsn}, the lake's manifest ends at {ends}"
            )
        proof.events += snapshot.last_lsn - snapshot.exported_lsn
        proof.last_lsn[snapshot.node] = snapshot.last_lsn
    return list(found.values())


# --- lives ----------------------------------------------------------------------------------------------------------


def _lives(events: DataFrame) -> DataFrame:
    """Each message and group: how often it was enqueued and ended, and where in the journal. Only numbers: fast."""
    ends = F.array(*[F.lit(end) for end in ENDS])
    code = F.array_position(ends, F.col("event"))
    ended = code > 0
    return events.groupBy("namespace", "queue", "partition", "message_id", "group").agg(
        F.sum((F.col("event") == "enqueued").cast("int")).alias("enqueued"),
        F.sum(ended.cast("int")).alias("ends"),
        F.min(F.when(ended, F.col("lsn"))).alias("first_end"),
        F.max(F.when(ended, F.col("lsn") * 8 + code)).alias("last_end"),  # the lsn, and with it how it ended
        F.max(F.when(F.col("event") == "leased", F.col("lsn"))).alias("last_lease"),
        F.max("lsn").alias("last_lsn"),
    )


def _is_open() -> Column:
    """Not ended, or leased again after its end (a group made anew)."""
    return (F.col("ends") == 0) | (F.coalesce("last_lease", F.lit(0)) > F.shiftright("last_end", 3))


def _live(spark: SparkSession, snapshot_dir: Path | None) -> DataFrame | None:
    return spark.read.parquet(spark_path(snapshot_dir / "live.parquet")) if snapshot_dir is not None else None


def _groups(spark: SparkSession, snapshot: Snapshot) -> DataFrame:
    """The groups that exist: `namespace`, `queue`, `group`."""
    rows = [(queue.namespace, queue.name, group) for queue in snapshot.queues for group in queue.groups]
    return spark.createDataFrame(rows, "namespace string, queue string, `group` string")


def _name(problem: str, frame: DataFrame, detail: Column) -> DataFrame:
    return frame.select(
        F.lit(problem).alias("problem"), "namespace", "queue", F.col("group"), "message_id", detail.alias("detail")
    )


def _broken(lives: DataFrame, live: DataFrame | None, snapshot: Snapshot | None) -> DataFrame:
    """Every message that breaks the proof, with what is wrong."""
    whole = lives.groupBy("namespace", "queue", "message_id").agg(
        F.sum("enqueued").alias("enqueued"),
        F.max(F.col("last_lsn")).alias("last_lsn"),
        F.lit(None).cast("string").alias("group"),
    )
    at = F.concat(F.lit("last seen at lsn "), F.col("last_lsn").cast("string"))
    twice = lives.where("ends > 1 AND coalesce(last_lease, 0) < first_end")
    parts = [
        _name("never enqueued", whole.where("enqueued = 0"), at),
        _name("enqueued twice", whole.where("enqueued > 1"), at),
        _name("ended twice", twice, at),
    ]
    if live is not None and snapshot is not None:
        parts += [_missed(lives, live, snapshot), *_against(lives, live, whole, snapshot)]
    found = parts[0]
    for part in parts[1:]:
        found = found.unionByName(part)
    return found


def _missed(lives: DataFrame, live: DataFrame, snapshot: Snapshot) -> DataFrame:
    """Messages that a group never came to, though it had begun before them."""
    began = (
        lives.where("`group` IS NOT NULL")
        .groupBy("namespace", "queue", "partition", "group")
        .agg(F.min("message_id").alias("began"))
        .join(_groups(lives.sparkSession, snapshot), ["namespace", "queue", "group"])
    )
    stored = lives.where("`group` IS NULL AND enqueued > 0 AND ends = 0").select(
        "namespace", "queue", "partition", "message_id", "last_lsn"
    )
    come = lives.where("`group` IS NOT NULL").select("message_id", "group")
    come = come.unionByName(live.where("`group` IS NOT NULL").select("message_id", "group"))
    due = stored.join(F.broadcast(began), ["namespace", "queue", "partition"]).where("message_id > began")
    missing = due.join(come, ["message_id", "group"], "left_anti")
    return _name("missed by the group", missing, F.concat(F.lit("stored at lsn "), F.col("last_lsn").cast("string")))


def _against(lives: DataFrame, live: DataFrame, whole: DataFrame, snapshot: Snapshot) -> list[DataFrame]:
    """The journal's open deliveries against the broker's."""
    spark = lives.sparkSession
    journalled = [(queue.namespace, queue.name) for queue in snapshot.queues if queue.journalled]
    kept = spark.createDataFrame(journalled, "namespace string, queue string")
    live = live.join(F.broadcast(kept), ["namespace", "queue"])
    at = F.concat(
        F.lit("open in the journal since lsn "), F.col("last_lsn").cast("string"), F.lit(", not in the broker")
    )
    opened = (
        lives.where("`group` IS NOT NULL")
        .where(_is_open())
        .join(_groups(lives.sparkSession, snapshot), ["namespace", "queue", "group"])
    )
    lost = opened.join(
        live.where("`group` IS NOT NULL").select("message_id", "group"), ["message_id", "group"], "left_anti"
    )
    touched = lives.where("`group` IS NOT NULL").select("message_id").distinct()
    untouched = (
        lives.where("`group` IS NULL AND enqueued > 0").where(_is_open()).join(touched, "message_id", "left_anti")
    )
    vanished = untouched.join(live.select("message_id").distinct(), "message_id", "left_anti")
    over = lives.where("`group` IS NOT NULL").where(~_is_open()).select("message_id", "group", "last_lsn")
    undead = live.join(over, ["message_id", "group"])
    ended = F.concat(F.lit("ended at lsn "), F.col("last_lsn").cast("string"), F.lit(", yet "), F.col("state"))
    unknown = live.join(whole.select("message_id"), "message_id", "left_anti")
    return [
        _name("lost", lost, at),
        _name("lost", vanished, at),
        _name("live after its end", undead, ended),
        _name("not in the journal", unknown, F.concat(F.lit("in the broker "), F.col("state"))),
    ]


# --- balance --------------------------------------------------------------------------------------------------------


def _balances(lives: DataFrame, live: DataFrame | None, broken: DataFrame, snapshot: Snapshot | None) -> list[Balance]:
    """Each queue and group: what was enqueued and what became of it."""
    place = ["namespace", "queue", "group"]
    counted = lives.groupBy(*place).agg(
        F.sum("enqueued").alias("enqueued"),
        *[
            F.sum((~_is_open() & (F.col("last_end").bitwiseAND(7) == code)).cast("int")).alias(end)
            for code, end in enumerate(ENDS, 1)
        ],
        F.sum((F.col("group").isNotNull() & _is_open()).cast("int")).alias("open"),
    )
    rows = {tuple(row[name] for name in place): row.asDict() for row in counted.collect()}
    stored = {key[:2]: row["enqueued"] for key, row in rows.items() if key[2] is None}
    lively: dict[tuple[object, ...], int] = {}
    if live is not None:
        lively = {tuple(row[:3]): row[3] for row in live.groupBy(*place).count().collect()}
    bad = {tuple(row[:3]): row[3] for row in broken.groupBy(*place).count().collect()}
    exists = (
        {(queue.namespace, queue.name, group) for queue in snapshot.queues for group in queue.groups}
        if snapshot
        else None
    )
    found: list[Balance] = []
    for key in sorted({*rows, *lively}, key=lambda key: tuple(str(part or "") for part in key)):
        namespace, queue, group = (part if part is None else str(part) for part in key)
        row = rows.get(key, {})
        ended = {end: int(row.get(end) or 0) for end in ENDS}
        enqueued = int(stored.get(key[:2]) or 0)
        removed = exists is not None and group is not None and key not in exists
        opened = int(row.get("open") or 0)
        alive = lively.get(key, 0) if live is not None else opened
        assert namespace is not None
        assert queue is not None
        let_go = opened if removed else 0
        before = 0
        if group is not None:
            before = max(enqueued - sum(ended.values()) - alive - let_go, 0)
        found.append(
            Balance(
                namespace=namespace,
                queue=queue,
                group=group,
                enqueued=enqueued,
                **ended,
                live=alive,
                let_go=let_go,
                before=before,
                broken=bad.get(key, 0),
            )
        )
    return found
