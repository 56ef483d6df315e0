"""Work for Spark's executors that is a Python function and a list of things to do it with.

Spark starts a task for each, on whatever cores it has, and tries one that failed again; nothing but a short answer
comes back. What is large goes through files in the lake, which every executor sees. A task that is tried again must
therefore give its files new names, and only those count that an answer names.

Executors of a cluster have pyarrow and NumPy but not Holdfast: the modules of such functions travel with them.
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

_SCHEMA = "number bigint, answer string"


def pickle_by_value(*modules: ModuleType) -> None:
    """Have the functions of these modules sent whole, not by name."""
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def frame_of(spark: SparkSession, work: Callable[[Task], TaskResult], tasks: list[Task]) -> DataFrame:
    """The tasks as a query, one partition each."""

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                answer = json.dumps(work(tasks[number]))
                yield pa.RecordBatch.from_pydict({"number": [number], "answer": [answer]})

    return spark.range(0, len(tasks), 1, max(len(tasks), 1)).mapInArrow(each, _SCHEMA)


def run(spark: SparkSession, work: Callable[[Task], TaskResult], tasks: list[Task]) -> list[TaskResult]:
    """Do the work for each task; the answers in the order of the tasks."""
    if not tasks:
        return []
    answers: list[TaskResult] = [{}] * len(tasks)
    found = frame_of(spark, work, tasks).toArrow()
    for number, answer in zip(found["number"].to_pylist(), found["answer"].to_pylist(), strict=True):
        answers[number] = json.loads(answer)
    return answers


def parallelism(spark: SparkSession) -> int:
    """How many tasks a session runs at a time, as far as it says. An embedded one does; elsewhere 1 is assumed."""
    master = spark.conf.get("spark.master", "") or ""
    setting = spark.conf.get("spark.sql.shuffle.partitions", "1") or "1"
    return int(setting) if master.startswith("local") and setting.isdecimal() else 1
