"""The task that builds `queue_minutes`: the rows of some queues, from a batch's facts and from the old rows.

Rows before the first minute of the batch stay as they are. Later ones are computed again, since totals and depths
continue from minute to minute. This module is pickled by value and sent to the executors."""

from __future__ import annotations

import zlib
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.pipeline.build import facts
from holdfast.pipeline.build.shuffle import new_file
from holdfast.pipeline.build.timeline import CARRIED, SCHEMA, rows_of

TASK_FACTS = 200_000
"""Facts of one task: about a second of plain Python."""

QUEUE_KEY = ["namespace", "queue", "group"]


def count_minutes(task: dict[str, Any]) -> dict[str, Any]:
    """Write the rows of each queue whose number modulo `of` is `number` to a file in `target`: rows from minute `first`
    on computed from `facts` and the `old` files of the table, earlier ones as they are."""
    first = pa.scalar(task["first"], pa.int64()).cast(SCHEMA.field("minute").type)
    new_facts = _all(task, task["facts"], facts.SCHEMA)
    old = _all(task, task["old"], SCHEMA)
    early = pc.less(old["minute"], first)
    kept = old.filter(early)
    made = rows_of(pa.concat_tables([new_facts, carried_totals(kept)]), old.filter(pc.invert(early)))
    rows = pa.concat_tables([kept, made]).sort_by([(name, "ascending") for name in ("minute", "namespace", "queue")])
    if not rows.num_rows:
        return {"rows": None}
    path = new_file(task["target"], "part", ".parquet")
    pq.write_table(rows, path, compression="zstd", version="2.6", store_schema=False)
    return {"rows": str(path)}


def carried_totals(rows: pa.Table) -> pa.Table:
    """The totals of each queue and group in the last of some rows, as facts."""
    if not rows.num_rows:
        return facts.SCHEMA.empty_table()
    last = rows.sort_by("minute").group_by(QUEUE_KEY, use_threads=False)
    found = last.aggregate([("minute", "last"), *((name, "last") for name in CARRIED.values())])
    keys = [found[name] for name in QUEUE_KEY]
    parts = [
        pa.Table.from_arrays(
            [*keys, found["minute_last"], pa.repeat(what, len(found)), found[f"{name}_last"]], schema=facts.SCHEMA
        )
        for what, name in CARRIED.items()
    ]
    return pa.concat_tables(parts)


def _all(task: dict[str, Any], paths: list[str], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), *(_chosen(task, path, schema) for path in paths)])


def _chosen(task: dict[str, Any], path: str, schema: pa.Schema) -> pa.Table:
    """The rows of a file that belong to this task."""
    table = pq.ParquetFile(path).read(columns=schema.names, use_threads=False).cast(schema)
    if task["of"] == 1:
        return table
    numbers: dict[tuple[str, str], bool] = {}
    mine = []
    for key in zip(table["namespace"].to_pylist(), table["queue"].to_pylist(), strict=True):
        chosen = numbers.get(key)
        if chosen is None:
            chosen = numbers[key] = zlib.crc32("\0".join(key).encode()) % task["of"] == task["number"]
        mine.append(chosen)
    return table.filter(pa.array(mine))
