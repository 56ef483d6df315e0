"""`holdfast worker` as an operator runs it: several processes, health, metrics, logs of jobs, code that changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from holdfast.cli.main import main
from holdfast.client import SyncClient
from holdfast.testing import Broker
from tests.ports import reserved_port
from tests.waiting import PATIENCE_SECONDS, until_sync

APP = """
import logging, os, threading
from holdfast.client import SyncMessage, Workers, worker

log = logging.getLogger("my_app")

@worker("jobs", timeout="2s", retries=0)
def handle(job: str) -> None:
    log.info("version %s", VERSION)
    if job == "hang":
        threading.Event().wait()

VERSION = "one"
app = Workers(handle)
"""

JSON = ("--log-format", "json")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[SyncClient]:
    with broker.sync_client() as opened:
        yield opened
        for queue in reversed(opened.queues()):  # a dead queue after the queue that it is of
            opened.delete_queue(queue.name, missing_ok=True)


@contextmanager
def running(directory: Path, url: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, with its log lines in `log`. It is drained at the end."""
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", "--url", url, "worker", "my_app:app", *options],
            cwd=directory,
            env={name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
            stderr=log,
        )
    try:
        yield process
        process.terminate()
        process.wait(PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()


def lines(directory: Path) -> list[dict[str, object]]:
    """The log lines that are complete, of jobs and others."""
    complete = (directory / "log").read_bytes().rpartition(b"\n")[0]
    return [json.loads(line) for line in complete.splitlines()]


def answer(port: int, path: str) -> httpx.Response | None:
    try:
        return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_SECONDS)
    except httpx.TransportError:
        return None


def text(port: int) -> str:
    response = answer(port, "/metrics")
    return response.text if response is not None else ""


def is_healthy(port: int) -> bool:
    response = answer(port, "/health")
    return response is not None and response.status_code == 200


def test_several_processes_are_kept_and_say_how_they_are(tmp_path: Path, broker: Broker, client: SyncClient) -> None:
    (tmp_path / "my_app.py").write_text(APP)
    health, metrics = reserved_port(), reserved_port()
    options = ("--processes", "2", "--health", f"127.0.0.1:{health}", "--metrics", f"127.0.0.1:{metrics}")
    with running(tmp_path, broker.url, *options, *JSON) as process:
        until_sync(lambda: is_healthy(health))
        context = f"00-{'a' * 32}-{'b' * 16}-01"
        job = client.send("jobs", "quick", properties={"traceparent": context})
        until_sync(lambda: 'outcome="done",process="' in text(metrics))
        (line,) = [each for each in lines(tmp_path) if each["logger"] == "my_app"]
        assert (line["job"], line["queue"], line["attempt"], line["event"]) == (job.id, "jobs", 1, "version one")
        assert (line["trace_id"], line["span_id"]) == ("a" * 32, "b" * 16)
        assert line["process"] in {"1", "2"}
        response = answer(health, "/health")
        assert response is not None
        assert response.json() == {"healthy": True, "processes": {"1": "working", "2": "working"}}
        missing = answer(health, "/other")
        assert missing is not None
        assert missing.status_code == 404

        client.send("jobs", "hang")  # its process is replaced, because a thread cannot be stopped
        until_sync(lambda: any("has ended with exit code" in str(each["event"]) for each in lines(tmp_path)))
        until_sync(lambda: is_healthy(health))
    assert process.returncode == 0
    assert [dead.body() for dead in client.dead_letters("jobs")] == [b"hang"]


def test_changed_code_is_loaded_by_a_new_process(tmp_path: Path, broker: Broker, client: SyncClient) -> None:
    module = tmp_path / "my_app.py"
    module.write_text(APP)
    os.utime(module, ns=(0, 0))
    health = reserved_port()
    with running(
        tmp_path, broker.url, "--reload", "--health", f"127.0.0.1:{health}", "--log-format", "json"
    ) as process:
        until_sync(lambda: is_healthy(health))
        client.send("jobs", "a")
        until_sync(lambda: any(each["event"] == "version one" for each in lines(tmp_path)))
        changed = tmp_path / "changed"
        changed.write_text(APP.replace('"one"', '"two"'))
        os.utime(changed, ns=(1, 1))  # in the same second, and as long as before
        changed.replace(module)
        until_sync(lambda: any("has changed" in str(each["event"]) for each in lines(tmp_path)))

        def worked_on_by_new_code() -> bool:
            client.send("jobs", "b")  # the first ones may go to the process that drains
            return any(each["event"] == "version two" for each in lines(tmp_path))

        until_sync(worked_on_by_new_code)
    assert process.returncode == 0


def test_processes_drain_when_their_supervisor_is_killed(tmp_path: Path, broker: Broker, client: SyncClient) -> None:
    (tmp_path / "my_app.py").write_text(APP)
    health = reserved_port()
    with running(
        tmp_path, broker.url, "--processes", "1", "--health", f"127.0.0.1:{health}", "--log-format", "json"
    ) as process:
        until_sync(lambda: is_healthy(health))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        until_sync(lambda: any("stopping after SIGTERM" in str(each["event"]) for each in lines(tmp_path)))


def test_one_process_says_how_it_is(tmp_path: Path, broker: Broker, client: SyncClient) -> None:
    (tmp_path / "my_app.py").write_text(APP)
    port = reserved_port()
    with running(tmp_path, broker.url, "--health", f"127.0.0.1:{port}", "--metrics", f"127.0.0.1:{port}") as process:
        until_sync(lambda: is_healthy(port))
        client.send("jobs", "quick")
        done = 'holdfast_worker_jobs_total{group="default",outcome="done",queue="jobs"} 1.0'
        until_sync(lambda: done in text(port))
        assert "job=" in (tmp_path / "log").read_text()
        client.send("jobs", "hang")
        until_sync(lambda: answer(port, "/health") and not is_healthy(port))
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--health", "8081"], "--health is an address and a port"),
        (["--metrics", "127.0.0.1:70000"], "--metrics is an address and a port"),
        (["--burst", "--processes", "2"], "is for one process"),
    ],
)
def test_options_that_cannot_be_are_refused(options: list[str], problem: str) -> None:
    done = CliRunner().invoke(main, ["worker", "nothing", *options])
    assert done.exit_code != 0
    assert problem in done.output + str(done.exception)
