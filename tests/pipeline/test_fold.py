"""The fold against a plain model: random traffic, cut into batches at random."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from holdfast.journal.segment import COLUMNS
from holdfast.pipeline.build.fold import NARROW, SCHEMA, fold
from holdfast.pipeline.build.fold_task import CODED, with_received
from holdfast.pipeline.build.recipients import received, with_changes
from holdfast.pipeline.lake.arrow import GROUPS_SCHEMA, MESSAGES_SCHEMA
from holdfast.pipeline.lake.tables import MESSAGES
from tests.broker.export.lake import NODE
from tests.pipeline.model import Key, Model, Row
from tests.pipeline.traffic import Traffic

INPUT = pa.schema([COLUMNS.field(name).with_nullable(True) for name in NARROW])
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def folded(
    events: list[Row],
    old: list[Row],
    code: list[str] | None = None,
    groups: list[Row] | None = None,
    since: int = 0,
) -> dict[Key, Row]:
    """`fold` on rows; `code`: the columns of text that come as numbers, as they do from pieces."""
    table = pa.Table.from_pylist(events, INPUT)
    before = pa.Table.from_pylist([{name: row[name] for name in MESSAGES.names} for row in old], MESSAGES_SCHEMA)
    for name in code or []:
        table = table.set_column(table.column_names.index(name), name, table[name].dictionary_encode())
    if code:
        table = table.select(
            [name for name in table.column_names if name == "event" or table[name].null_count < len(table)]
        )
    roster = pa.Table.from_pylist(groups or [], GROUPS_SCHEMA)
    table = with_received(table, received(table, before, roster, {NODE: since}))
    rows = fold(table, before).cast(SCHEMA).to_pylist()
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
    groups: list[Row] = []
    for first, last in zip([0, *cuts], [*cuts, len(events)], strict=True):
        batch = events[first:last]
        for event in batch:
            model.take(event)
        changes = [event for event in batch if not event["message_id"]]
        groups = with_changes(groups, changes)
        queues = {change["queue"] for change in changes}
        ids = {event["message_id"] for event in batch} | {
            row["message_id"] for row in rows.values() if row["queue"] in queues
        }
        ids |= {message for message, _ in rows if random.random() < 0.3}
        affected = [row for key, row in rows.items() if key[0] in ids]
        for row in affected:
            del rows[row["message_id"], row["group"]]
        batch = [event for event in batch if event["message_id"]]
        rows |= folded(batch, affected, CODED if seed % 2 else None, groups, first)
        assert public(rows) == public(model.rows())
    assert model.live() == traffic.live()


def test_rows_that_were_only_in_the_same_file_are_left_as_they_are(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, 99)
    traffic.go(80)
    rows = folded([event for event in traffic.export() if event["message_id"]], [])
    again = folded([], list(rows.values()))
    assert public(again) == public(rows)
    assert not any(row["in_batch"] for row in again.values())
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
