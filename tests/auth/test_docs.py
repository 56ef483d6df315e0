"""The pages about security keep up with the code: tests they name exist, commands they show work."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from holdfast.auth import users
from tests.cli.test_cli import HOLDFAST
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
SECURITY = (ROOT / "docs" / "security.md").read_text()
ROWS = [line for line in SECURITY.splitlines() if line.startswith("| ") and not line.startswith("| threat")]
NAMED = sorted(set(re.findall(r"`([a-z_/0-9]+\.py)::(test_[a-z0-9_]+)`", SECURITY)))


def test_every_threat_names_a_test() -> None:
    assert len(ROWS) > 25
    assert [row for row in ROWS if "::test_" not in row] == []


@pytest.mark.parametrize(("file", "name"), NAMED, ids=str)
def test_the_tests_that_are_named_exist(file: str, name: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", ["give-out-tokens.md", "manage-users.md"])
def test_the_commands_of_a_page_work_one_after_another(page: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "how-to" / page).read_text()
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    commands = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    assert len(commands) >= 4
    script = "set -euo pipefail\n" + "\n".join(
        command if "--generate" in command or "token" in command else f"{command} <<< 'correct horse battery'"
        for command in commands
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**environ, "PATH": f"{HOLDFAST.parent}:{environ['PATH']}", "HOLDFAST_AUTH_HASH_MEMORY": "8KiB"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_example_of_a_users_file_is_one() -> None:
    text = (ROOT / "docs" / "how-to" / "manage-users.md").read_text()
    example = re.findall(r"```json\n(.*?)```", text, re.DOTALL)[0]
    known = users.read(example.encode(), 10, 10)
    assert list(known.by_name) == ["shop"]
    assert set(json.loads(example)["users"][0]) == set(msgspec.structs.asdict(known.by_name["shop"]))
