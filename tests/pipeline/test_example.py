"""The worked example runs, and tells the story that it promises."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
from pyspark.pipelines.flow import Flow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry, graph_element_registration_context
from pyspark.pipelines.output import Output
from pyspark.sql import SparkSession

from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.transformations import failures
from tests.pipeline.scenes import Built
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


def test_a_job_uses_the_transformations_on_the_journal_alone(
    built: Built, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["lake_job", str(built.lake), str(tmp_path / "out")])
    runpy.run_path(str(EXAMPLES / "lake_job.py"), run_name="__main__")
    rows = spark.read.parquet(f"file://{tmp_path}/out").toArrow().to_pylist()
    leased = {}
    failed: dict[tuple[str, str], int] = {}
    for event in built.events:
        key = event["message_id"], event["group"], event["attempt"]
        if event["event"] == "leased":
            leased[key] = event["queue"], event["consumer"]
        elif event["event"] in ("failed", "dead") and key in leased:
            failed[leased[key]] = failed.get(leased[key], 0) + 1
    found = {(row["queue"], row["consumer"]): row["failed"] for row in rows}
    assert set(failed) <= set(found)
    assert all(found[key] >= count for key, count in failed.items()), "a lease that was released has the same attempt"
    acked = [row for row in built.model.rows().values() if row["outcome"] == "acked"]
    assert sum(row["acked"] for row in rows) == len(acked)


def test_the_notebook_runs_from_top_to_bottom(
    built: Built, spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_LAKE", str(built.lake))
    notebook = json.loads((EXAMPLES / "lake.ipynb").read_text())
    names: dict[str, object] = {}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "it is stored without results"
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert "OBJECT<kind: STRING, n: NUMBER>" in printed
    assert "timeout after <n> ms" in printed


class Kept(GraphElementRegistry):
    """What a declarative pipeline defines."""

    def __init__(self) -> None:
        self.outputs: list[str] = []
        self.flows: dict[str, Flow] = {}

    def register_output(self, output: Output) -> None:
        self.outputs.append(output.name)

    def register_flow(self, flow: Flow) -> None:
        self.flows[flow.target] = flow

    def register_auto_cdc_flow(self, flow: object) -> None:
        raise AssertionError

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        raise AssertionError


def test_a_declarative_pipeline_is_made_of_the_same_functions(built: Built, spark: SparkSession) -> None:
    """`make test-cluster` has Spark run it; here its definitions are asked, over the Spark of the other tests."""
    kept, lake = Kept(), Lake(built.lake)
    with graph_element_registration_context(kept):
        runpy.run_path(str(EXAMPLES / "declarative" / "transformations.py"))
    assert kept.outputs == ["events", "failures", "causes", "payload_shapes"]
    spark.conf.set("holdfast.journal", f"file://{built.lake}/journal")
    failed = [event for event in built.events if event["event"] in ("failed", "dead", "dropped", "expired")]
    try:
        stream = kept.flows["events"].func()
        assert stream.isStreaming
        stream.createOrReplaceTempView("events")
        assert kept.flows["failures"].func().isStreaming
        lake.read(spark, "events").createOrReplaceTempView("events")
        shapes = kept.flows["payload_shapes"].func().where("queue = 'tasks'").collect()
        assert sum(row["messages"] for row in shapes) == sum(
            (event["event"], event["queue"]) == ("enqueued", "tasks") for event in built.events
        )
        failures(lake.read(spark, "events")).createOrReplaceTempView("failures")
        assert sum(row["count"] for row in kept.flows["causes"].func().collect()) == len(failed)
    finally:
        spark.conf.unset("holdfast.journal")
        for name in ("events", "failures"):
            spark.catalog.dropTempView(name)
