"""Servers that are started on one data directory, one after another, and killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil

from tests.waiting import PATIENCE_SECONDS, until

MQTT_ADDRESS = r'"address":\s*"127\.0\.0\.1:(\d+)"'
HTTP_URL = r'"url":\s*"http://127\.0\.0\.1:(\d+)"'


class Servers:
    """Starts them."""

    def __init__(self, path: Path, zygote: subprocess.Popen[str]) -> None:
        self._path = path
        self._zygote = zygote
        self._count = 0

    def start(self, told: str) -> tuple[int, int]:
        """Process id, and the port that the log tells of in the words of the pattern `told`."""
        self._count += 1
        log = self._path / f"{self._count}.log"
        stdin, stdout = self._zygote.stdin, self._zygote.stdout
        assert stdin is not None
        assert stdout is not None
        _write(stdin, f"{log} --config {self._path / 'config.toml'} --log-format json\n")
        pid = int(stdout.readline())
        deadline = time.monotonic() + PATIENCE_SECONDS
        text = ""
        while time.monotonic() < deadline:
            text = log.read_text() if log.exists() else ""
            found = re.search(told, text)
            if found:
                return pid, int(found[1])
            time.sleep(0.005)
        raise AssertionError(f"the server did not start: {text}")


def _write(stream: IO[str], text: str) -> None:
    stream.write(text)
    stream.flush()


@contextmanager
def servers(path: Path, config: str) -> Iterator[Servers]:
    """`config` is a TOML file in which `{path}` stands for the data directory."""
    (path / "config.toml").write_text(config.format(path=path / "data"))
    with subprocess.Popen(
        [sys.executable, "-m", "tests.crash.zygote"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as zygote:
        yield Servers(path, zygote)
        assert zygote.stdin is not None
        zygote.stdin.close()


async def kill_after(pid: int, count: Callable[[], int], events: int) -> None:
    """When so much more has happened, on a machine of any speed. Ends when the process has: its store is locked until
    then."""
    end = count() + events
    await until(lambda: count() >= end)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not psutil.pid_exists(pid))
