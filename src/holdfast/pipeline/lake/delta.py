"""Delta tables whose Parquet files Spark wrote and whose commits delta-rs makes.

A commit adds files, removes files and moves the table's cursor (its position in each node's journal) in one atomic
step: that is what makes a build exactly-once. Files are in `data/`, in a directory named after the version that adds
them, so that a build that is run again after a crash overwrites what the first one left.

delta-rs does not refuse a cursor that was committed before: a build reads `cursor` first, under the lake's lock.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import TablesDamaged
from holdfast.files import sync_path
from holdfast.pipeline.lake.arrow import schema_of
from holdfast.pipeline.lake.delta_log import HOOKS, DeltaLog
from holdfast.pipeline.lake.segments import Cursor
from holdfast.pipeline.lake.tables import FORMAT, TableSpec

Bound = int | str | datetime | None


class DataFile(msgspec.Struct, frozen=True):
    """A file of a table, with the least and greatest value and the number of nulls of the columns that the table keeps
    statistics of."""

    path: str
    size_bytes: int
    rows: int
    low: dict[str, Bound]
    high: dict[str, Bound]
    nulls: dict[str, int | None]

    def may_hold(self, column: str, low: Bound, high: Bound) -> bool:
        """Whether it may hold a value from `low` to `high` (None: no bound). A file without statistics may."""
        if self.nulls.get(column) == self.rows:
            return low is None and high is None
        least, greatest = self.low.get(column), self.high.get(column)
        if least is None or greatest is None:
            return True
        return (low is None or greatest >= low) and (high is None or least <= high)  # type: ignore[operator]


class LakeTable:
    """One table of the lake. `load` sees what others have committed since."""

    def __init__(self, root: Path, spec: TableSpec) -> None:
        self.root = root
        self.spec = spec
        self.log = DeltaLog(root)
        self._table: DeltaTable | None = None

    # --- reading ----------------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return (self.root / "_delta_log").is_dir() and DeltaTable.is_deltatable(str(self.root))

    def load(self) -> DeltaTable:
        try:
            self._table = DeltaTable(str(self.root))
        except TableNotFoundError as error:
            raise TablesDamaged(path=self.root, problem="there is no such table yet; `build` creates it") from error
        found = self._table.metadata().configuration.get("holdfast.format")
        if found != str(FORMAT):
            raise TablesDamaged(path=self.root, problem=f"it is of format {found}, this version knows {FORMAT}")
        return self._table

    @property
    def table(self) -> DeltaTable:
        return self._table or self.load()

    @property
    def version(self) -> int:
        return self.table.version()

    def cursor(self, nodes: Iterable[int]) -> Cursor:
        """The table's position in the journals of these nodes."""
        found: Cursor = {}
        for node in nodes:
            version = self.table.transaction_version(_app_id(node))
            if version is not None:
                found[node] = version
        return found

    def files(self) -> list[DataFile]:
        """Its files, as of the last `load` or commit."""
        rows = pa.table(self.table.get_add_actions(flatten=True)).to_pylist()
        columns = self.spec.statistics_columns
        return [
            DataFile(
                row["path"],
                row["size_bytes"],
                row["num_records"],
                {name: row.get(f"min.{name}") for name in columns},
                {name: row.get(f"max.{name}") for name in columns},
                {name: row.get(f"null_count.{name}") for name in columns},
            )
            for row in rows
        ]

    def read(self, spark: SparkSession, files: Iterable[DataFile] | None = None) -> DataFrame:
        """The table, or some of its files, read by Spark itself."""
        chosen = self.files() if files is None else list(files)
        return read_files(spark, self.spec, [self.root / file.path for file in chosen])

    # --- writing ----------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Create the table, empty and without a cursor."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._table = DeltaTable.create(
            str(self.root),
            Schema.from_arrow(schema_of(self.spec.columns)),
            mode="ignore",
            name=self.spec.name,
            description=self.spec.doc,
            configuration={"holdfast.format": str(FORMAT)},
            post_commithook_properties=HOOKS,
            raise_if_key_not_exists=False,
        )
        self.log.created()

    def place(self, what: str = "") -> Path:
        """The directory for the files of the next version. Files that an interrupted build left there are removed."""
        place = self.root / "data" / f"v{self.version + 1:09d}{what}"
        if place.exists():
            shutil.rmtree(place)
        return place

    def write(self, frame: DataFrame, what: str = "") -> list[Path]:
        """Write rows to the directory of the next version. They are visible when they are committed."""
        place = self.place(what)
        frame.select(*[f"`{name}`" for name in self.spec.names]).write.option(
            "mapreduce.fileoutputcommitter.marksuccessfuljobs", "false"
        ).mode("overwrite").parquet(spark_path(place))
        return sorted(place.glob("*.parquet"))

    def commit(
        self,
        added: Iterable[Path],
        removed: Iterable[DataFile],
        cursor: Cursor | None = None,
        *,
        data_change: bool = True,
        commit_info: dict[str, str] | None = None,
    ) -> None:
        """Add and remove files and move the cursor, all or nothing. The files are durable before the commit is made,
        and the commit when this returns."""
        now = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = []
        for path in added:
            rows, stats = statistics(path, self.spec)
            if rows:
                sync_path(path)
                size = path.stat().st_size
                name = str(path.relative_to(self.root))
                actions.append(AddAction(name, size, {}, now, data_change, stats))
        directories = {each for path in added for each in path.parents if each.is_relative_to(self.root)}
        for directory in sorted(directories):
            sync_path(directory)
        actions += [RemoveAction(file.path, data_change, now, file.size_bytes, {}) for file in removed]
        transactions = [Transaction(_app_id(node), lsn) for node, lsn in sorted((cursor or {}).items())]
        self.table.create_write_transaction(
            actions,
            "append",
            self.table.schema(),
            commit_properties=CommitProperties(
                custom_metadata=commit_info, app_transactions=transactions, max_commit_retries=0
            ),
            post_commithook_properties=HOOKS,
        )
        self.log.committed(self.load())

    def sweep(self, keep_hours: int) -> list[str]:
        """Delete files that no version younger than `keep_hours` needs, and directories that are empty then.

        delta-rs lists them; deleting them here avoids two commits in its log for every refresh.
        """
        gone = self.table.vacuum(retention_hours=keep_hours, dry_run=True, enforce_retention_duration=False, full=True)
        for name in gone:
            (self.root / name).unlink(missing_ok=True)
        for directory in (self.root / "data").glob("v*"):
            if not any(directory.glob("*.parquet")):
                shutil.rmtree(directory)
        return [name for name in gone if name.endswith(".parquet")]


def read_files(spark: SparkSession, spec: TableSpec, paths: list[Path]) -> DataFrame:
    """Read Parquet files with the columns of a table, without partition discovery by directory names."""
    if not paths:
        return spark.createDataFrame([], spec.ddl)
    reader = spark.read.schema(spec.ddl).option("recursiveFileLookup", "true").option("__globPaths__", "false")
    return reader.parquet(*map(spark_path, paths))


def spark_path(path: Path) -> str:
    """A local path for Spark, which needs a scheme and does not decode percent signs."""
    return f"file://{path.resolve()}"


def statistics(path: Path, spec: TableSpec) -> tuple[int, str]:
    """A file's row count and statistics, as Delta's JSON, from its footer."""
    meta = pq.read_metadata(path)
    low: dict[str, Bound] = {}
    high: dict[str, Bound] = {}
    nulls: dict[str, int] = {}
    indexes = {meta.schema.column(index).path: index for index in range(meta.num_columns)}
    for name in spec.statistics_columns:
        found = [meta.row_group(group).column(indexes[name]).statistics for group in range(meta.num_row_groups)]
        if all(one is not None and one.has_min_max for one in found) and found:
            low[name] = min(one.min for one in found)
            high[name] = max(one.max for one in found)
        if all(one is not None and one.has_null_count for one in found):
            nulls[name] = sum(one.null_count for one in found)
    stats = {
        "numRecords": meta.num_rows,
        "minValues": {name: _plain(value) for name, value in low.items()},
        "maxValues": {name: _plain(value) for name, value in high.items()},
        "nullCount": nulls,
    }
    return meta.num_rows, json.dumps(stats)


def _plain(value: Bound) -> int | str | None:
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return aware.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value


def _app_id(node: int) -> str:
    return f"journal-{node:04d}"
