"""Alerts and dashboard: Prometheus takes them, each alert fires when it should, and the series asked for exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from holdfast.client import SyncClient
from holdfast.client.metrics import WorkerMetrics
from tests.test_server import serving
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "holdfast.json").read_text())
PROMETHEUS_OWN = {"up", "process_resident_memory_bytes"}
WORDS = {"instance", "job", "le"}
"""Labels that Prometheus adds, and those of histograms."""


def promtool(*arguments: str | Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    command = ["promtool", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> Iterator[str]:
    """Every expression of alerts and panels, and the values that the dashboard's variables are filled with."""
    yield from (rule["expr"] for rule in RULES)
    yield from (target["expr"] for panel in panels() for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield re.sub(r"label_values\((.*), \w+\)", r"\1", variable["query"]["query"])


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The series of a server where something has happened, and of a worker: their labels, by name."""
    with serving(tmp_path_factory.mktemp("data") / "data") as server:
        url = str(server.wait_for("HTTP API is listening")["url"])
        server.wait_for("holdfast is running")
        with SyncClient(url) as client:
            client.create_queue("jobs")
            client.create_group("jobs", "g")
            client.send("jobs", [1, 2])
            client.receive("jobs", group="g")[0].nack()
            client.send("jobs", 3)
            client.receive("jobs", group="g")[0].reject("no")
        text = httpx.get(f"{url}/metrics", timeout=PATIENCE_SECONDS).text
    registry = CollectorRegistry()
    WorkerMetrics(registry)
    return series(text + generate_latest(registry).decode())


def series(text: str) -> dict[str, set[str]]:
    """Names with their labels. Of a family that has no sample yet, the name is known by its type."""
    found: dict[str, set[str]] = {}
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            found.setdefault(name + suffix, set())
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def test_prometheus_takes_the_files() -> None:
    promtool("check", "rules", PROMETHEUS / "alerts.yml")
    promtool("check", "config", "--syntax-only", PROMETHEUS / "prometheus.yml")


def test_every_series_that_is_asked_for_exists(scraped: dict[str, set[str]]) -> None:
    asked = {name for query in queries() for name in re.findall(r"\bholdfast_\w+", query)}
    assert len(asked) > 40
    assert asked - scraped.keys() == set()


def test_every_label_that_is_asked_for_exists(scraped: dict[str, set[str]]) -> None:
    wrong: list[str] = []
    for query in queries():
        for name, selector in re.findall(r"\b(holdfast_\w+)\{([^}]*)\}", query):
            known = scraped[name] | WORDS
            if scraped[name]:  # a family without a sample shows no labels
                wrong += [f"{name} {label}" for label in re.findall(r"(\w+)[=!]", selector) if label not in known]
        names = set(re.findall(r"\b(holdfast_\w+)", query))
        known = {label for name in names for label in scraped[name]} | WORDS
        for labels in re.findall(r"(?:by|on) ?\(([^)]*)\)", query) if all(scraped[name] for name in names) else ():
            wrong += [f"{query}: {label}" for label in labels.split(", ") if label not in known]
    assert wrong == []


def test_a_series_that_does_not_exist_is_found(scraped: dict[str, set[str]]) -> None:
    assert "holdfast_queue_deep" not in scraped
    assert scraped["holdfast_queue_depth"] == {"namespace", "queue"}


def test_every_alert_has_a_page_that_shows_its_rule() -> None:
    pages = {path.name for path in (ROOT / "docs" / "runbook").glob("*.md")} - {"README.md"}
    index = (ROOT / "docs" / "runbook" / "README.md").read_text()
    assert {Path(rule["annotations"]["runbook"]).name for rule in RULES} == pages
    for rule in RULES:
        page = (ROOT / rule["annotations"]["runbook"]).read_text()
        assert page.startswith(f"# {rule['alert']}\n")
        assert f"{rule['expr']}   for {rule['for']}" in page
        assert {"## Look", "## Do"} <= set(page.splitlines())
        assert (
            f"| [{rule['alert']}]({Path(rule['annotations']['runbook']).name}) | {rule['labels']['severity']} |"
            in index
        )


# What makes each alert fire: series with their values, a minute apart, and when it is looked at.
QUEUE = 'instance="a:8080", namespace="n", queue="q"'
GROUP = QUEUE + ', group="g"'
FIRING: dict[str, tuple[dict[str, str], str]] = {
    "HoldfastDown": ({'up{job="holdfast", instance="a:8080"}': "0x10"}, "5m"),
    "HoldfastStoreDown": ({'holdfast_store_up{instance="a:8080"}': "0x10"}, "5m"),
    "HoldfastDiskNearlyFull": ({'holdfast_store_free_bytes{instance="a:8080"}': "1000x10"}, "10m"),
    "HoldfastDiskFilling": ({'holdfast_store_free_bytes{instance="a:8080"}': "9000000000-10000000x500"}, "8h"),
    "HoldfastQueueNearlyFull": (
        {f"holdfast_queue_depth{{{QUEUE}}}": "90x20", f"holdfast_queue_max_depth{{{QUEUE}}}": "100x20"},
        "10m",
    ),
    "HoldfastQueueRefuses": ({f"holdfast_queue_refused_total{{{QUEUE}}}": "0+5x20"}, "15m"),
    "HoldfastGroupUnattended": ({f"holdfast_group_unattended_seconds{{{GROUP}}}": "601x5"}, "1m"),
    "HoldfastOldMessages": (
        {
            f"holdfast_queue_oldest_message_age_seconds{{{QUEUE}}}": "4000x20",
            f"holdfast_queue_paused{{{QUEUE}}}": "0x20",
        },
        "15m",
    ),
    "HoldfastDeadLetters": ({f'holdfast_queue_dlq_total{{{GROUP}, reason="rejected"}}': "0+1x20"}, "15m"),
    "HoldfastFailuresRise": (
        {
            f'holdfast_group_failure_total{{{GROUP}, reason="nack"}}': "0+5x30",
            f"holdfast_group_lease_total{{{GROUP}}}": "0+10x30",
        },
        "25m",
    ),
    "HoldfastSyncSlow": (
        {
            'holdfast_commit_sync_seconds_bucket{instance="a:8080", le="0.1"}': "0+1x30",
            'holdfast_commit_sync_seconds_bucket{instance="a:8080", le="1.0"}': "0+100x30",
            'holdfast_commit_sync_seconds_bucket{instance="a:8080", le="+Inf"}': "0+100x30",
        },
        "20m",
    ),
    "HoldfastLoopLate": ({'holdfast_loop_lag_seconds{instance="a:8080"}': "3x10"}, "5m"),
    "HoldfastJournalBehind": ({'holdfast_journal_behind_rows{instance="a:8080"}': "3000000x30"}, "20m"),
    "HoldfastAuditUnshipped": ({'holdfast_audit_unshipped{instance="a:8080"}': "2000x30"}, "20m"),
    "HoldfastLoginsFail": ({'holdfast_auth_login_failed_total{instance="a:8080"}': "0+60x30"}, "20m"),
    "HoldfastWebhooksDropped": ({'holdfast_webhook_dropped_total{instance="a:8080"}': "0+1x20"}, "15m"),
    "HoldfastQuotaNearlyReached": (
        {
            'holdfast_quota_used{instance="a:8080", namespace="n", quota="queues"}': "95x30",
            'holdfast_quota_limit{instance="a:8080", namespace="n", quota="queues"}': "100x30",
        },
        "20m",
    ),
    "HoldfastMqttDropped": ({'holdfast_mqtt_dropped_total{instance="a:8080", reason="full"}': "0+9x30"}, "20m"),
    "HoldfastQueuePaused": ({f"holdfast_queue_paused{{{QUEUE}}}": "1x400"}, "6h10m"),
    "HoldfastBreakerTripped": ({'holdfast_breaker_trip_total{instance="a:8080"}': "0x2 1x20"}, "15m"),
    "HoldfastSchedulesRefused": (
        {'holdfast_schedule_run_total{instance="a:8080", outcome="refused"}': "0+1x20"},
        "15m",
    ),
}
QUIET = {
    'up{job="holdfast", instance="a:8080"}': "1x20",
    'holdfast_store_up{instance="a:8080"}': "1x20",
    'holdfast_store_free_bytes{instance="a:8080"}': "90000000000x20",
    f"holdfast_queue_depth{{{QUEUE}}}": "90x20",
    f"holdfast_queue_max_depth{{{QUEUE}}}": "0x20",
    f"holdfast_group_unattended_seconds{{{GROUP}}}": "0x20",
    f"holdfast_queue_paused{{{QUEUE}}}": "0x20",
    'holdfast_schedule_run_total{instance="a:8080", outcome="enqueued"}': "0+1x20",
}
"""A server on which all is well; a queue without a limit is not nearly full."""


def test_each_alert_fires_when_it_should_and_none_when_all_is_well(tmp_path: Path) -> None:
    rules = {rule["alert"]: rule for rule in RULES}
    assert set(FIRING) == set(rules)
    tests: list[dict[str, Any]] = []
    for name, (values, at) in FIRING.items():
        query = f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) > 0'
        tests.append(_case(values, [{"expr": query, "eval_time": at, "exp_samples": [{"value": 1}]}]))
    quiet = [{"expr": "ALERTS", "eval_time": "15m", "exp_samples": []}]
    tests.append(_case(QUIET, quiet))
    (tmp_path / "alerts.yml").write_text((PROMETHEUS / "alerts.yml").read_text())
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", file)


def _case(values: dict[str, str], expectations: list[dict[str, Any]]) -> dict[str, Any]:
    series = [{"series": name, "values": value} for name, value in values.items()]
    return {"interval": "1m", "input_series": series, "promql_expr_test": expectations}


def test_the_dashboard_fits_and_says_what_it_shows() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert all(panel["title"] and panel["fieldConfig"]["defaults"]["unit"] for panel in panels())
    assert len({panel["title"] for panel in panels()}) >= 24
