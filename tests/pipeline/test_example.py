"""The worked example runs, and tells the story that it promises."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.traffic import Traffic

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE = EXAMPLES / "pipeline_day.py"


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


def test_failures_are_streamed_out_of_the_journal_once_also_if_a_batch_is_made_again(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    traffic, target = Traffic(tmp_path / "server", 5), tmp_path / "target"
    monkeypatch.setattr(sys, "argv", ["stream_events", str(traffic.lake), str(target)])
    patterns: set[str] = set()
    for number in range(2):
        traffic.go(120)
        events = traffic.export()
        if number:  # as if the query had been killed before it noted that its first batch was done
            (target / "checkpoint" / "commits" / "0").unlink()
            (target / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
        runpy.run_path(str(EXAMPLES / "stream_events.py"), run_name="__main__")
        failed = [event for event in events if event["event"] in ("failed", "dead", "dropped", "expired")]
        rows = spark.read.parquet(f"file://{target}/rows").collect()
        assert sorted((row["message_id"], row["event"], row["at"].timestamp()) for row in rows) == sorted(
            (event["message_id"], event["event"], event["at"].timestamp()) for event in failed
        )
        assert f"{len(failed)} failures so far" in capsys.readouterr().out
        patterns = {row["error_pattern"] for row in rows}
        assert patterns == {re.sub(r"\d+", "<n>", event["error"] or "") for event in failed}
    assert "timeout after <n> ms" in patterns
