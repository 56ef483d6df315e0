"""Runs a Python function on Spark's executors, once for each of a list of tasks.

Spark schedules the tasks on its cores and retries one that failed; each returns a small result. Large data goes through
files in the lake, which every executor sees. A task that is retried must therefore give its files new names, and only
files that a result names count.

Executors of a cluster have pyarrow and NumPy but not Holdfast: the modules of such functions are pickled by value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

Task = dict[str, Any]
TaskResult = dict[str, Any]

_SCHEMA = "number bigint, result string"


def pickle_by_value(*modules: ModuleType) -> None:
    """Have the functions of these modules pickled by value, not by name."""
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def frame_of(spark: SparkSession, work: Callable[[Task], TaskResult], tasks: list[Task]) -> DataFrame:
    """The tasks as a query, one partition each."""

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                result = json.dumps(work(tasks[number]))
                yield pa.RecordBatch.from_pydict({"number": [number], "result": [result]})

    return spark.range(0, len(tasks), 1, max(len(tasks), 1)).mapInArrow(each, _SCHEMA)


def run(spark: SparkSession, work: Callable[[Task], TaskResult], tasks: list[Task]) -> list[TaskResult]:
    """Run `work` for each task. Returns the results in the order of the tasks."""
    if not tasks:
        return []
    results: list[TaskResult] = [{}] * len(tasks)
    found = frame_of(spark, work, tasks).toArrow()
    for number, result in zip(found["number"].to_pylist(), found["result"].to_pylist(), strict=True):
        results[number] = json.loads(result)
    return results


def parallelism(spark: SparkSession) -> int:
    """How many tasks a session runs at a time. Known for an embedded one; elsewhere 1 is assumed."""
    master = spark.conf.get("spark.master", "") or ""
    setting = spark.conf.get("spark.sql.shuffle.partitions", "1") or "1"
    return int(setting) if master.startswith("local") and setting.isdecimal() else 1
