"""Building the tables: they say what happened, exactly once, whenever the build is interrupted."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from pyspark.sql import SparkSession

from holdfast.cli.main import main
from holdfast.core.queue import GroupKind
from holdfast.engine.stats import queue_stats
from holdfast.errors import LakeBusy, LakeNotFound, SegmentUnusable, TablesDamaged
from holdfast.journal.manifest import manifest_path, parse
from holdfast.journal.segment import digest
from holdfast.pipeline.build.build import Build, Built
from holdfast.pipeline.build.messages import messages
from holdfast.pipeline.build.queue_minutes import every_minute, queue_minutes
from holdfast.pipeline.jobs.history import history
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.maintenance import compact, retain, sweep
from holdfast.pipeline.lake.tables import ENDS
from holdfast.pipeline.spark.stages import Stages
from tests.broker.export.lake import NODE
from tests.pipeline.model import Key, Model, Row
from tests.pipeline.test_fold import public
from tests.pipeline.traffic import Traffic

STEPS = (
    "events written",
    "events committed",
    "messages written",
    "groups written",
    "groups committed",
    "queue_minutes written",
    "queue_minutes committed",
    "dead_letters written",
    "dead_letters committed",
    "messages committed",
)


COUNTED = ("enqueued", "received", "leased", "acked", "failed", "dead", "purged", "released")


class Killed(Exception):
    """Stands for SIGKILL: nothing of the build runs after it."""


def build(lake: Lake, spark: SparkSession, die_after: str = "", batch_rows: int = 1_000_000) -> Built:
    def on_step(step: str) -> None:
        if step == die_after:
            raise Killed

    with lake.lock():
        return Build(Lake(lake.path), spark, Stages(), batch_rows=batch_rows, on_step=on_step).run()


def rows(lake: Lake, name: str) -> list[Row]:
    """A table, read as any Delta reader would."""
    table = getattr(lake, name)
    found: list[Row] = table.load().to_pyarrow_table().to_pylist()
    return found


def keyed(lake: Lake) -> dict[Key, Row]:
    found = rows(lake, "messages")
    assert len({(row["message_id"], row["group"]) for row in found}) == len(found), "a row is there twice"
    return {(row["message_id"], row["group"]): row for row in found}


def check(lake: Lake, events: list[Row]) -> None:
    """All tables against the events."""
    model = Model()
    for event in events:
        model.take(event)
    assert [row["lsn"] for row in sorted(rows(lake, "events"), key=lambda row: row["lsn"])] == [
        e["lsn"] for e in events
    ]
    assert public(keyed(lake)) == public(model.rows())
    check_minutes(rows(lake, "queue_minutes"), events, model)
    check_deaths(rows(lake, "dead_letters"), events, model)


def check_minutes(minutes: list[Row], events: list[Row], model: Model) -> None:
    fact_counts: Counter[Any] = Counter()
    for row in minutes:
        for name in COUNTED:
            fact_counts[row["queue"], row["group"], row["minute"], name] += row[name]
    happened = Counter(
        (event["queue"], event["group"], event["at"].replace(second=0, microsecond=0), event["event"])
        for event in [*events, *model.following]
        if event["group"] is not None or event["event"] != "received"
    )
    assert {key: count for key, count in fact_counts.items() if count} == {
        key: count for key, count in happened.items() if key[3] in COUNTED
    }
    assert len({(row["queue"], row["group"], row["minute"]) for row in minutes}) == len(minutes)
    waits = sum(count for row in minutes for _, count in row["waits"])
    assert waits == sum(row["wait_ms"] is not None for row in model.rows().values())
    assert last_depths(minutes) == depths(model.live())


def depths(live: set[tuple[str, str | None, int]]) -> dict[tuple[str, str | None], int]:
    """How many messages each queue, and each of its groups, has not ended."""
    found: Counter[tuple[str, str | None]] = Counter()
    found.update((queue, None) for queue, _ in {(queue, message) for queue, _, message in live})
    found.update((queue, group) for queue, group, _ in live if group is not None)
    return dict(found)


def last_depths(minutes: list[Row]) -> dict[tuple[str, str | None], int]:
    """The depths in the last minute of each queue and group, without those that are empty."""
    last = {(row["queue"], row["group"]): row["depth"] for row in sorted(minutes, key=lambda row: row["minute"])}
    return {key: depth for key, depth in last.items() if depth}


def check_functions(lake: Lake, spark: SparkSession) -> None:
    """The functions for people's own jobs give the same from all events at once."""
    fact_counts = lake.events.read(spark)
    assert len(rows(lake, "messages")) > 50
    folded = {(row["message_id"], row["group"]): row for row in messages(fact_counts).toArrow().to_pylist()}
    assert public(folded) == public(keyed(lake))
    counted = queue_minutes(fact_counts).toArrow().to_pylist()
    place = ("namespace", "queue", "group", "minute")
    assert sorted(counted, key=lambda row: str([row[name] for name in place])) == sorted(
        rows(lake, "queue_minutes"), key=lambda row: str([row[name] for name in place])
    )


def check_history(lake: Lake, spark: SparkSession, events: list[Row]) -> None:
    """The history of a message is whole, and read from the files that have a part of it."""
    dead_letter = next(event for event in events if event["event"] == "enqueued" and event["source_id"])
    again = next(event for event in events if event["event"] == "duplicate")
    stages = Stages()
    for asked in (dead_letter["source_id"], again["message_id"], events[-1]["message_id"]):
        found = history(lake, spark, stages, asked)
        ids = {row["message_id"] for row in found.chain}
        assert asked in ids
        assert [one.lsn for one in found.timeline] == [one["lsn"] for one in events if one["message_id"] in ids]
        assert all(one["source_id"] not in ids or one["message_id"] in ids for one in events), "nothing was made of it"
    assert stages.read["files of events"] < 3 * len(lake.events.files())


def check_deaths(deaths: list[Row], events: list[Row], model: Model) -> None:
    died = {(event["message_id"], event["group"]): event for event in events if event["event"] == "dead"}
    assert {(row["source_id"], row["source_group"]) for row in deaths} == set(died)
    assert len(deaths) == len(died)
    dead_letters = {
        event["message_id"]: event for event in events if event["event"] == "enqueued" and event["source_id"]
    }
    assert {row["letter_id"] for row in deaths} == set(dead_letters)
    outcomes = {key[0]: row["outcome"] for key, row in model.rows().items() if key[0] in dead_letters}
    for row in deaths:
        assert dead_letters[row["letter_id"]]["source_id"] == row["source_id"]
        assert row["outcome"] == outcomes[row["letter_id"]]
        assert row["payload"] == dead_letters[row["letter_id"]]["payload"]
        assert row["reason"] == died[row["source_id"], row["source_group"]]["reason"]


def test_the_tables_say_what_happened_whenever_the_build_dies(spark: SparkSession, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, 4)
    lake = Lake(traffic.lake)
    events: list[Row] = []
    traffic.go(60)
    traffic.export(rows=90)
    build(lake, spark)
    for steps in (STEPS[::2], STEPS[1::2]):  # a build that finishes what another left is killed, too
        traffic.go(120)
        events = traffic.export(rows=90)
        for step in steps:
            with pytest.raises(Killed):
                build(lake, spark, die_after=step)
        done = build(lake, spark)
        assert done.batches == (0 if step == "messages committed" else 1), step
    assert len(rows(lake, "dead_letters")) > 3
    check(lake, events)
    assert build(lake, spark).batches == 0, "there is nothing more to do"


def test_small_batches_compaction_and_retention_change_nothing_that_is_young(
    spark: SparkSession, tmp_path: Path
) -> None:
    traffic = Traffic(tmp_path, 5)
    traffic.go(150)
    events = traffic.export(rows=120)
    lake = Lake(traffic.lake)
    done = build(lake, spark, batch_rows=300)
    assert done.batches > 1
    assert done.events == len(events)
    assert done.rewritten["messages"] > 0, "late facts change rows that an earlier batch wrote"
    check(lake, events)
    check_functions(lake, spark)
    check_history(lake, spark, events)
    with lake.lock():
        compacted = compact(lake, spark, Stages(), at_least=2)
        assert compacted["events"] > 1
        assert len(lake.events.files()) == 1
        assert len(lake.messages.files()) == 1
        check(lake, events)
        retain(lake, spark, Stages(), before=events[0]["at"])
    check(lake, events)
    # Everything that ended goes when it is old enough; what is live stays, whatever its age.
    with lake.lock():
        retain(lake, spark, Stages(), before=events[-1]["at"].replace(year=2030))
    left = rows(lake, "messages")
    live = {row["message_id"] for row in left if row["outcome"] is None}
    assert {row["message_id"] for row in left} == live, "a message that is live in one group stays with all its rows"
    on_disk = len(list(lake.tables_dir.rglob("*.parquet")))
    gone = sweep(lake, Stages(), 0)
    assert gone > 0
    assert len(list(lake.tables_dir.rglob("*.parquet"))) == on_disk - gone
    assert len(rows(lake, "messages")) == len(left), "what the table needs is still there"
    assert rows(lake, "events") == []
    # And the next batch goes on from there.
    traffic.go(20)
    traffic.export()
    build(lake, spark)
    check_live(lake, traffic)


def check_live(lake: Lake, traffic: Traffic) -> None:
    """What is live in the tables, and every depth, is what the broker has."""
    found = rows(lake, "messages")
    assert {(row["queue"], row["group"], row["message_id"]) for row in found if not row["outcome"]} == traffic.live()
    assert last_depths(rows(lake, "queue_minutes")) == depths(traffic.live())
    stats = queue_depths(traffic)
    assert {key: depth for key, depth in depths(traffic.live()).items() if key in stats} == stats


def check_every_minute(lake: Lake, spark: SparkSession, traffic: Traffic) -> None:
    filled = every_minute(lake.queue_minutes.read(spark)).toArrow().to_pylist()
    assert last_depths(filled) == depths(traffic.live())
    minutes = sorted(row["minute"] for row in filled if (row["queue"], row["group"]) == ("tasks", None))
    steps = {later - earlier for earlier, later in pairwise(minutes)}
    assert steps <= {timedelta(minutes=1)}, "minutes in which nothing happened have a row too"


def queue_depths(traffic: Traffic) -> dict[tuple[str, str | None], int]:
    """The statistics of the broker: of queues and of groups that lease, without those that are empty."""
    found: dict[tuple[str, str | None], int] = {}
    for name in traffic.engine.queues:
        stats = queue_stats(traffic.engine, name, traffic.now)
        found[name[1], None] = stats.depth
        for group in stats.groups:
            if group.kind is GroupKind.LEASE:
                found[name[1], group.name] = group.ready + group.scheduled + group.leased
    return {key: depth for key, depth in found.items() if depth}


def test_every_depth_is_the_brokers_at_any_moment(spark: SparkSession, tmp_path: Path) -> None:
    """With groups that stall, come late, are deleted, read as a log, and get messages of their own."""
    traffic = Traffic(tmp_path, 21, delays=False)
    lake = Lake(traffic.lake)
    for _ in range(4):
        traffic.go(45)
        traffic.export(rows=100)
        build(lake, spark, batch_rows=200)
        check_live(lake, traffic)
    check_every_minute(lake, spark, traffic)
    assert {row["kind"] for row in rows(lake, "groups")} == {"lease", "cursor"}
    assert any(row["deleted_lsn"] for row in rows(lake, "groups"))


def test_a_segment_that_is_not_as_it_was_written_is_not_taken(spark: SparkSession, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, 6)
    traffic.go(20)
    traffic.export()
    lake = Lake(traffic.lake)
    (segment,) = traffic.segments()
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-1] + b"x")
    with pytest.raises(SegmentUnusable, match="hash"):
        build(lake, spark)
    segment.unlink()
    with pytest.raises(SegmentUnusable, match="is missing"):
        build(lake, spark)
    segment.write_bytes(whole)
    assert build(lake, spark).segments == 1


def test_rows_that_are_not_as_expected_are_in_quarantine_until_their_batch_is_built(
    spark: SparkSession, tmp_path: Path
) -> None:
    traffic = Traffic(tmp_path, 8)
    traffic.go(30)
    traffic.export()
    lake = Lake(traffic.lake)
    build(lake, spark)
    before = lake.cursors([NODE])
    traffic.go(20)
    events = traffic.export()
    manifest = manifest_path(traffic.lake / "journal", NODE)
    honest = manifest.read_bytes()
    *earlier, line = honest.splitlines()
    segment = traffic.lake / "journal" / parse(line).segment
    whole = segment.read_bytes()
    rows = pq.read_table(segment).to_pylist()
    rows[1]["event"], rows[2]["queue"], rows[3]["priority"] = "exploded", None, 256
    rows[5]["lsn"], rows[6]["lsn"] = rows[6]["lsn"], rows[5]["lsn"]
    schema = pa.schema([field.with_nullable(True) for field in pq.read_schema(segment)])
    pq.write_table(pa.Table.from_pylist(rows, schema), segment)
    changed = replace(parse(line), sha256=digest(segment), size_bytes=segment.stat().st_size)
    manifest.write_bytes(b"\n".join([*earlier, msgspec.json.encode(changed), b""]))
    for _ in range(2):
        with pytest.raises(SegmentUnusable, match=r"fail `known_event`.*the table `quarantine`"):
            build(lake, spark)
        found = lake.quarantine.rows().to_pylist()
        assert {(row["expectation"], row["row"]) for row in found} == {
            *(("known_event", 1), ("filled", 2), ("known_priority", 3), ("in_order", 5), ("in_order", 6)),
        }
        assert "exploded" in next(row["content"] for row in found if row["row"] == 1)
    lake.prepare()
    assert lake.cursors([NODE]) == before
    result = CliRunner().invoke(main, ["pipeline", "report", "--lake", str(lake.path)])
    assert "5 rows of the journal in quarantine" in result.stderr
    segment.write_bytes(whole)
    manifest.write_bytes(honest)
    build(lake, spark)
    assert lake.quarantine.rows().num_rows == 0
    check(lake, events)


def test_two_builds_do_not_run_at_a_time_and_a_missing_journal_is_named(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    with lake.lock(), pytest.raises(LakeBusy), Lake(tmp_path).lock():
        pass
    with pytest.raises(LakeNotFound):
        build(lake, spark)
    with pytest.raises(TablesDamaged, match="run `holdfast pipeline build` first"):
        lake.require()


def test_ends_are_those_of_the_table_of_transitions() -> None:
    from holdfast.core.states import ENDED

    assert set(ENDS) == {state.value for state in ENDED}
