"""The tutorial of the pipeline runs as it stands, over the Spark of the other tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.commands import pipeline_commands
from tests.test_tutorial import TUTORIAL, follow, shell_in


@pytest.mark.slow
def test_the_second_tutorial_runs_as_it_stands(
    spark: SparkSession, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pipeline_commands(tmp_path_factory.mktemp("commands")) as commands, shell_in(tmp_path, commands) as shell:
        assert follow(TUTORIAL / "what-became-of-it.md", shell) > 10
