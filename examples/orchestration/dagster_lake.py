"""The lake by Dagster: its tables as assets, the proof as a check of them.

dagster dev -f examples/orchestration/dagster_lake.py

On a machine that has Holdfast with its extra [spark] and sees the lake.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from dagster import (
    AssetCheckResult,
    AssetSpec,
    Definitions,
    MaterializeResult,
    ScheduleDefinition,
    asset_check,
    define_asset_job,
    multi_asset,
)

LAKE = "/var/lib/holdfast/lake"
TABLES = ("events", "messages", "queue_minutes", "dead_letters", "groups")


def pipeline(*words: str) -> tuple[int, dict[str, Any]]:
    """A command of `holdfast pipeline`: its exit code, and what it says as JSON."""
    command = ["holdfast", "pipeline", *words, "--lake", LAKE, "--quiet", "-o", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode > 1 or not done.stdout:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
    return done.returncode, json.loads(done.stdout)


@multi_asset(specs=[AssetSpec(table, group_name="holdfast") for table in TABLES])
def tables():  # type: ignore[no-untyped-def]  # Dagster reads annotations of what is made
    """Builds what the server has exported since; each segment once, whatever is killed."""
    _, built = pipeline("build")
    for table in TABLES:
        yield MaterializeResult(asset_key=table, metadata={"rows": built["rows"].get(table, 0)})


@asset_check(asset="messages")
def nothing_was_lost() -> AssetCheckResult:
    code, proof = pipeline("reconcile", "--live", "--checkpoint-key", "/etc/holdfast/proof.key")
    return AssetCheckResult(passed=code == 0, metadata={"events": proof["events"], "broken": proof["broken_total"]})


refresh = define_asset_job("refresh", selection="*")
defs = Definitions(
    assets=[tables],
    asset_checks=[nothing_was_lost],
    schedules=[ScheduleDefinition(job=refresh, cron_schedule="*/10 * * * *")],
)
