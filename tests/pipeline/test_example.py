"""The worked example runs, and tells the story that it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline_day.py"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_day_of_traffic_is_built_reported_and_proved(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE, tmp_path], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if "[info" not in line]
    assert said[0] == "a day: 22,451 events"
    assert said[1] == "built: 7,263 messages, 105 dead letters"
    assert said[-2] == "redrive repair-1: 42 of 42 brought back, repaired and done"
    assert said[-1] == "nothing was lost"
    assert (tmp_path / "report.html").stat().st_size > 20_000
