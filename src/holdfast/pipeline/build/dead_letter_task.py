"""The task that builds `dead_letters`: joins deaths with their dead letters, and adds the ends of older dead letters.

Spark computes the fingerprint. This module is pickled by value and sent to the executors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.pipeline.build.fold import SCHEMA as CHANGES_SCHEMA
from holdfast.pipeline.build.fold import Ints
from holdfast.pipeline.build.shuffle import new_file
from holdfast.pipeline.lake.arrow import EVENTS_SCHEMA, schema_of
from holdfast.pipeline.lake.tables import DEAD_LETTERS

SCHEMA = schema_of(DEAD_LETTERS.columns)

_FROM_DEATH = {
    "namespace": "namespace",
    "source_id": "message_id",
    "source_queue": "queue",
    "source_group": "group",
    "died_at": "at",
    "reason": "reason",
    "error": "error",
    "consumer": "consumer",
    "died_lsn": "lsn",
    "node": "node",
}
_FROM_DEAD_LETTER = {
    "letter_id": "message_id",
    "dead_queue": "queue",
    **{name: name for name in ("key", "priority", "correlation_id", "properties", "size_bytes", "payload")},
}
_FROM_SOURCE = ("enqueued_at", "first_leased_at", "last_leased_at", "client_message_id")


def merge_dead_letters(task: dict[str, Any]) -> dict[str, Any]:
    """From the events in `dead_letters` and the rows in `ends`: new rows of the table, without fingerprints, in
    `place`, and the rows of its `old` files with the new ends, in `target`. `back` maps dead letters to those that
    replaced them when a redrive was undone."""
    events = _read(task["dead_letters"], EVENTS_SCHEMA)
    changes = _read(task["ends"], CHANGES_SCHEMA)
    ends = _ends(changes)
    back = dict(task["back"])
    new = _with_ends(_with_returned(_deaths(events, changes), back), ends)
    old = _with_ends(_with_returned(_read(task["old"], SCHEMA), back), ends)
    return {"new": _write(task["place"], "deaths", new), "old": _write(task["target"], "part", old)}


def _read(paths: list[str], schema: pa.Schema) -> pa.Table:
    tables = [pq.ParquetFile(path).read(columns=schema.names, use_threads=False).cast(schema) for path in paths]
    return pa.concat_tables([schema.empty_table(), *tables]).combine_chunks()


def _write(directory: str, what: str, rows: pa.Table) -> str | None:
    if not rows.num_rows:
        return None
    path = new_file(directory, what, ".parquet")
    pq.write_table(rows.sort_by("died_lsn"), path, compression="zstd", version="2.6", store_schema=False)
    return str(path)


def _deaths(events: pa.Table, changes: pa.Table) -> pa.Table:
    """Each death with its dead letter and the row of its source message. The first death of a message belongs to its
    first dead letter, the second, in another group, to the second."""
    deaths = events.filter(pc.equal(events["event"], "dead"))
    # Redriven and replayed messages name a source too, but the broker does not make them by itself.
    by_broker = pc.equal(events["protocol"], "broker")
    dead_letters = events.filter(pc.and_kleene(pc.equal(events["event"], "enqueued"), by_broker))
    deaths, ordinals = _ordinals(deaths, "message_id")
    dead_letters, dead_letter_ordinals = _ordinals(dead_letters, "source_id")
    dead_letter = _matching((deaths["message_id"], ordinals), (dead_letters["source_id"], dead_letter_ordinals))
    sources = changes.filter(pc.equal(changes["outcome"], "dead"))
    source = _matching((deaths["message_id"], deaths["group"]), (sources["message_id"], sources["group"]))
    columns = {name: deaths[of] for name, of in _FROM_DEATH.items()}
    columns["attempts"] = pc.fill_null(deaths["attempt"], 0)
    columns |= {name: dead_letters[of].take(dead_letter) for name, of in _FROM_DEAD_LETTER.items()}
    columns |= {name: sources[name].take(source) for name in _FROM_SOURCE}
    return pa.Table.from_arrays(
        [columns[field.name] if field.name in columns else pa.nulls(len(deaths), field.type) for field in SCHEMA],
        schema=SCHEMA,
    )


def _ordinals(rows: pa.Table, name: str) -> tuple[pa.Table, pa.Array]:
    """Sort by message and lsn, and number the rows of each message."""
    rows = rows.sort_by([(name, "ascending"), ("lsn", "ascending")])
    ids = rows[name].to_numpy()
    position = np.arange(len(ids))
    begins = np.r_[True, ids[1:] != ids[:-1]][: len(ids)]
    return rows, pa.array(position - np.maximum.accumulate(np.where(begins, position, 0)))


def _matching(wanted: tuple[pa.Array, pa.Array], there: tuple[pa.Array, pa.Array]) -> pa.Array:
    """For each pair of values in `wanted` its index in `there`; null if it is not there."""
    count = len(wanted[0])
    first = _codes(wanted[0], there[0])
    second = _codes(wanted[1], there[1])
    key = first * (int(second.max(initial=0)) + 1) + second
    keys = key[count:]
    if not len(keys):
        return pa.nulls(count, pa.int64())
    order = np.argsort(keys, kind="stable")
    place = np.minimum(np.searchsorted(keys[order], key[:count]), len(keys) - 1)
    found = order[place]
    return pa.array(found, mask=keys[found] != key[:count])


def _codes(one: pa.ChunkedArray | pa.Array, other: pa.ChunkedArray | pa.Array) -> Ints:
    """Dictionary codes of the values of two columns, concatenated; null is a value too."""
    arrays = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in (one, other)]
    found: Ints = pa.concat_arrays(arrays).dictionary_encode("encode").indices.to_numpy().astype(np.int64)
    return found


def _ends(changes: pa.Table) -> pa.Table:
    """Dead letters that no longer wait, one row each. If a dead queue has several groups, the last one to finish
    counts."""
    over = pc.and_(changes["source_id"].is_valid(), changes["outcome"].is_valid())
    over = pc.and_(over, pc.and_(changes["in_batch"], changes["gone_at"].is_valid()))
    rows = changes.filter(over).sort_by([("ended_at", "ascending"), ("outcome", "ascending")])
    last = rows.group_by("message_id", use_threads=False).aggregate([("ended_at", "last"), ("outcome", "last")])
    return last.combine_chunks()


def _with_returned(rows: pa.Table, back: dict[int, int]) -> pa.Table:
    """Replace dead letters by those that an undone redrive made of them: these wait again."""
    if not rows.num_rows or not back:
        return rows
    place = pc.index_in(rows["letter_id"], pa.array(list(back), pa.int64()), skip_nulls=True)
    now = pa.array(list(back.values()), pa.int64()).take(place.combine_chunks())
    found = {
        "letter_id": pc.coalesce(now, rows["letter_id"]),
        **{name: pc.if_else(now.is_valid(), None, rows[name]) for name in ("outcome", "ended_at")},
    }
    for name, column in found.items():
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows


def _with_ends(rows: pa.Table, ends: pa.Table) -> pa.Table:
    """Add the ends of dead letters to rows of the table."""
    if not rows.num_rows or not ends.num_rows:
        return rows
    place = pc.index_in(rows["letter_id"], ends["message_id"], skip_nulls=True)
    for name in ("outcome", "ended_at"):
        now = pc.coalesce(ends[f"{name}_last"].take(place), rows[name])
        rows = rows.set_column(rows.column_names.index(name), name, now)
    return rows
