"""The table `quarantine`: rows of the journal that fail an expectation, and keep their batch from being built."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.pipeline.lake.arrow import schema_of
from holdfast.pipeline.lake.delta import LakeTable
from holdfast.pipeline.lake.tables import QUARANTINE

SCHEMA = schema_of(QUARANTINE.columns)


class Quarantine:
    """The table is small. It is created with its first row, and written as a whole when it changes."""

    def __init__(self, table: LakeTable) -> None:
        self.table = table

    def rows(self) -> pa.Table:
        if not self.table.exists:
            return SCHEMA.empty_table()
        self.table.load()
        paths = [self.table.root / file.path for file in self.table.files()]
        return pa.concat_tables([SCHEMA.empty_table(), *(pq.read_table(path, schema=SCHEMA) for path in paths)])

    def replace(self, segments: set[str], rows: pa.Table) -> None:
        """Replace the rows of some segments."""
        known = self.rows()
        keep = [name not in segments for name in known["segment"].to_pylist()]
        if all(keep) and not rows.num_rows:
            return
        table = self.table
        if not table.exists:
            table.create()
        everything = pa.concat_tables([known.filter(pa.array(keep, pa.bool_())), rows])
        place = table.place()
        place.mkdir(parents=True)
        path = place / "rows.parquet"
        pq.write_table(everything, path, compression="zstd", store_schema=False)
        table.commit([path], table.files(), commit_info={"job": "build"})
