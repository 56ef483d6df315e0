"""`holdfast schedule`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Shell


def test_a_schedule_is_stored_shown_paused_run_and_deleted(shell: Shell) -> None:
    done = shell.done("schedule", "set", "nightly", "reports", '{"a": 1}', "--json", "--cron", "30 2 * * *")
    assert done.stderr.startswith("Stored schedule nightly. Next: ")
    found = shell.json("schedule", "show", "nightly")
    assert (found["queue"], found["cron"], found["timezone"]) == ("reports", "30 2 * * *", "UTC")
    assert found["message"] == {"payload": {"a": 1}, "content_type": "application/json"}
    assert len(found["next"]) == 10
    shown = shell.done("schedule", "show", "nightly").stdout
    assert "30 2 * * * (UTC)" in shown
    assert found["next"][9] in shown
    assert shell.done("schedule", "pause", "nightly").stderr == "Paused nightly.\n"
    assert "paused" in shell.done("schedule", "list").stdout
    assert shell.done("schedule", "resume", "nightly").stderr == f"Resumed nightly. Next: {found['next'][0]}.\n"
    message = shell.done("schedule", "run", "nightly").stdout.strip()
    assert [one["id"] for one in shell.json("browse", "reports")] == [message]
    assert f"enqueued  {message}" in shell.done("schedule", "show", "nightly").stdout
    assert shell.run("schedule", "delete", "nightly").exit_code == 2, "it asks for --yes"
    assert shell.done("schedule", "delete", "nightly", "--yes").stderr == "Deleted nightly.\n"
    assert shell.done("schedule", "list").stderr == "There are no schedules yet.\n"


def test_schedules_are_listed_by_prefix(shell: Shell) -> None:
    for name in ("a/1", "b"):
        shell.done("schedule", "set", name, "tasks", "--every", "15m", "--overlap", "skip", "--jitter", "1m")
    assert [one["name"] for one in shell.json("schedule", "list", "a/")] == ["a/1"]
    assert "every 15m" in shell.done("schedule", "list").stdout
    assert shell.done("schedule", "list", "x").stderr == "There are no schedules that start with 'x'.\n"
    for name in ("a/1", "b"):
        shell.done("schedule", "delete", name, "-y")


def test_what_cannot_be_is_refused(shell: Shell) -> None:
    refused = shell.run("schedule", "set", "s", "tasks", "--cron", "61 * * * *")
    assert (refused.exit_code, "cron is not a cron expression: bad minute" in refused.stderr) == (1, True)
    refused = shell.run("schedule", "set", "s", "tasks", "{", "--json", "--every", "1h")
    assert (refused.exit_code, "The payload is not JSON" in refused.stderr) == (1, True)
    assert shell.run("schedule", "set", "s", "tasks", "--every", "soon").exit_code == 2


def test_what_the_how_to_page_shows_works(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "schedule-messages.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.setenv("HOLDFAST_URL", shell.url)
    exec(program, {})
    found = shell.json("schedule", "show", "reports/nightly")
    assert found["message"]["payload"] == {"kind": "daily"}
    commands = re.findall(r"^\$ holdfast (.*)$", page, re.MULTILINE)
    assert len(commands) == 8
    for command in commands:
        shell.done(*shlex.split(command))
    again = shell.json("schedule", "show", "reports/nightly")
    assert {**again, "changed_at": ""} == {**found, "changed_at": ""}, "both say the same"
    shell.done("schedule", "delete", "reports/nightly", "--yes")
