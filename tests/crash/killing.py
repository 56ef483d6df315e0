"""A load in a process of its own, killed at a moment that is chosen beforehand.

The processes are forked from one that has imported everything: two dozen restarts would else be half a minute of it.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import select
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.crash.load", "tests.crash.staging", "holdfast.store.rocks"])


def kill_under_load(path: Path, seed: int, seconds: float, load: str) -> str:
    """Run the load, kill it after a while, return what it said."""
    ear, mouth = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=speak, args=(mouth, load, path, seed))
    process.start()
    mouth.close()
    said: list[bytes] = []
    deadline: float | None = None
    while deadline is None or time.monotonic() < deadline:
        readable, _, _ = select.select([ear], [], [], 0.01)
        if readable:
            data = os.read(ear.fileno(), 1 << 16)
            if not data:
                process.join()
                raise AssertionError(f"the load ended by itself: {process.exitcode}")
            said.append(data)
            if deadline is None and b"ready\n" in b"".join(said):
                deadline = time.monotonic() + seconds
    process.kill()
    while data := os.read(ear.fileno(), 1 << 16):
        said.append(data)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    ear.close()
    return b"".join(said).decode()


def speak(mouth: Connection, load: str, path: Path, seed: int) -> None:
    """The child: what it says goes into the pipe."""
    os.dup2(mouth.fileno(), 1)
    mouth.close()
    importlib.import_module(load).main(path, seed)
