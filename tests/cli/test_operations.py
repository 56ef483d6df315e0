"""`holdfast top`, `bench`, `doctor` and `worker`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from holdfast.client import SyncClient
from holdfast.testing import Broker
from tests.cli.conftest import Shell
from tests.waiting import PATIENCE_SECONDS

HOLDFAST = Path(sys.executable).parent / "holdfast"


def test_top_once_shows_the_queues_deepest_first(shell: Shell) -> None:
    shell.done("send", "few", "x")
    shell.done("send", "many", stdin="1\n2\n3\n")
    screen = [line.split() for line in shell.done("top", "--once").stdout.splitlines()]
    assert screen[0][:3] == ["queue", "depth", "ready"]
    assert [row[:2] for row in screen[1:]] == [["many", "3"], ["few", "1"]]
    assert [row["name"] for row in shell.json("top", "--sort", "name")] == ["few", "many"]
    assert [row["name"] for row in shell.json("top", "f")] == ["few"]


def test_top_fits_80_columns_sorts_by_keys_and_ends_with_q(shell: Shell, client: SyncClient) -> None:
    for name in ("b" * 60, "an/average/name", "zero"):
        client.create_queue(name, {"paused": name == "zero"})
    for count, name in ((3, "b" * 60), (1, "an/average/name")):
        for _ in range(count):
            client.send(name, "x")
    terminal, other = os.openpty()
    termios.tcsetwinsize(other, (24, 80))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    process = subprocess.Popen(
        [HOLDFAST, "--url", shell.url, "top", "-i", "3600"],
        stdin=other,
        stdout=other,
        stderr=other,
        env={**clean, "TERM": "xterm", "NO_COLOR": "1"},
    )
    os.close(other)
    try:
        first = screen(terminal, "sorted by depth", "zero (paused)")
        assert first.index("bbb") < first.index("an/average/name")
        os.write(terminal, b"n")
        second = screen(terminal, "sorted by name", "zero (paused)")
        assert second.index("an/average/name") < second.index("bbb")
        assert max(map(len, second.splitlines())) <= 80
        assert "oldest" in second
        os.write(terminal, b"q")
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def screen(terminal: int, *texts: str) -> str:
    """What the terminal shows since the last call, without its control sequences, once all of these are in it."""
    seen = ""
    while True:
        seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(terminal, 65536).decode()).replace("\r", "")
        at = seen.find(texts[0])
        if at >= 0 and all(text in seen[at:] for text in texts[1:]):
            return seen[at:]


def test_bench_reports_and_leaves_nothing_behind(shell: Shell) -> None:
    rows = shell.json("bench", "-n", "250", "--size", "10", "--batch", "100", "-c", "2")
    assert [row["step"] for row in rows] == ["enqueue", "lease and ack"]
    numbers = [value for row in rows for name, value in row.items() if name != "step"]
    assert all(isinstance(value, int | float) and value > 0 for value in numbers), rows
    assert shell.json("queue", "list") == []
    table = shell.done("bench", "-n", "10", "--queue", "mine").stdout.splitlines()
    assert table[0].split() == [
        "step",
        "messages/s",
        "MiB/s",
        "requests",
        "p50",
        "ms",
        "p95",
        "ms",
        "p99",
        "ms",
        "seconds",
    ]
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
    assert "will be created at the first start" in found["store"]["found"]
    assert not (tmp_path / "data").exists()
    text = shell.done("doctor", "--data-dir", str(tmp_path), "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0")
    assert "No problem found." in text.stderr


def test_doctor_names_groups_that_nobody_consumes(
    shell: Shell, client: SyncClient, broker: Broker, tmp_path: Path
) -> None:
    assert findings(shell, "--data-dir", str(tmp_path))["groups"]["verdict"] == "ok"
    client.send("q", "x")
    shell.done("queue", "group", "create", "q", "forgotten")
    broker.advance("6m")
    found = findings(shell, "--data-dir", str(tmp_path))["group"]
    assert found["verdict"] == "warning"
    assert "forgotten of queue q has a backlog, and no consumer for 6m" in found["found"]
    command = found["advice"].rpartition(": ")[2]
    assert command == "holdfast queue group delete q forgotten"
    shell.done(*command.split()[1:], "--yes")
    assert "groups" in findings(shell, "--data-dir", str(tmp_path))


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
    assert "is not a directory" in found["store"]["found"]
    assert "in use" in found["port mqtt"]["found"]
    assert "ss -ltnp" in found["port mqtt"]["advice"]
    assert "did not answer" in found["server"]["found"]
    assert found["server"]["advice"].startswith("Start it with `holdfast serve`")


def test_doctor_says_that_a_store_is_of_another_version(shell: Shell, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "FORMAT").write_text("99\n")
    found = findings(shell, "--data-dir", str(tmp_path), code=1)
    assert found["store"]["found"].startswith(f"{store} was written in format 99")
    assert found["store"]["advice"] == "Install a newer Holdfast."


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


def completed(url: str, words: str) -> list[str]:
    """What a shell is offered for the last of these words."""
    environ = {**os.environ, "HOLDFAST_URL": url, "_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": words}
    done = subprocess.run(
        [HOLDFAST],
        env={**environ, "COMP_CWORD": str(words.count(" "))},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_a_shell_completes_names_of_queues(shell: Shell) -> None:
    for name in ("emails", "emails/late", "orders"):
        shell.done("queue", "create", name)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (offered := completed(shell.url, "holdfast queue show em")):  # it gives a server one second only
        assert time.monotonic() < deadline
    assert offered == ["plain,emails", "plain,emails/late"]
    assert completed("http://127.0.0.1:1", "holdfast send e") == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_following_gives_back_when_it_is_stopped(shell: Shell, client: SyncClient, number: signal.Signals) -> None:
    shell.done("send", "q", stdin="first\nsecond\n")
    process = subprocess.Popen(
        [HOLDFAST, "receive", "q", "--create", "--follow", "--exec", "cat; echo; sleep 600"],
        env={**os.environ, "HOLDFAST_URL": shell.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "first\n"
    os.killpg(process.pid, number)  # as a terminal or a service manager does
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    back = client.receive("q", limit=2, wait="60s")
    assert [(message.text(), message.attempt) for message in back] == [("first", 1), ("second", 1)]
