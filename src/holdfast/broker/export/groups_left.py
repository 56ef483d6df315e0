"""What stays of segments that are removed: the events of the groups that exist, in a file of a segment's form.

For which groups a later message is follows from when these were created. Nothing else of a removed segment is needed by
what comes after it: the messages in it have ended.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.broker.export.conversion import GroupsLeft, OldSegments
from holdfast.files import sync_path
from holdfast.journal.segment import COLUMNS, digest

_NEEDED = [name for name in COLUMNS.names if name not in ("payload", "properties")]
_PLACE = ("node", "namespace", "queue", "partition")


def collect_groups(old: OldSegments) -> GroupsLeft:
    """Read the segments in their order, up to one that must stay, and write what is left of those before it."""
    left = _Left()
    if old.groups is not None:
        left.add(pq.ParquetFile(old.groups))
    count, first_id, flawed = 0, 0, ""
    for name, sha256 in old.segments:
        path = Path(name)
        problem = _flaw(path, sha256)
        if problem and old.keep_flawed:
            flawed = problem
            break
        if not path.is_file():
            count += 1
            continue
        file = pq.ParquetFile(path)
        highest = _highest_id(file)
        if old.below_id is not None and highest >= old.below_id:
            break
        left.add(file)
        count, first_id = count + 1, max(first_id, highest + 1)
    if not count:
        return GroupsLeft(count=0, flawed=flawed)
    table = left.table()
    target = Path(old.path)
    pq.write_table(table, target, compression="zstd", version="2.6")
    sync_path(target)
    return GroupsLeft(count=count, first_id=first_id, rows=table.num_rows, sha256=digest(target), flawed=flawed)


def _flaw(path: Path, sha256: str) -> str:
    if not path.is_file():
        return f"{path} is not there"
    return "" if digest(path) == sha256 else f"{path} is not as it was written"


def _highest_id(file: pq.ParquetFile) -> int:
    """Of the messages in a segment."""
    column = file.schema_arrow.get_field_index("message_id")
    highest = 0
    for group in range(file.num_row_groups):
        known = file.metadata.row_group(group).column(_leaf(file, "message_id")).statistics
        if known is not None and known.has_min_max:
            highest = max(highest, known.max)
        elif column >= 0:
            highest = max(highest, pc.max(file.read_row_group(group, columns=["message_id"])["message_id"]).as_py())
    return highest


def _leaf(file: pq.ParquetFile, name: str) -> int:
    """The number of a column among those of the file, where lists and structs have several."""
    schema = file.schema
    return next(number for number in range(len(schema)) if schema.column(number).path == name)


class _Left:
    """Creations of groups that were not deleted again."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], dict[str | None, dict[str, Any]]] = {}

    def add(self, file: pq.ParquetFile) -> None:
        leaf = _leaf(file, "message_id")
        names = [name for name in _NEEDED if name in file.schema_arrow.names]
        for number in range(file.num_row_groups):
            known = file.metadata.row_group(number).column(leaf).statistics
            if known is not None and known.has_min_max and known.min > 0:
                continue  # none of its rows is of a group
            rows = file.read_row_group(number, columns=names, use_threads=False)
            for row in rows.filter(pc.equal(rows["message_id"], 0)).to_pylist():
                self._follow(row)

    def _follow(self, row: dict[str, Any]) -> None:
        here = self._found.setdefault(tuple(row[name] for name in _PLACE), {})
        match row["event"]:
            case "group_created":
                here.setdefault(row["group"], row)
            case "group_deleted":
                here.pop(row["group"], None)
            case "queue_deleted":
                here.clear()

    def table(self) -> pa.Table:
        rows = [row for here in self._found.values() for row in here.values()]
        return pa.Table.from_pylist(sorted(rows, key=lambda row: int(row["lsn"])), schema=COLUMNS)
