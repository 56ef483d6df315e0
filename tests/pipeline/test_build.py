"""Building the tables: they say what happened, exactly once, whenever the build is interrupted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.errors import LakeBusy, LakeNotFound, SegmentUnusable, TablesDamaged
from holdfast.pipeline.build.build import Build, Built
from holdfast.pipeline.build.messages import messages
from holdfast.pipeline.build.queue_minutes import queue_minutes
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.maintenance import compact, retain, sweep
from holdfast.pipeline.lake.tables import ENDS
from holdfast.pipeline.spark.stages import Stages
from tests.pipeline.model import Key, Model, Row
from tests.pipeline.test_fold import public
from tests.pipeline.traffic import Traffic

STEPS = (
    "events written",
    "events committed",
    "messages written",
    "queue_minutes written",
    "queue_minutes committed",
    "dead_letters written",
    "dead_letters committed",
    "messages committed",
)


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
        for name in ("enqueued", "leased", "acked", "failed", "dead", "purged", "released"):
            fact_counts[row["queue"], row["group"], row["minute"], name] += row[name]
    happened = Counter(
        (event["queue"], event["group"], event["at"].replace(second=0, microsecond=0), event["event"])
        for event in events
    )
    assert {key: count for key, count in fact_counts.items() if count} == {
        key: count
        for key, count in happened.items()
        if key[3] in {"enqueued", "leased", "acked", "failed", "dead", "purged", "released"}
    }
    assert len({(row["queue"], row["group"], row["minute"]) for row in minutes}) == len(minutes)
    waits = sum(count for row in minutes for _, count in row["waits"])
    assert waits == sum(row["wait_ms"] is not None for row in model.rows().values())
    for queue in {row["queue"] for row in minutes}:
        own = sorted(
            (row for row in minutes if row["queue"] == queue and row["group"] is None), key=lambda row: row["minute"]
        )
        by_message: dict[int, list[Row]] = {}
        for (message, _), row in model.rows().items():
            if row["queue"] == queue:
                by_message.setdefault(message, []).append(row)
        live = sum(any(row["outcome"] is None for row in found) for found in by_message.values())
        assert own[-1]["depth"] == live, queue


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
    for step in STEPS:
        traffic.go(40)
        events = traffic.export(rows=90)
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
    assert {row["outcome"] for row in left} == {None}
    on_disk = len(list(lake.tables_dir.rglob("*.parquet")))
    gone = sweep(lake, Stages(), 0)
    assert gone > 0
    assert len(list(lake.tables_dir.rglob("*.parquet"))) == on_disk - gone
    assert len(rows(lake, "messages")) == len(left), "what the table needs is still there"
    assert len(left) == sum(event["outcome"] is None for event in _model(events).rows().values())
    assert rows(lake, "events") == []
    # And the next batch goes on from there.
    traffic.go(20)
    traffic.export()
    build(lake, spark)
    depth = {
        row["queue"]: row["depth"]
        for row in sorted(rows(lake, "queue_minutes"), key=lambda r: r["minute"])
        if not row["group"]
    }
    live = Counter(row["queue"] for row in rows(lake, "messages") if row["outcome"] is None)
    assert depth["dlq/tasks"] == live["dlq/tasks"]


def _model(events: list[Row]) -> Model:
    model = Model()
    for event in events:
        model.take(event)
    return model


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
