"""The data source `holdfast`: makes readers and writers for Spark.

spark.read         waiting messages of a queue, its deliveries, or its dead letters; nothing is leased or changed
spark.readStream   a queue as a log, through a cursor group: offsets are sequences, a range can be read again until
                   it is committed, so a checkpointed query is exactly-once into an idempotent sink
df.write           all rows in one transaction: visible together or never, however often tasks are retried
df.writeStream     a transaction for each batch, named after query and batch: a batch that runs again is stored once
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from pyspark_holdfast.batches import BatchReader, PushingReader
from pyspark_holdfast.options import Options
from pyspark_holdfast.schema import check_schema, schema_of
from pyspark_holdfast.streams import StreamReader
from pyspark_holdfast.writing import BatchWriter, StreamWriter, check_writing


class HoldfastSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> StructType:
        options = Options(self.options)
        return schema_of(options.view, options.columns, options.properties)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options(self.options)
        kind = PushingReader if options.pushdown else BatchReader
        return kind(options, check_schema(options.view, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = Options(self.options)
        return StreamReader(options, check_schema(options.view, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return BatchWriter(check_writing(Options(self.options), schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return StreamWriter(check_writing(Options(self.options), schema, overwrite))
