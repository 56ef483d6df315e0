"""The build's tasks: sort a pack of segments into a shuffle file, and fold a range of message ids.

This module is pickled by value and sent to the executors. Paths are text, results are plain values.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.pipeline.build.expectations import described, failing
from holdfast.pipeline.build.facts import facts
from holdfast.pipeline.build.fold import NARROW, SCHEMA, Ints, coded, fold
from holdfast.pipeline.build.recipients import CHANGES, received
from holdfast.pipeline.build.shuffle import (
    digest_of,
    joined,
    new_file,
    read_segment,
    read_shuffle_files,
    write_shuffle_file,
)
from holdfast.pipeline.lake.arrow import EVENTS_SCHEMA, MESSAGES_SCHEMA
from holdfast.pipeline.lake.tables import MESSAGES

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ID_SECOND_SHIFT = 32
"""Message ids shifted by this are time in steps of about a second: fine enough to find the files that a batch
changes."""

ROW_GROUP_ROWS = 131_072
"""Of a file of `messages`: a task that needs a part of it reads little else."""

CODED = [
    *("namespace", "queue", "group", "event", "reason", "error", "consumer", "protocol", "key", "source_queue"),
]
"""Columns of text that mostly repeat. Ids of producers and correlation ids do not."""

_REPEATED = [
    *("group", "namespace", "queue", "partition", "node", "priority", "key", "source_queue", "protocol", "duplicates"),
    *("edits", "state", "outcome", "reason", "error", "attempts", "leases", "failures", "releases", "extensions"),
    *("consumer", "ended_node"),
]


# --- sorting --------------------------------------------------------------------------------------------------------


def sort_segments(task: dict[str, Any]) -> dict[str, Any]:
    """Sort `segments`, which follow each other, into a shuffle file in `place`. Returns also their events of groups;
    the seconds in which their messages were enqueued, if they have later events of them; and, `with_dead_letters`, a
    file with their deaths and dead letters. Segments whose hash is another than the manifest's are `changed`, those of
    which rows fail an expectation `failing`, and nothing is taken from them."""
    tables: list[pa.Table] = []
    dead_letters: list[pa.Table] = []
    result: dict[str, Any] = {name: [] for name in ("groups", "sample", "seconds", "failing", "changed")}
    result["shuffle_file"] = None
    for segment, name, first_lsn, last_lsn, sha256 in task["segments"]:
        if sha256 is not None and digest_of(segment) != sha256:
            result["changed"].append(name)
            continue
        table = read_segment(segment, NARROW, CODED)
        failed = failing(table, first_lsn, last_lsn)
        if failed:
            result["failing"].append(described(segment, name, failed))
            continue
        changes = _group_changes(segment, table)
        numbers = np.flatnonzero(table["message_id"].to_numpy())  # events of groups have no message
        if changes:
            result["groups"] += changes
            table = table.take(pa.array(numbers)).combine_chunks()
        if table.num_rows:
            tables.append(table)
            if task["with_dead_letters"]:
                dead_letters.append(_dead_letter_rows(segment, table, numbers))
    if tables:
        table = joined(tables)
        result |= write_shuffle_file(table, task["place"])
        moved = table["message_id"].filter(pc.not_equal(table["event"].combine_chunks(), "enqueued")).to_numpy()
        result["seconds"] = np.unique(moved >> ID_SECOND_SHIFT).tolist()
    rows = pa.concat_tables([EVENTS_SCHEMA.empty_table(), *dead_letters])
    result["dead_letters"], result["returned"] = _write(task["place"], "dead-letters", rows), []
    if rows.num_rows:
        result["returned"] = _returned(rows, task["undone"])
    return result


def _group_changes(segment: str, table: pa.Table) -> list[dict[str, Any]]:
    """The events of groups, which are of no message, as plain values."""
    chosen = np.flatnonzero(table["message_id"].to_numpy() == 0)
    if not len(chosen):
        return []
    rows = table.take(pa.array(chosen)).to_pylist()
    details = _rows_of(segment, ["group_kind", "start_after"], chosen).to_pylist()
    found = [dict.fromkeys(CHANGES.names) | row | detail for row, detail in zip(rows, details, strict=True)]
    return [{name: _plain(row[name]) for name in CHANGES.names} for row in found]


def _plain(value: Any) -> Any:
    """Results of tasks are plain values: times are microseconds."""
    return (value - EPOCH) // timedelta(microseconds=1) if isinstance(value, datetime) else value


def _dead_letter_rows(segment: str, table: pa.Table, numbers: Ints) -> pa.Table:
    """Deaths, and messages that name a source, with payload and properties. `numbers`: of the rows in the segment."""
    begun = pc.equal(table["event"].combine_chunks(), "enqueued")
    wanted = pc.equal(table["event"].combine_chunks(), "dead")
    if "protocol" in table.column_names:
        undone = pc.fill_null(pc.equal(table["protocol"].combine_chunks(), "undo"), False)
        wanted = pc.or_(wanted, pc.and_(begun, undone))
    if "source_id" in table.column_names:
        wanted = pc.or_(wanted, pc.and_(begun, table["source_id"].combine_chunks().is_valid()))
    chosen = np.flatnonzero(wanted.to_numpy(zero_copy_only=False))
    if not len(chosen):
        return EVENTS_SCHEMA.empty_table()
    dead_letters = table.take(pa.array(chosen))
    bodies = _rows_of(segment, ["properties", "payload"], numbers[chosen])
    columns = {name: part[name] for part in (dead_letters, bodies) for name in part.column_names}
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(len(chosen), field.type)
        for field in EVENTS_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=EVENTS_SCHEMA)


def _returned(dead_letters: pa.Table, undone: str) -> list[tuple[int, int]]:
    """Dead letters of undone redrives: the old id of each, and the new one."""
    again = dead_letters.filter(pc.equal(dead_letters["protocol"], "undo")).select(["properties", "message_id"])
    found: list[tuple[int, int]] = []
    for row in again.to_pylist():
        undone_ids = [one["value"] for one in row["properties"] or [] if one["name"] == undone]
        if undone_ids and undone_ids[0].isdecimal():
            found.append((int(undone_ids[0]), row["message_id"]))
    return found


def _rows_of(path: str, columns: list[str], chosen: Ints) -> pa.Table:
    """Rows of a file, by their numbers."""
    file = pq.ParquetFile(path)
    parts: list[pa.Table] = []
    first = 0
    for number in range(file.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        low, high = np.searchsorted(chosen, [first, first + rows])
        if high > low:
            group = file.read_row_group(number, columns=columns, use_threads=False)
            parts.append(group.take(pa.array(chosen[low:high] - first)))
        first += rows
    return pa.concat_tables(parts)


# --- folding --------------------------------------------------------------------------------------------------------


def fold_range(task: dict[str, Any]) -> dict[str, Any]:
    """Fold the messages with ids from `low` (inclusive) to `high`, from `shuffle_files` and the `old` files of the
    table; `groups` is a file with all groups, `since` the lsn of each node after which the batch begins. Writes their
    rows to a file in `target`, and to `place` their facts and the rows that `dead_letters` needs."""
    low, high = task["low"], task["high"]
    events = read_shuffle_files(task["shuffle_files"], low, high)
    old = _old_rows(task["old"], low, high)
    if not events.num_rows and not old.num_rows:
        return {"messages": None, "facts": None, "ends": None, "dead_letters": []}
    groups = pq.read_table(task["groups"])
    events = with_received(events, received(events, old, groups, dict(task["since"])))
    affected = _contains(events["message_id"].to_numpy(), old["message_id"].to_numpy())
    changes = fold(events, old.filter(pa.array(affected))) if events.num_rows else SCHEMA.empty_table()
    ends = _ends(changes)
    return {
        "messages": _write_messages(task["target"], changes, old.filter(pa.array(~affected))),
        "facts": _write(task["place"], "facts", facts(events, changes)),
        "ends": _write(task["place"], "ends", ends),
        "dead_letters": ends["message_id"].filter(ends["source_id"].is_valid()).to_pylist(),
    }


def with_received(events: pa.Table, following: pa.Table) -> pa.Table:
    """The events with those that follow from them, which come first among events of one lsn."""
    if not following.num_rows:
        return events
    arrays = {
        name: following[name].combine_chunks()
        for name in following.column_names
        if following[name].null_count < len(following)
    }
    if not events.num_rows:
        return pa.table(arrays)
    for name, array in arrays.items():  # text as it is in the events
        if name in events.column_names and pa.types.is_dictionary(events.schema.field(name).type):
            arrays[name] = array.dictionary_encode()
    joined = pa.concat_tables([pa.table(arrays), events], promote_options="default")
    return joined.unify_dictionaries().combine_chunks()


def _contains(values: Ints, wanted: Ints) -> Ints:
    """For each of `wanted`, whether it is in `values`."""
    if not len(values) or not len(wanted):
        return np.zeros(len(wanted), bool)
    values = np.unique(values)
    places = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    found: Ints = values[places] == wanted
    return found


def _old_rows(paths: list[str], low: int | None, high: int | None) -> pa.Table:
    """The rows of the table for a range of messages. Its files need not be sorted."""
    parts: list[pa.Table] = [MESSAGES_SCHEMA.empty_table()]
    for path in paths:
        file = pq.ParquetFile(path)
        column = file.schema_arrow.get_field_index("message_id")
        for number in range(file.num_row_groups):
            stats = file.metadata.row_group(number).column(column).statistics
            if stats is not None and stats.has_min_max:
                least, greatest = stats.min, stats.max
                if (high is not None and least >= high) or (low is not None and greatest < low):
                    continue
            group = file.read_row_group(number, columns=MESSAGES.names, use_threads=False).cast(MESSAGES_SCHEMA)
            ids = group["message_id"].to_numpy()
            inside = np.ones(len(ids), bool) if low is None else ids >= low
            inside &= True if high is None else ids < high
            parts.append(group if inside.all() else group.filter(pa.array(inside)))
    return pa.concat_tables(parts).combine_chunks()


def _write_messages(target: str, changes: pa.Table, kept: pa.Table) -> str | None:
    """Write the rows that the batch changed, and the others of the same files, ordered by id."""
    rows = changes.select(MESSAGES.names)
    if kept.num_rows:
        rows = pa.concat_tables([rows.cast(MESSAGES_SCHEMA), kept])
        rows = rows.take(pa.array(np.argsort(rows["message_id"].to_numpy(), kind="stable")))
    if not rows.num_rows:
        return None
    Path(target).mkdir(parents=True, exist_ok=True)
    path = new_file(target, "part", ".parquet")
    pq.write_table(
        rows,
        path,
        compression="zstd",
        version="2.6",
        use_dictionary=_REPEATED,
        write_statistics=["message_id", "enqueued_at", "ended_at", "queue", "source_id", "outcome"],
        row_group_size=ROW_GROUP_ROWS,
        store_schema=False,  # readers need not know that text is dictionary-encoded here
    )
    return str(path)


def _ends(changes: pa.Table) -> pa.Table:
    """The rows that `dead_letters` is computed from: messages that died, and dead letters that ended."""
    outcome = coded(changes["outcome"])
    over = pc.and_(changes["source_id"].is_valid(), outcome.is_valid())
    over = pc.and_(over, pc.and_(changes["in_batch"], changes["gone_at"].is_valid()))
    wanted = pc.or_kleene(pc.equal(outcome, "dead"), over)
    return changes.filter(wanted).cast(SCHEMA)


def _write(place: str, what: str, rows: pa.Table) -> str | None:
    if not rows.num_rows:
        return None
    path = new_file(place, what, ".parquet")
    pq.write_table(rows, path, compression="zstd")
    return str(path)
