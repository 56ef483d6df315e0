"""A fresh `holdfast serve` in a process of its own, and what a server's processes use."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

HOLDFAST = (str(Path(sys.executable).with_name("holdfast")),)
START_SECONDS = 60.0
STOP_SECONDS = 15.0
LOG_SHOWN = 2_000  # characters, its last
CREATORS = 16
SAMPLE_SECONDS = 1.0


class Served(NamedTuple):
    """A server: its ports, and its process."""

    mqtt: int
    http: int
    pid: int
    grpc: int = 0


@contextmanager
def server(*, grpc: bool = False) -> Iterator[Served]:
    """A fresh server with the queue `bench`."""
    with empty_server(grpc=grpc) as served:
        create_queues(served.http, ["bench"], {"max_depth": 0})
        yield served


@contextmanager
def empty_server(
    program: Sequence[str] = HOLDFAST, *, environment: Mapping[str, str] | None = None, grpc: bool = False
) -> Iterator[Served]:
    mqtt, http = free_port(), free_port()
    other = free_port() if grpc else 0
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as directory:
        command = [*program, "serve", "--data-dir", directory]
        command += ["--mqtt", f"127.0.0.1:{mqtt}", "--http", f"127.0.0.1:{http}", "--log-level", "warning"]
        if grpc:
            command += ["--grpc", f"127.0.0.1:{other}"]
        with running(command, environment) as process:
            for port in (http, mqtt, *([other] if grpc else ())):
                wait_for(port, process)
            yield Served(mqtt, http, process.pid, other)


@contextmanager
def running(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    user: str | None = None,
    log: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is stopped at the end, and what it has started. With a log, it is shown only after an error."""
    with ExitStack() as stack:
        output = None if log is None else stack.enter_context(log.open("ab"))
        directory = None if user is None else "/"  # one that this user may enter
        process = subprocess.Popen(
            command, env=os.environ | (environment or {}), user=user, stdout=output, stderr=output, cwd=directory
        )
    try:
        yield process
    except Exception:
        if log is not None:
            print(log.read_text(errors="replace")[-LOG_SHOWN:], file=sys.stderr)
        raise
    finally:
        started = processes(process.pid)[1:] if process.poll() is None else []
        process.terminate()
        process.wait()
        for one in started:
            with suppress(psutil.NoSuchProcess):
                one.terminate()
        psutil.wait_procs(started, STOP_SECONDS)


def create_queues(port: int, names: Sequence[str], config: dict[str, object]) -> None:
    """On several connections, so that they share syncs."""

    def create(first: int) -> None:
        for name in names[first::CREATORS]:
            call(connections[first], "POST", "/api/v1/queues", {"name": name, "config": config})

    connections = [http.client.HTTPConnection("127.0.0.1", port) for _ in names[:CREATORS]]
    with ThreadPoolExecutor(CREATORS) as pool:
        list(pool.map(create, range(len(connections))))
    for connection in connections:
        connection.close()


def create_groups(port: int, queue: str, groups: Sequence[str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for group in groups:
        call(connection, "PUT", f"/api/v1/queues/{queue}/groups/{group}", {"kind": "lease"})
    connection.close()


def call(connection: http.client.HTTPConnection, method: str, path: str, body: object) -> None:
    connection.request(method, path, json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    if response.status >= 300:
        raise RuntimeError(answer.decode())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Until the process listens on the port."""
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"nothing listens on port {port}: {process.args!r}, exit status {process.poll()}")


def processor_seconds(pid: int) -> float:
    """What a process and its descendants have used so far, with those that have ended."""
    every = [one.cpu_times() for one in processes(pid)]
    return sum(times.user + times.system + times.children_user + times.children_system for times in every)


def loop_seconds(pid: int) -> float:
    """What the thread of a server's event loop has used so far."""
    loop = next(thread for thread in psutil.Process(pid).threads() if thread.id == pid)
    return float(loop.user_time + loop.system_time)


def resident_mib(pid: int) -> float:
    """Memory of a process and its descendants, pages that they share counted once."""
    return sum(resident_by_process(pid))


def resident_by_process(pid: int) -> list[float]:
    """The same for each of them, the process itself first. Those that end meanwhile are left out."""
    found: list[float] = []
    for one in processes(pid):
        with suppress(psutil.NoSuchProcess):
            found.append(float(one.memory_full_info().pss) / 2**20)
    return found


class MemorySampler:
    """Looks at a server's memory every second, on a thread of its own: a process that converts the journal comes and
    goes between two lines of a report."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self._samples: list[list[float]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> MemorySampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self._samples.append(resident_by_process(self._pid))

    def peaks(self) -> MemoryPeaks:
        """Since the last call."""
        samples, self._samples = self._samples or [resident_by_process(self._pid)], []
        return MemoryPeaks(
            server=max(server for server, *_ in samples),
            converting=max(sum(others) for _, *others in samples),
            together=max(map(sum, samples)),
        )


class MemoryPeaks(NamedTuple):
    """The most MiB that were seen: of the server, of the process that converts its journal, of both at one time."""

    server: float
    converting: float
    together: float


def processes(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]
