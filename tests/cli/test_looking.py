"""`holdfast top`, `bench`, `doctor` and `worker`."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.cli.conftest import Shell


def test_top_once_shows_the_queues_deepest_first(shell: Shell) -> None:
    shell.done("send", "few", "x")
    shell.done("send", "many", stdin="1\n2\n3\n")
    shown = [line.split() for line in shell.done("top", "--once").stdout.splitlines()]
    assert shown[0][:3] == ["queue", "depth", "ready"]
    assert [row[:2] for row in shown[1:]] == [["many", "3"], ["few", "1"]]
    assert [row["name"] for row in shell.json("top", "--sort", "name")] == ["few", "many"]
    assert [row["name"] for row in shell.json("top", "f")] == ["few"]


def test_bench_reports_and_leaves_nothing_behind(shell: Shell) -> None:
    rows = shell.json("bench", "-n", "250", "--size", "10", "--batch", "100", "-c", "2")
    assert [row["step"] for row in rows] == ["enqueue", "lease and ack"]
    assert all(float(row["messages/s"].replace(",", "")) > 0 for row in rows)
    assert shell.json("queue", "list") == []
    shell.done("bench", "-n", "10", "--queue", "mine")
    assert [(each["name"], each["depth"]) for each in shell.json("queue", "list")] == [("mine", 0)]


def findings(shell: Shell, *arguments: str, code: int = 0) -> dict[str, dict[str, str]]:
    done = shell.run("doctor", "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0", *arguments, "-o", "json")
    assert done.exit_code == code, done.output
    return {each["check"]: each for each in json.loads(done.stdout)}


def test_doctor_finds_a_healthy_server_healthy(shell: Shell, tmp_path: Path) -> None:
    found = findings(shell, "--data-dir", str(tmp_path / "data"))
    assert {each["verdict"] for each in found.values()} <= {"ok", "warning"}
    assert found["clock"]["verdict"] == "ok"
    assert found["server store"]["verdict"] == "ok"
    assert "will be made at the first start" in found["store"]["found"]
    assert not (tmp_path / "data").exists()
    text = shell.done("doctor", "--data-dir", str(tmp_path), "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0")
    assert "Nothing stands in the way." in text.stderr


def test_doctor_says_what_is_wrong_and_what_to_do(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as busy:
        address = f"127.0.0.1:{busy.getsockname()[1]}"
        found = findings(
            shell,
            "--data-dir",
            str(tmp_path / "file" / "data"),
            "--mqtt",
            address,
            "--url",
            "http://127.0.0.1:1",
            code=1,
        )
    assert found["store"]["verdict"] == "problem"
    assert "is no directory" in found["store"]["found"]
    assert "in use" in found["port mqtt"]["found"]
    assert "ss -ltnp" in found["port mqtt"]["advice"]
    assert "did not answer" in found["server"]["found"]
    assert found["server"]["advice"].startswith("Start it with `holdfast serve`")


def test_a_namespace_that_is_not_the_credentials_own_does_nothing(shell: Shell) -> None:
    shell.done("--namespace", "default", "send", "q", "x")
    other = shell.run("--namespace", "acme", "queue", "purge", "q", "--yes")
    assert other.exit_code == 1
    assert "the credentials are for 'default'; nothing was done" in other.stderr
    assert shell.json("queue", "show", "q")["depth"] == 1


def test_worker_works_off_what_is_there(shell: Shell, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "burst_app.py").write_text(
        "from holdfast.client import worker\n\n@worker('q')\ndef handle(job: int) -> None:\n    print('did', job)\n"
    )
    shell.done("send", "q", "--as", "json", stdin="1\n2\n")
    done = shell.done("worker", "burst_app", "--app-dir", str(tmp_path), "--burst")
    assert done.stdout.splitlines() == ["did 1", "did 2"]
    assert "Worked on 2 messages." in done.stderr
    missing = shell.run("worker", "no_such_app", "--app-dir", str(tmp_path))
    assert (missing.exit_code, "is not found in" in missing.stderr) == (1, True)
    empty = shell.run("worker", "burst_app:other", "--app-dir", str(tmp_path))
    assert (empty.exit_code, "has no 'other'" in empty.stderr) == (1, True)
