"""The worked example runs, and tells the story that it promises."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline_day.py"


@pytest.mark.slow
def test_a_day_of_traffic_is_built_reported_and_proved(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # the session is that of all tests
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if "[info" not in line]
    assert lines[0] == "a day: 22,457 events"
    assert lines[1] == "built: 7,263 messages, 105 dead letters"
    assert lines[-2] == "redrive repair-1: 42 of 42 redriven, repaired and done"
    assert lines[-1] == "nothing was lost"
    assert (tmp_path / "report.html").stat().st_size > 20_000
