"""Runs `holdfast worker` in several processes, replaces those that end, and starts them again when code changes.

SIGTERM and SIGINT are passed on: each process drains. A second one ends them immediately.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.cli.support.worker_status import Address, Status, StatusServer, ask

log = logging.getLogger("holdfast.worker")

NUMBER_VARIABLE = "HOLDFAST_WORKER_NUMBER"
"""The number of a process, from 1. It is set for processes that a supervisor has started."""
SOCKET_VARIABLE = "HOLDFAST_WORKER_SOCKET"
PAUSE_FIRST_SECONDS = 0.5  # before a process that ended is replaced; twice as long each time it ends early
PAUSE_MAX_SECONDS = 30.0
STEADY_SECONDS = 60.0  # one that has run for so long did not end early
LOOK_SECONDS = 0.5  # between two looks at the files, with --reload

NOT_WATCHED = {"__pycache__", "node_modules"}


class Supervisor:
    """See the module. `arguments` are those of `holdfast`, for each process."""

    def __init__(self, arguments: Sequence[str], processes: int, watched: Path | None) -> None:
        self._arguments = arguments
        self._count = processes
        self._watched = watched
        self._sockets = ""
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._reloading: set[int] = set()

    async def run(self, listen: Sequence[Address]) -> int:
        """Run until a signal arrives. Returns the exit code: the greatest of those of the processes at the end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._pass_on, number)
        server = StatusServer(self._statuses)
        with tempfile.TemporaryDirectory(prefix="holdfast-worker-") as directory:
            self._sockets = directory
            try:
                await server.listen(listen)
                watching = asyncio.create_task(self._watch())
                codes = await asyncio.gather(*(self._keep(number) for number in range(1, self._count + 1)))
                watching.cancel()
            finally:
                await server.close()
        return max(codes)

    def _pass_on(self, number: signal.Signals) -> None:
        self._stopping.set()
        for process in self._running.values():
            if process.returncode is None:
                process.send_signal(number)

    async def _keep(self, number: int) -> int:
        """Keep one process running. Returns the exit code of the last one."""
        pause = PAUSE_FIRST_SECONDS
        while True:
            began = asyncio.get_running_loop().time()
            code = await self._run_one(number)
            if self._stopping.is_set():
                return code
            if number in self._reloading:
                self._reloading.discard(number)
                continue
            steady = asyncio.get_running_loop().time() - began >= STEADY_SECONDS
            pause = PAUSE_FIRST_SECONDS if steady else min(pause * 2, PAUSE_MAX_SECONDS)
            log.error("process %d has ended with exit code %d; another starts in %g s", number, code, pause)
            try:
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
                return code
            except TimeoutError:
                continue

    async def _run_one(self, number: int) -> int:
        own = {NUMBER_VARIABLE: str(number), SOCKET_VARIABLE: self._socket(number)}
        # A session of its own: Ctrl-C reaches the supervisor only, which passes it on.
        # Its standard input ends with the supervisor, however that ends.
        # Python takes bytecode for a module's if that has the same size and was changed in the same second. So that no
        # change goes unseen, none is written with --reload.
        python = (sys.executable,) if self._watched is None else (sys.executable, "-B")
        process = await asyncio.create_subprocess_exec(
            *(*python, "-m", "holdfast.cli", *self._arguments),
            env=os.environ | own,
            start_new_session=True,
            stdin=asyncio.subprocess.PIPE,
        )
        self._running[number] = process
        if self._stopping.is_set():
            process.terminate()
        return await process.wait()

    def _socket(self, number: int) -> str:
        return str(Path(self._sockets) / str(number))

    async def _statuses(self) -> dict[str, Status]:
        numbers = sorted(self._running)
        found = await asyncio.gather(*(ask(self._socket(number)) for number in numbers))
        return {str(number): status for number, status in zip(numbers, found, strict=True)}

    async def _watch(self) -> None:
        """Start all processes again when a file has changed."""
        if self._watched is None:
            return
        before = await asyncio.to_thread(_files, self._watched)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = await asyncio.to_thread(_files, self._watched)
            if now == before:
                continue
            changed = sorted(name for name, _ in now.items() ^ before.items())
            log.warning("%s has changed: all processes drain and start again", changed[0])
            before = now
            for number, process in self._running.items():
                if process.returncode is None and number not in self._reloading:  # a second signal ends its jobs
                    self._reloading.add(number)
                    process.terminate()


def _files(directory: Path) -> dict[str, int]:
    """When each module below a directory was changed."""
    found: dict[str, int] = {}
    for file in _modules(directory):
        try:
            found[str(file)] = file.stat().st_mtime_ns
        except OSError:  # it has just gone
            continue
    return found


def _modules(directory: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(directory):
        folders[:] = [
            each for each in folders if not each.startswith(".") and each not in {"__pycache__", "node_modules"}
        ]
        yield from (Path(place) / name for name in names if name.endswith(".py"))
