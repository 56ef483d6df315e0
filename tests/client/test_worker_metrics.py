"""What workers say of their jobs to Prometheus."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest

from holdfast.cli.main import main
from holdfast.client import Client, Reject, Release, Retry, Workers, worker
from holdfast.client.metrics import WorkerMetrics
from holdfast.testing import Broker
from tests.ports import reserved_port
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as running:
        yield running


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with broker.client() as opened:
        yield opened


def series(text: str, name: str) -> dict[str, float]:
    return {found[1]: float(found[2]) for found in re.finditer(rf"^{name}\{{(.*)\}} (\S+)$", text, re.MULTILINE)}


class Unwanted(Reject):
    """A rejection with a name of its own."""


async def test_each_call_is_counted_by_what_became_of_it_and_timed(client: Client) -> None:
    @worker("jobs", group="g")
    async def handle(what: str) -> None:
        match what:
            case "retry":
                raise Retry(delay="1h")
            case "reject":
                raise Unwanted("no")
            case "release":
                raise Release(delay="1h")
            case "fail":
                raise ValueError(what)

    await client.create_queue("jobs")
    await client.create_group("jobs", "g")
    for what in ("ok", "ok", "retry", "reject", "release", "fail"):
        await client.send("jobs", what)
    registry = CollectorRegistry()
    await Workers(handle, middleware=[WorkerMetrics(registry)]).work_off(client)
    text = generate_latest(registry).decode()
    labels = 'group="g",outcome="{}",queue="jobs"'
    counts = {"done": 2.0, "retried": 1.0, "rejected": 1.0, "released": 1.0, "failed": 1.0}
    assert series(text, "holdfast_worker_jobs_total") == {labels.format(name): n for name, n in counts.items()}
    assert series(text, "holdfast_worker_job_seconds_count") == {'group="g",queue="jobs"': 6.0}
    assert series(text, "holdfast_worker_running") == {'group="g",queue="jobs"': 0.0}


PROGRAM = "from holdfast.client import worker\n\n@worker('metered', group='g')\ndef f(_: str) -> None: ...\n"


def test_the_command_serves_them(tmp_path: Path) -> None:
    """Also while there is no server: a worker that cannot work must be seen."""
    (tmp_path / "metered.py").write_text(PROGRAM)
    url = f"http://127.0.0.1:{reserved_port()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "--url", url, "worker", "metered", "--metrics", "127.0.0.1:0"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found is not None
        assert "holdfast_worker_jobs" in httpx.get(found[0], timeout=PATIENCE_SECONDS).text
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("at", ["9109", ":9109", "127.0.0.1:http", "127.0.0.1:70000", "192.0.2.1:9109"])
def test_an_address_that_is_none_is_refused(at: str, tmp_path: Path) -> None:
    (tmp_path / "metered.py").write_text(PROGRAM)
    done = CliRunner().invoke(main, ["worker", "metered", "--app-dir", str(tmp_path), "--metrics", at])
    assert done.exit_code == 1
    assert "--metrics" in done.stderr
