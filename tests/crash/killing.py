"""A load in a process of its own, killed at a moment that is chosen beforehand.

The processes are forked from one that has imported everything: two dozen restarts would else be half a minute of it.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.crash.load", "tests.crash.staging", "holdfast.store.rocks"])


def kill_under_load(path: Path, seed: int, lines: int, load: str, halfway: Callable[[], object] = lambda: None) -> str:
    """Run the load, kill it when it has said so many lines after `ready`, return what it said.

    Lines and not seconds, so that as much happens on a busy machine as on a quiet one. `halfway` is called after half
    of them.
    """
    ear, mouth = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=speak, args=(mouth, load, path, seed))
    process.start()
    mouth.close()
    said: list[bytes] = []
    half = False
    while (count := sum(data.count(b"\n") for data in said)) <= lines:  # `ready` is one
        if count > lines // 2 and not half:
            half = True
            halfway()
        data = os.read(ear.fileno(), 1 << 16)
        if not data:
            process.join()
            raise AssertionError(f"the load ended by itself: {process.exitcode}")
        said.append(data)
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
