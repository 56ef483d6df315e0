"""The fold against a plain model: random traffic, cut into batches at random."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from holdfast.broker.export_segment import COLUMNS
from holdfast.pipeline.fold import NUMBERS, OLD, SCHEMA, STATES, fold
from holdfast.pipeline.messages import NARROW
from holdfast.pipeline.tables import MESSAGES
from tests.pipeline.model import Key, Model, Row
from tests.pipeline.traffic import Traffic

INPUT = pa.schema([COLUMNS.field(name).with_nullable(True) for name in NARROW] + [pa.field("was", pa.string())])
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def as_event(row: Row) -> Row:
    """A row of the table as the next batch sees it; messages.py does the same in Spark."""
    event = {name: row.get(name) for name in NARROW}
    event.update(event=OLD, lsn=row["enqueued_lsn"], at=row["enqueued_at"], attempt=row["attempts"])
    event["was"] = ",".join("" if row[name] is None else str(_number(row[name])) for name in NUMBERS)
    return event


def _number(value: Any) -> int:
    if isinstance(value, datetime):
        return (value - EPOCH) // (EPOCH.resolution)
    return STATES.index(value) if isinstance(value, str) else value


def folded(events: list[Row], old: list[Row]) -> dict[Key, Row]:
    table = pa.Table.from_pylist([{**event, "was": None} for event in events] + [as_event(row) for row in old], INPUT)
    batches = fold(iter(table.to_batches(max_chunksize=7)))
    rows = pa.Table.from_batches(batches, SCHEMA).to_pylist()
    return {(row["message_id"], row["group"]): row for row in rows}


def public(rows: dict[Key, Row]) -> dict[Key, Row]:
    found = {}
    for key, row in rows.items():
        found[key] = {
            name: round(value, 3) if isinstance(value := row[name], float) else value for name in MESSAGES.names
        }
    return found


@pytest.mark.parametrize("seed", range(12))
def test_any_cut_into_batches_gives_what_the_model_says(seed: int, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, seed)
    traffic.go(120)
    events = traffic.export()
    assert len(events) > 200
    random = Random(seed)
    cuts = sorted(random.sample(range(len(events)), 5))
    model = Model()
    rows: dict[Key, Row] = {}
    for first, last in zip([0, *cuts], [*cuts, len(events)], strict=True):
        batch = events[first:last]
        for event in batch:
            model.take(event)
        ids = {event["message_id"] for event in batch}
        touched = [row for key, row in rows.items() if key[0] in ids or random.random() < 0.3]
        for row in touched:
            del rows[row["message_id"], row["group"]]
        rows |= folded(batch, touched)
        assert public(rows) == public(model.rows())


def test_rows_that_were_only_in_the_same_file_are_left_as_they_are(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, 99)
    traffic.go(80)
    rows = folded(traffic.export(), [])
    again = folded([], list(rows.values()))
    assert public(again) == public(rows)
    assert not any(row["told"] for row in again.values())
    assert all(row["gone_at"] == row["was_gone_at"] for row in again.values())


def test_a_group_that_is_made_anew_opens_a_delivery_again() -> None:
    def event(lsn: int, kind: str, **more: object) -> Row:
        row = dict.fromkeys(NARROW)
        row.update(lsn=lsn, at=EPOCH.replace(second=lsn), node=0, namespace="n", queue="q", partition=0, message_id=5)
        return {**row, "event": kind, **more}

    first = [
        event(1, "enqueued", size_bytes=1, priority=128),
        event(2, "leased", group="g", attempt=1, consumer="a"),
        event(3, "acked", group="g", attempt=1, consumer="a"),
    ]
    rows = folded(first, [])
    assert rows[5, "g"]["outcome"] == "acked"
    again = folded([event(4, "leased", group="g", attempt=1, consumer="b")], list(rows.values()))[5, "g"]
    assert (again["outcome"], again["state"], again["ended_at"], again["consumer"]) == (None, "leased", None, "b")
    # Another node's lease, told late, is no such thing.
    late = folded([event(1, "leased", group="g", attempt=1, node=1)], list(rows.values()))[5, "g"]
    assert late["outcome"] == "acked"
