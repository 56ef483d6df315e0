"""What Spark says when a job fails, as one of our errors and without its tracebacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from holdfast.errors import JobFailed

OWN = "holdfast: "
"""How the data source begins what it says in a Python worker: it stands somewhere among the lines of the traceback."""


SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""What Spark raises; the second where a Java library fails that Spark does not know, as a database's driver."""


@contextmanager
def spark_errors() -> Iterator[None]:
    """Around a job."""
    try:
        yield
    except SPARK_ERRORS as error:
        raise JobFailed(problem=summary(str(error))) from error


def summary(text: str) -> str:
    """The line that matters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if OWN in line]
    if own:
        return own[-1].partition(OWN)[2]
    if lines and lines[0].startswith("An error occurred while calling"):
        del lines[0]
    return lines[0].lstrip(": ") if lines else "Spark did not say why"
