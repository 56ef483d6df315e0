"""What journal.retention leaves is proved as the whole was, and tables go on from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.broker.export.retention import RetentionPolicy
from holdfast.broker.snapshot_dump import take
from holdfast.core.records import Table, message_key
from holdfast.engine.queues import purge_queue
from holdfast.errors import InvalidArgument, TablesDamaged, TablesIrreplaceable
from holdfast.journal.verify import verify
from holdfast.pipeline.build.build import Build
from holdfast.pipeline.jobs.reconcile import Proof, reconcile
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.stages import Stages
from holdfast.units import HOUR
from tests.broker.export.lake import NODE, TASKS
from tests.pipeline.traffic import DEAD, Traffic

ALL = RetentionPolicy(1, 0, force=False)
"""As old as may be: only what is needed stays."""
FORCED = RetentionPolicy(1, 0, force=True)


def remove(traffic: Traffic, policy: RetentionPolicy = ALL) -> int:
    """The number of segments that were removed."""
    shards = [shard.number for queue in traffic.engine.queues.values() for shard in queue.shards]
    exporter, count = traffic.exporter(retention=policy), 0
    while (removed := exporter.remove_old(shards)).segments:
        count += removed.segments
    return count


def finish(traffic: Traffic) -> None:
    """Until nothing is live: leases expire, and the rest is purged."""
    while traffic.live():
        traffic.now += HOUR
        traffic.engine.tick(traffic.now)
        traffic.write()
        for name in (TASKS, DEAD, ("default", "log")):
            if name in traffic.engine.queues:
                for _ in purge_queue(traffic.engine, name, lambda: traffic.now):
                    traffic.write()
        traffic.write()


def prove(spark: SparkSession, traffic: Traffic, *, step_rows: int = 1_000_000) -> Proof:
    directory = traffic.lake / "snapshot"
    take(traffic.engine, NODE, traffic.now, directory)
    return reconcile(Lake(traffic.lake), spark, Stages(), directory, step_rows=step_rows)


def run(traffic: Traffic, rounds: int) -> None:
    for _ in range(rounds):
        traffic.go(40)
        traffic.export_all(traffic.exporter(rows=100))


def build(lake: Lake, spark: SparkSession) -> None:
    with lake.lock():
        Build(lake, spark, Stages()).run()


def rows(lake: Lake, spark: SparkSession, table: str) -> list[str]:
    found = lake.read(spark, table).drop("built_at")
    return sorted(map(str, found.collect()))


@pytest.mark.parametrize("step_rows", [1_000_000, 120])
def test_what_is_left_is_proved(spark: SparkSession, tmp_path: Path, step_rows: int) -> None:
    traffic = Traffic(tmp_path, 11)
    run(traffic, 2)
    finish(traffic)
    traffic.export_all(traffic.exporter(rows=100))
    run(traffic, 2)
    assert remove(traffic) >= 2
    traffic.go(20)

    proof = prove(spark, traffic, step_rows=step_rows)

    assert (proof.chain, proof.broken) == ([], [])
    assert proof.good
    assert proof.removed_to[NODE] > 0
    assert {row.unproved for row in proof.balances} == {0}
    assert sum(row.live for row in proof.balances) > 0


def test_a_loss_after_what_was_removed_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """For groups too whose creation was in what was removed."""
    traffic = Traffic(tmp_path, 11)
    run(traffic, 2)
    finish(traffic)
    traffic.export_all(traffic.exporter(rows=100))
    traffic.now += 1_000_000
    assert remove(traffic) >= 2
    ids = traffic.enqueue(4, "log")
    traffic.export_all(traffic.exporter())
    queue = traffic.engine.queue(("default", "log"), traffic.now)
    [shard] = queue.shards
    traffic.engine.add([(Table.MESSAGES, message_key(shard.number, shard.head.next_seq - 1), None)])
    traffic.write()

    proof = prove(spark, traffic)

    assert proof.chain == []
    assert {(one.problem, one.message_id) for one in proof.broken} == {("lost", ids[-1])}
    assert "reader" in {one.group for one in proof.broken}


def test_live_messages_of_what_was_removed_by_force_are_unproved(spark: SparkSession, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, 11)
    run(traffic, 2)
    traffic.now += 1_000_000
    live = len({message for _, _, message in traffic.live()})
    assert live
    assert remove(traffic, FORCED) >= 2

    proof = prove(spark, traffic)

    assert (proof.chain, proof.broken) == ([], [])
    assert sum(row.unproved for row in proof.balances) == len(traffic.live())


def test_a_checkpoint_goes_on_where_what_it_proved_is_removed(spark: SparkSession, tmp_path: Path) -> None:
    traffic, key = Traffic(tmp_path / "server", 11), b"k" * 32
    run(traffic, 2)
    finish(traffic)
    traffic.export_all(traffic.exporter(rows=100))
    lake = Lake(traffic.lake)
    whole = reconcile(lake, spark, Stages(), key=key)
    assert whole.sealed
    traffic.now += 1_000_000
    assert remove(traffic) >= 2
    traffic.go(20)
    traffic.export_all(traffic.exporter())
    at = tmp_path / "at"
    take(traffic.engine, NODE, traffic.now, at)

    proof = reconcile(lake, spark, Stages(), at, key=key)

    assert (proof.chain, proof.broken) == ([], [])
    assert proof.continued_from == whole.last_lsn
    before = {(row.queue, row.group): row.enqueued for row in whole.balances}
    after = {(row.queue, row.group): row.enqueued for row in proof.balances}
    assert all(after[place] >= count for place, count in before.items())


def test_a_checkpoint_before_what_was_removed_is_not_gone_on_from(spark: SparkSession, tmp_path: Path) -> None:
    traffic, key = Traffic(tmp_path / "server", 11), b"k" * 32
    run(traffic, 1)
    lake = Lake(traffic.lake)
    assert reconcile(lake, spark, Stages(), key=key).sealed
    run(traffic, 2)
    traffic.now += 1_000_000
    assert remove(traffic, FORCED) >= 2

    proof = reconcile(lake, spark, Stages(), key=key)

    assert (proof.chain, proof.broken, proof.continued_from) == ([], [], {})
    assert proof.sealed


def test_an_older_snapshot_than_what_was_removed_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    traffic, at = Traffic(tmp_path / "server", 11), tmp_path / "at"
    run(traffic, 1)
    take(traffic.engine, NODE, traffic.now, at)
    run(traffic, 1)
    traffic.now += 1_000_000
    remove(traffic, FORCED)
    with pytest.raises(InvalidArgument, match="take another"):
        reconcile(Lake(traffic.lake), spark, Stages(), at)


def test_tables_go_on_as_if_nothing_was_removed(spark: SparkSession, tmp_path: Path) -> None:
    whole, lean = Traffic(tmp_path / "whole", 11), Traffic(tmp_path / "lean", 11)
    for traffic in (whole, lean):
        run(traffic, 2)
        finish(traffic)
        traffic.export_all(traffic.exporter(rows=100))
        build(Lake(traffic.lake), spark)
        if traffic is lean:
            assert remove(traffic) >= 2
        run(traffic, 1)
        build(Lake(traffic.lake), spark)
    for table in ("events", "messages", "groups", "queue_minutes", "dead_letters"):
        assert rows(Lake(lean.lake), spark, table) == rows(Lake(whole.lake), spark, table), table


def test_segments_that_the_tables_lack_are_not_removed(spark: SparkSession, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, 11)
    run(traffic, 1)
    build(Lake(traffic.lake), spark)
    run(traffic, 1)
    finish(traffic)
    traffic.export_all(traffic.exporter(rows=100))
    traffic.now += 1_000_000
    assert remove(traffic) == 1
    build(Lake(traffic.lake), spark)
    assert remove(traffic) > 1
    assert verify(traffic.lake) == []


def test_tables_that_lack_removed_segments_must_be_rebuilt_on_purpose(spark: SparkSession, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, 11)
    run(traffic, 1)
    lake = Lake(traffic.lake)
    build(lake, spark)
    groups = rows(lake, spark, "groups")
    run(traffic, 2)
    traffic.now += 1_000_000
    remove(traffic, FORCED)
    traffic.enqueue(5)
    traffic.export_all(traffic.exporter())
    with pytest.raises(TablesDamaged, match="--incomplete"):
        build(lake, spark)
    with pytest.raises(TablesIrreplaceable):
        lake.check_complete()

    lake.forget_tables()
    build(lake, spark)

    assert lake.read(spark, "messages").count() >= 5
    names = {(row["queue"], row["group"]) for row in lake.read(spark, "groups").where("deleted_at is null").collect()}
    existing = {
        (queue.name[1], group.name) for queue in traffic.engine.queues.values() for group in queue.record.groups
    }
    assert groups
    assert names == existing
