"""The data source `holdfast` of Spark: live queues as DataFrames and streams.

Spark finds data sources in modules whose names begin with `pyspark_`, so nothing is registered by hand.

Only Spark's driver needs this package. It is sent to the executors with the work (by value, not by name), and needs
nothing there but pyspark and pyarrow. So nothing in it may import anything else of Holdfast.

    source.py    the data source: makes readers and writers for Spark
    options.py   the user's options
    schema.py    the columns of each view
    batches.py   spark.read
    streams.py   spark.readStream
    filters.py   conditions that the server checks
    ranges.py    assigns sequences to tasks
    writing.py   df.write and df.writeStream
    progress.py  how far a query is behind
    wire.py      requests to a server
"""

import sys

from pyspark import cloudpickle

from pyspark_holdfast.progress import lag
from pyspark_holdfast.source import HoldfastSource as DefaultSource

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

__all__ = ["DefaultSource", "lag"]
