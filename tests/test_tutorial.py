"""The tutorials run as they stand: every command that is shown is typed, and the answer is what is shown.

In a page, `console` blocks are sessions: lines with `$` are commands, the lines below are what they answer, `…`
standing for anything. A `python` block whose first line is a comment with a file's name is saved under that name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ports import reserved_port
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial"
BIN = Path(sys.executable).parent
END = "@@end of the answer@@"


class Shell:
    """A shell that keeps its variables from command to command."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self._environment = environment
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._servers: list[subprocess.Popen[str]] = []

    def type(self, command: str) -> str:
        if command.startswith("holdfast serve"):
            self._serve(command)
            return ""
        if command.startswith("sleep"):  # for the journal, which takes longer than the page says on a busy machine
            self._await_journal()
            return ""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f"{command}\necho; echo '{END}'\n")
        self._bash.stdin.flush()
        answer: list[str] = []
        for line in self._bash.stdout:
            if line.strip() == END:
                return "".join(answer).strip()
            answer.append(line)
        raise AssertionError(f"the shell ended at {command!r}: {''.join(answer)}")

    def _serve(self, command: str) -> None:
        """Runs beside, as in a terminal of its own."""
        server = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.directory,
            env=self._environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._servers.append(server)
        assert server.stderr is not None
        seen = []
        for line in server.stderr:
            seen.append(line)
            if "holdfast is running" in line:
                return
        raise AssertionError("".join(seen))

    def _await_journal(self) -> None:
        """Until all that happened is in the lake."""
        metrics = f"{self._environment['HOLDFAST_URL']}/metrics"
        deadline = time.monotonic() + PATIENCE_SECONDS
        while b"\nholdfast_journal_behind_rows 0" not in urllib.request.urlopen(metrics).read():
            assert time.monotonic() < deadline, "the journal is not exported"
            time.sleep(0.1)

    def close(self) -> None:
        for process in (self._bash, *self._servers):
            process.kill()
            process.communicate()


@contextmanager
def shell_in(directory: Path, commands: Path = BIN, mqtt_port: int = 0) -> Iterator[Shell]:
    """A shell in a directory, with the commands of another one first on its PATH."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    address = f"127.0.0.1:{reserved_port()}"
    environment = {
        **clean,
        "PATH": f"{commands}:{BIN}:{os.environ['PATH']}",
        "HOLDFAST_URL": f"http://{address}",
        "HOLDFAST_HTTP_LISTEN": address,
        "HOLDFAST_MQTT_LISTEN": f"127.0.0.1:{mqtt_port}",
        "HOLDFAST_LOG_FORMAT": "json",
        "HOLDFAST_WORKER_LOG_LEVEL": "error",
    }
    shell = Shell(directory, environment)
    try:
        yield shell
    finally:
        shell.close()


def steps(page: str) -> Iterator[tuple[str, str, str]]:
    """(`file`, name, text) and (`command`, what is typed, what it answers), in their order."""
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL):
        if language == "python" and (named := re.match(r"# (\w+\.py)\n", text)):
            yield "file", named[1], text
        elif language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, answer = part.partition("\n")
                yield "command", command, answer.strip()


def matches(shown: str, answer: str) -> bool:
    """`…` is anything, and any run of blanks is as good as another."""
    text = " ".join(answer.split())
    first, *rest = (" ".join(part.split()) for part in shown.split("…"))
    if not rest:
        return text == first
    if not text.startswith(first):
        return False
    at = len(first)
    *between, last = rest
    for part in between:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return text.endswith(last) and len(text) - len(last) >= at


def follow(page: Path, shell: Shell) -> int:
    """Do what a page shows, and compare what comes of it. Returns how many commands that were."""
    typed = 0
    for kind, what, text in steps(page.read_text()):
        if kind == "file":
            (shell.directory / what).write_text(text)
            continue
        answer = shell.type(what)
        assert matches(text, answer), f"$ {what}\n--- shown\n{text}\n--- answered\n{answer}"
        typed += 1
    return typed


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_first_tutorial_runs_as_it_stands(tmp_path: Path) -> None:
    with shell_in(tmp_path) as shell:
        assert follow(TUTORIAL / "first-job.md", shell) > 10


def follow_on_one_server(shell: Shell, tmp_path: Path) -> None:
    """The README, then the tutorial, on a server that runs already."""
    for page in (ROOT / "README.md", DOCS / "tutorial" / "first-job.md"):
        for kind, what, text in steps(page.read_text()):
            if kind == "file":
                (tmp_path / what).write_text(text)
            elif not what.startswith("holdfast serve"):
                answer = shell.type(what)
                assert matches(text, answer), f"$ {what}\n--- shown\n{text}\n--- answered\n{answer}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_tutorial_continues_on_the_server_of_the_readme(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / ".venv").symlink_to(BIN.parent)
    with shell_in(tmp_path) as shell:
        shell.type("holdfast serve --data-dir ./data")  # what `make serve` does
        follow_on_one_server(shell, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="needs curl and jq")
def test_the_how_tos_continue_on_the_server_of_the_tutorial(tmp_path: Path) -> None:
    """README, tutorial, curl, MQTT, in the order in which a newcomer reads them: no page disturbs the next."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / ".venv").symlink_to(BIN.parent)
    port = reserved_port()
    with shell_in(tmp_path, mqtt_port=port) as shell:
        shell.type("holdfast serve --data-dir ./data")
        follow_on_one_server(shell, tmp_path)
        curl = blocks("use-http-with-curl", "sh")
        for number, block in enumerate(curl[1:]):
            script = tmp_path / f"curl-{number}.sh"
            script.write_text(f"set -euo pipefail\nURL=$HOLDFAST_URL\n{block}")
        said = [shell.type(f"bash curl-{number}.sh && echo 'exit 0'") for number in range(len(curl) - 1)]
        assert [answer for answer in said if not answer.endswith("exit 0")] == []
        for number, program in enumerate(blocks("durable-queues-with-mqtt", "python")):
            (tmp_path / f"mqtt_{number}.py").write_text(program.replace("1883", str(port)))
            answer = shell.type(f"{sys.executable} mqtt_{number}.py && echo 'exit 0'")
            assert answer.endswith("exit 0"), answer


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / "how-to" / f"{page}.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_the_tests_of_the_how_to_run_in_an_empty_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(blocks("test-your-code", "toml")[0])
    (tmp_path / "conftest.py").write_text(blocks("test-your-code", "python")[0])
    shutil.copy(ROOT / "examples" / "test_shop.py", tmp_path)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "skipped" not in ran.stdout


@pytest.mark.parametrize("name", ["configure-a-server", "give-out-tokens"])
def test_the_commands_of_a_how_to_answer_as_shown(name: str, tmp_path: Path) -> None:
    page = (DOCS / "how-to" / f"{name}.md").read_text()
    (tmp_path / "holdfast.toml").write_text(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])
    commands = [step for step in steps(page) if "holdfast serve" not in step[1]]
    assert len(commands) >= 4
    with shell_in(tmp_path) as shell:
        for _, what, text in commands:
            answer = shell.type(what)
            assert matches(text, answer), f"$ {what}\n--- shown\n{text}\n--- answered\n{answer}"


def test_every_tutorial_has_a_test() -> None:
    """The second one is in tests/pipeline/test_tutorial.py, where the tests share Spark."""
    assert sorted(page.stem for page in TUTORIAL.glob("*.md")) == ["first-job", "what-became-of-it"]


def test_what_is_shown_must_be_what_is_answered() -> None:
    assert matches("id … age\n… x", "id  key  age\n5  x")
    assert matches("…", "anything")
    assert not matches("Created emails.", "Created mails.")
    assert not matches("", "error: no")
