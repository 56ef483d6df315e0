"""Spark's errors as one of ours, without tracebacks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from holdfast.errors import JobFailed

OWN = "holdfast: "
"""The prefix of the data source's errors in a Python worker: Spark puts them among the lines of a traceback."""


# PySpark logs every error of a query, with the JVM's stack, before it raises it.
for _name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
    PySparkLogger.getLogger(_name).setLevel(logging.CRITICAL + 1)

SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""What Spark raises; the second for errors of other Java libraries, such as a database's driver."""


@contextmanager
def spark_errors() -> Iterator[None]:
    """Convert Spark's errors while a job runs."""
    try:
        yield
    except SPARK_ERRORS as error:
        raise JobFailed(problem=summary(str(error))) from error


def summary(text: str) -> str:
    """The relevant line of an error's text."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if OWN in line]
    if own:
        return own[-1].partition(OWN)[2]
    if lines and lines[0].startswith("An error occurred while calling"):
        del lines[0]
    return lines[0].lstrip(": ") if lines else "Spark did not say why"
