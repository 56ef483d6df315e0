"""Makes an archive of Spark's classes, with which Java starts in half the time: the tests start Spark a dozen times.

python -m tests.pipeline.archive FILE

`make test` does it once, beside the linters; tests/conftest.py has all that follows use it. A Java without an archive
of its own classes cannot make one: then FILE is empty. Nor is one made for users: Java dies of a damaged one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from holdfast.pipeline.jobs.triage import triage
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.session import SparkTarget, open_session
from tests.pipeline.test_build import build
from tests.pipeline.traffic import Traffic

END_SECONDS = 900.0  # writing takes half a minute, and several on a machine that is busy


def use_everything(spark: SparkSession, directory: Path) -> None:
    """Jobs that load the classes which others need too."""
    traffic = Traffic(directory, 1)
    traffic.go(100)
    traffic.export(rows=100)
    build(Lake(traffic.lake), spark)
    triage(Lake(traffic.lake).read(spark, "dead_letters"))


def main(archive: Path) -> None:
    with TemporaryDirectory(dir=archive.parent) as directory:
        made = Path(directory) / "made"
        os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={made} -Xlog:disable"
        spark = open_session(SparkTarget(master="local[2,4]", memory=1 << 30, quick=True))
        use_everything(spark, Path(directory))
        java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        spark.stop()
        java.stdin.close()  # that is how Python tells Spark's Java to end
        if java.wait(END_SECONDS) or not made.exists():  # half an archive would be worse than none
            made.write_bytes(b"")
        made.replace(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
