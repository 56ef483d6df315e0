"""The data source under fire: whoever dies, and whenever, every message arrives once.

Against `holdfast serve` on disk. The cluster's part of it is in test_cluster.py.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.pipeline.copying import BATCH, await_end, copied, expected, fill, instead_of, start
from tests.pipeline.faults import FaultySource
from tests.pipeline.served import Served
from tests.waiting import SPARK_SECONDS

ROOT = Path(__file__).parents[2]
COUNT = 3 * BATCH


@pytest.mark.slow
@pytest.mark.crash
def test_a_driver_killed_before_and_after_its_commit_log_copies_everything_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Served(tmp_path / "broker") as served, served.client() as client:
        fill(client, COUNT)

        def killed(moment: str) -> None:
            (tmp_path / f"{moment}.driver").touch()
            command = [sys.executable, "-m", "tests.pipeline.copying", served.url, str(tmp_path)]
            done = subprocess.run(command, check=False, timeout=SPARK_SECONDS, cwd=ROOT, capture_output=True)
            assert done.returncode == -signal.SIGKILL, done.stderr.decode()
            assert (tmp_path / f"{moment}.done").exists()

        def logged(log: str) -> int:
            return len([file for file in (tmp_path / "checkpoint" / log).iterdir() if file.name.isdecimal()])

        (tmp_path / "after-stage").touch()
        killed("after-publish")
        assert (tmp_path / "after-stage.done").exists(), "a task failed after it had staged, and was tried again"
        assert sum(copied(client).values()) == BATCH
        assert (logged("offsets"), logged("commits")) == (1, 0), "published, and Spark does not know it"
        killed("before-commit")
        assert (logged("offsets"), logged("commits")) == (1, 1), "Spark knows it, and the broker does not"
        assert copied(client) == expected(COUNT) & copied(client), "the batch that ran again is there once"
        assert sum(copied(client).values()) == BATCH

        def go_on() -> StreamingQuery:
            return start(spark, served.url, tmp_path, "holdfast")

        await_end(go_on(), go_on)
        assert copied(client) == expected(COUNT)
        assert not list(client.browse("in")), "and all of it is committed"


@pytest.mark.slow
@pytest.mark.crash
def test_a_broker_killed_while_it_is_read_and_written_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(FaultySource)
    with Served(tmp_path / "broker") as served:
        with served.client() as client:
            fill(client, COUNT)
        moments = ["mid-read", "after-stage", "after-publish", "before-commit"]
        (tmp_path / moments[0]).write_text(str(served.pid))

        def go_on() -> StreamingQuery:
            return start(spark, served.url, tmp_path)

        query = go_on()
        for number, moment in enumerate(moments):
            while not (tmp_path / f"{moment}.done").exists():
                query = instead_of(query, go_on)
                time.sleep(0.02)
            while served.kills == number:
                served.revive()
            if number + 1 < len(moments):
                (tmp_path / moments[number + 1]).write_text(str(served.pid))
        await_end(query, go_on)
        assert served.kills == len(moments)
        with served.client() as client:
            assert copied(client) == expected(COUNT)
            assert not list(client.browse("in"))
