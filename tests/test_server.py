"""The server process: starting, refusing to start, stopping, and stopping at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from holdfast.journal.manifest import segment_files
from holdfast.store.rocks_log import logs_of
from tests.waiting import PATIENCE_SECONDS

HOLDFAST = Path(sys.executable).parent / "holdfast"

# A real node stops in milliseconds. To see what the server does about one that hangs, this one never ends stopping.
NODE_HANGS = """
import asyncio, sys
from holdfast import server
from holdfast.cli.main import main

class Hanging(server.Node):
    async def stop(self): await asyncio.Event().wait()

server.Node = Hanging
main(["serve", *sys.argv[1:]])
"""

# So does a lake on a disk that no longer answers.
LAKE_HANGS = """
import sys, threading
from holdfast.broker.export import worker as export_worker
from holdfast.broker.export import scheduler as keeper
from holdfast.cli.main import main

def hang(path, batches):
    print('{"event": "the lake hangs"}', file=sys.stderr, flush=True)
    threading.Event().wait()

export_worker.write_segment = hang
keeper.LEAVE_SECONDS = 0.05
main(["serve", *sys.argv[1:]])
"""

# And one from which somebody wants to read.
HISTORY_HANGS = """
import sys, threading
from holdfast.broker.parts import inspection as look_calls
from holdfast.cli.main import main

def hang(*_):
    print('{"event": "the lake hangs"}', file=sys.stderr, flush=True)
    threading.Event().wait()

look_calls.read_history = hang
main(["serve", *sys.argv[1:]])
"""

# And the store's disk, when all is nearly over.
CLOSE_HANGS = """
import sys, threading
from holdfast import server
from holdfast.cli.main import main
from holdfast.store.memory import MemoryStore

MemoryStore.close = lambda _: threading.Event().wait()
server.CLOSE_SECONDS = 0.05
main(["serve", "--store", "memory", *sys.argv[1:]])
"""

# A disk that fails for a moment; the store is then opened again.
SYNC_FAILS = """
import sys
from pathlib import Path
from holdfast.cli.main import main
from holdfast.store.rocks_handles import Handles

right = Handles.sync

def sync(self):
    if Path(sys.argv[2], "fails").exists():
        raise OSError("I/O error")
    right(self)

Handles.sync = sync
main(["serve", *sys.argv[1:]])
"""

# What a server has imported by its end.
MODULES_LISTED = """
import atexit, json, sys
from holdfast.cli.main import main

atexit.register(lambda: print(json.dumps({"event": "modules", "names": list(sys.modules)}), file=sys.stderr))
main(["serve", *sys.argv[1:]])
"""


class Server:
    """A child process that says on standard error what it does, one JSON object a line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def wait_for(self, event: str) -> dict[str, object]:
        assert self.process.stderr is not None
        seen: list[str] = []
        for line in self.process.stderr:
            seen.append(line)
            entry = json.loads(line) if line.startswith("{") else {}
            if event in str(entry.get("event", "")):
                assert isinstance(entry, dict)
                return entry
        raise AssertionError(f"the server ended without saying {event!r}:\n{''.join(seen)}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        return self.process.wait(timeout=PATIENCE_SECONDS)


@contextmanager
def serving(
    data: Path,
    *arguments: str,
    program: str | None = None,
    before: Sequence[str] = (),
    binary: str = str(HOLDFAST),
    **environ: str,
) -> Iterator[Server]:
    """A server, which `before`, the beginning of a command, has exec'd."""
    command = [sys.executable, "-c", program] if program else [binary, "serve"]
    process = subprocess.Popen(
        [
            *before,
            *command,
            "--data-dir",
            str(data),
            "--log-format",
            "json",
            "--http",
            "127.0.0.1:0",
            "--mqtt",
            "127.0.0.1:0",
            *arguments,
        ],
        env={**os.environ, **environ},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Server(process)
    finally:
        process.kill()
        process.communicate()


def refused(data: Path) -> tuple[int, str]:
    done = subprocess.run(
        [HOLDFAST, "serve", "--data-dir", data, "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return done.returncode, done.stderr


def enqueue_one(url: object) -> None:
    body = {"messages": [{"payload": 1}]}
    httpx.post(f"{url}/api/v1/queues/q/messages", json=body, timeout=PATIENCE_SECONDS).raise_for_status()


def wait_for_segment(journal: Path) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not list(segment_files(journal)):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("store", ["rocks", "memory"])
def test_a_signal_stops_the_server_gracefully(tmp_path: Path, store: str, number: signal.Signals) -> None:
    with serving(tmp_path / "data", "--store", store) as server:
        running = server.wait_for("holdfast is running")
        assert running["store"] == store
        assert running["pid"] == server.process.pid
        server.signal(number)
        assert server.wait_for("stopping")["signal"] == number.name
        server.wait_for("holdfast has stopped")
        assert server.exit_code() == 0


def test_libraries_of_features_that_nobody_uses_are_not_imported(tmp_path: Path) -> None:
    unused = {"pyarrow", "numpy", "pandas", "pyspark", "deltalake", "httpx", "httpcore", "cryptography", "joserfc"}
    with serving(tmp_path, program=MODULES_LISTED, HOLDFAST_JOURNAL_SEGMENT_AGE="100ms") as server:
        url = server.wait_for("HTTP API is listening")["url"]
        enqueue_one(url)
        wait_for_segment(tmp_path / "lake" / "journal")
        httpx.get(f"{url}/metrics").raise_for_status()
        server.signal(signal.SIGTERM)
        names = server.wait_for("modules")["names"]
    assert isinstance(names, list)
    assert unused & {name.partition(".")[0] for name in names} == set()


def test_a_stopped_server_can_be_started_again_on_its_data(tmp_path: Path) -> None:
    for _ in range(2):
        with serving(tmp_path / "data") as server:
            server.wait_for("holdfast is running")
            server.signal(signal.SIGTERM)
            assert server.exit_code() == 0


def test_a_second_server_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        server.wait_for("holdfast is running")
        code, said = refused(tmp_path / "data")
        assert code == 1
        assert "is in use by another process" in said
        assert said.rstrip().endswith("[store_locked]")


def test_a_data_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, said = refused(tmp_path / "file" / "data")
    assert code == 1
    assert said.startswith(f"error: {tmp_path}/file/data cannot be written: Not a directory.")
    assert said.count("\n") == 1


def test_the_data_directory_is_for_the_servers_user_only(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        server.wait_for("holdfast is running")
        assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_the_process_immediately(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with serving(tmp_path / "data", program=NODE_HANGS) as server:
        server.wait_for("holdfast is running")
        server.signal(signal.SIGTERM)
        server.wait_for("stopping")
        server.signal(number)
        server.wait_for("second signal")
        assert server.exit_code() == code


def test_a_stop_that_takes_too_long_is_cut_short(tmp_path: Path) -> None:
    with serving(tmp_path / "data", program=NODE_HANGS, HOLDFAST_NODE_SHUTDOWN_TIMEOUT="50ms") as server:
        server.wait_for("holdfast is running")
        server.signal(signal.SIGTERM)
        assert server.wait_for("not stopped in time")["timeout"] == "50ms"
        assert server.exit_code() == 1


def test_a_lake_that_hangs_does_not_keep_the_process_from_ending(tmp_path: Path) -> None:
    quick = {"HOLDFAST_JOURNAL_SEGMENT_AGE": "1s", "HOLDFAST_JOURNAL_STOP_TIMEOUT": "50ms"}
    quick["HOLDFAST_JOURNAL_CONVERSION"] = "thread"
    with serving(tmp_path / "data", program=LAKE_HANGS, **quick) as server:
        url = server.wait_for("HTTP API is listening")["url"]
        enqueue_one(url)
        server.wait_for("the lake hangs")
        server.signal(signal.SIGTERM)
        server.wait_for("holdfast has stopped")
        assert server.exit_code() == 0


def test_nor_does_one_that_hangs_while_somebody_reads_from_it(tmp_path: Path) -> None:
    with serving(tmp_path / "data", program=HISTORY_HANGS) as server, ThreadPoolExecutor(1) as threads:
        url = server.wait_for("HTTP API is listening")["url"]
        reading = threads.submit(httpx.get, f"{url}/api/v1/queues/q/messages/1/history", timeout=PATIENCE_SECONDS)
        server.wait_for("the lake hangs")
        server.signal(signal.SIGTERM)
        server.wait_for("holdfast has stopped")
        assert server.exit_code() == 0
        assert reading.result().json()["code"] == "shutting_down"


def test_a_store_that_hangs_at_its_close_does_not_keep_the_process_either(tmp_path: Path) -> None:
    with serving(tmp_path / "data", program=CLOSE_HANGS, HOLDFAST_NODE_SHUTDOWN_TIMEOUT="1s") as server:
        server.wait_for("holdfast is running")
        server.signal(signal.SIGTERM)
        server.wait_for("holdfast has stopped")
        server.wait_for("shutdown timed out")
        assert server.exit_code() == 1


def test_a_store_that_is_damaged_when_it_is_opened_again_ends_the_process(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, program=SYNC_FAILS) as server:
        url = server.wait_for("HTTP API is listening")["url"]
        server.wait_for("holdfast is running")
        enqueue_one(url)
        (data / "store" / "db" / "CURRENT").write_text("damaged")
        (data / "fails").touch()
        with pytest.raises(httpx.HTTPStatusError, match="503"):
            enqueue_one(url)
        assert server.wait_for("the node cannot continue")["code"] == "store_corrupt"
        assert server.exit_code() == 1


@pytest.mark.crash
def test_a_log_that_is_damaged_after_a_kill_is_refused_at_the_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as server:
        url = server.wait_for("HTTP API is listening")["url"]
        for _ in range(10):
            enqueue_one(url)
        server.signal(signal.SIGKILL)
        server.exit_code()
    (log,) = logs_of(data / "store" / "db")
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    for _ in range(2):
        code, said = refused(data)
        assert code == 1
        assert f"{log} at byte" in said
        assert "holdfast store salvage" in said
        assert said.rstrip().endswith("[store_corrupt]")


def test_the_log_is_readable_for_people_by_default(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [HOLDFAST, "serve", "--data-dir", tmp_path / "data", "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    line = next(line for line in process.stderr if "holdfast is running" in line)
    process.terminate()
    process.communicate(timeout=PATIENCE_SECONDS)
    assert "[info" in line
    assert "\x1b" not in line, "colours are for terminals"


def test_the_server_has_no_use_for_pandas_and_does_not_load_it(tmp_path: Path) -> None:
    """Half a second in which nobody is served, and 50 MiB, for the first stream of columns."""
    pytest.importorskip("pandas")
    with serving(tmp_path / "data") as server:
        url = server.wait_for("HTTP API is listening")["url"]
        enqueue_one(url)
        arrow = {"accept": "application/vnd.apache.arrow.stream"}
        found = httpx.post(f"{url}/api/v1/queues/q/groups/log/read", json={}, headers=arrow, timeout=PATIENCE_SECONDS)
        assert pa.ipc.open_stream(found.content).read_all().column_names[0] == "id"
        assert "/pandas/" not in Path(f"/proc/{server.process.pid}/maps").read_text()
