"""A build that is killed with SIGKILL, as a process of its own, is finished by the next one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.lake.lake import Lake
from tests.pipeline.test_build import build, check, rows
from tests.pipeline.traffic import Traffic
from tests.waiting import SPARK_SECONDS

CHILD = """
import os, signal, sys
from pathlib import Path
from holdfast.pipeline.build.build import Build
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.session import SparkTarget, open_session
from holdfast.pipeline.spark.stages import Stages

lake, step = Lake(Path(sys.argv[1])), sys.argv[2]

def reached(here):
    if here == step:
        os.kill(os.getpid(), signal.SIGKILL)

with lake.lock():
    Build(lake, open_session(SparkTarget(quick=True)), Stages(), on_step=reached).run()
"""


@pytest.mark.slow
@pytest.mark.crash
def test_a_killed_build_neither_loses_nor_doubles_anything(spark: SparkSession, tmp_path: Path) -> None:
    """In the middle of its commits. test_build.py stops it everywhere else, without a process of its own."""
    step = "queue_minutes committed"
    traffic = Traffic(tmp_path, 31)
    lake = Lake(traffic.lake)
    traffic.go(60)
    traffic.export(rows=80)
    build(lake, spark)
    traffic.go(60)
    events = traffic.export(rows=80)
    before = len(rows(lake, "messages"))
    killed = subprocess.run([sys.executable, "-c", CHILD, lake.path, step], check=False, timeout=SPARK_SECONDS)
    assert killed.returncode == -signal.SIGKILL
    assert len(rows(Lake(lake.path), "messages")) == before, "what was not committed is not seen"
    assert build(lake, spark).batches == 1
    check(Lake(lake.path), events)
