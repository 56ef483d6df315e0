"""The client and the command line work where the server's libraries are not installed.

An installation in an empty environment is too slow for every run. Here these libraries cannot be imported, which is
what such an installation comes to.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from holdfast.cli.support.extras import SERVER
from holdfast.testing import Broker
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

BLOCK = """
import sys

class Without:
    def __init__(self, finder):
        self._finder = finder

    def __getattr__(self, name):
        return getattr(self._finder, name)

    def find_spec(self, name, path=None, target=None):
        absent = name.partition(".")[0] in {absent!r}
        return None if absent else self._finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


@pytest.fixture(scope="module")
def client_only(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which only the client is installed."""
    path = tmp_path_factory.mktemp("absent")
    (path / "sitecustomize.py").write_text(BLOCK.format(absent=set(SERVER)))
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(path), str(ROOT / "src"))), "NO_COLOR": "1"}


def run(environment: dict[str, str], *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


def holdfast(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(environment, "-m", "holdfast.cli", *arguments)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def test_a_program_sends_and_receives(client_only: dict[str, str], broker: Broker) -> None:
    program = f"""
from holdfast.client import SyncClient
with SyncClient({broker.url!r}) as client:
    client.send("jobs", {{"n": 1}})
    (message,) = client.receive("jobs")
    message.ack()
    print(message.json())
"""
    done = run(client_only, "-c", program)
    assert (done.stdout, done.stderr) == ("{'n': 1}\n", "")


def test_the_command_line_talks_to_a_server(client_only: dict[str, str], broker: Broker) -> None:
    assert holdfast(client_only, "--url", broker.url, "send", "emails", "hello").returncode == 0
    got = holdfast(client_only, "--url", broker.url, "receive", "emails", "--create", "-o", "json")
    assert '"hello"' in got.stdout
    doctor = holdfast(client_only, "--url", broker.url, "doctor")
    assert "holdfast[server]" in doctor.stdout + doctor.stderr
    assert doctor.returncode == 0, doctor.stderr


@pytest.mark.parametrize(
    "command",
    [("serve",), ("token", "key", "new.jwk"), ("user", "add", "ann", "--generate", "--file", "users")],
    ids=lambda command: str(command[0]),
)
def test_what_needs_the_server_says_what_to_install(
    client_only: dict[str, str], command: tuple[str, ...], tmp_path: Path
) -> None:
    done = run(client_only, "-m", "holdfast.cli", *command, cwd=tmp_path)
    assert 'pip install "holdfast[server]"' in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
    assert not [path for path in tmp_path.iterdir() if not path.name.endswith(".lock")]


def test_the_broker_for_tests_says_what_to_install(client_only: dict[str, str]) -> None:
    done = run(client_only, "-c", "import holdfast.testing")
    assert 'ImportError: holdfast.testing runs a real broker: pip install "holdfast[server]"' in done.stderr


def test_every_library_of_the_server_is_known() -> None:
    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[<>=\[ ]", requirement)[0] for requirement in requirements}

    modules: dict[str, set[str]] = {}
    for module, packages in packages_distributions().items():
        for package in packages:
            modules.setdefault(re.sub(r"[-_.]+", "-", package).lower(), set()).add(module)
    extra = names(PROJECT["optional-dependencies"]["server"])
    assert {module for name in extra for module in modules[name]} >= set(SERVER)
    assert [name for name in extra if not modules[name] & set(SERVER)] == []
    assert names(PROJECT["dependencies"]).isdisjoint(extra)
