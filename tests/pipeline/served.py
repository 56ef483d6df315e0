"""`holdfast serve` as a process of its own, on disk, that can be killed and comes back at the same address."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Self

from holdfast.client import SyncClient
from tests.ports import reserved_port
from tests.waiting import PATIENCE_SECONDS

HOLDFAST = Path(sys.executable).parent / "holdfast"


class Served:
    """A broker below `path`."""

    def __init__(self, path: Path, config: str = "") -> None:
        self._path = path
        self._config = config
        self._log = path / "log"
        self.url = f"http://127.0.0.1:{reserved_port()}"
        self._process: subprocess.Popen[bytes] | None = None
        self.kills = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        (self._path / "holdfast.toml").write_text(self._config)
        address = self.url.removeprefix("http://")
        command = [
            str(HOLDFAST),
            "serve",
            "--config",
            str(self._path / "holdfast.toml"),
            "--data-dir",
            str(self._path / "data"),
            "--http",
            address,
            "--mqtt",
            "127.0.0.1:0",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([*command, "--log-format", "json"], stderr=log)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := self._listening()):
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.02)
        self.url = found

    def _listening(self) -> str:
        for line in self._log.read_text().splitlines(keepends=True):
            if line.endswith("\n") and (entry := json.loads(line))["event"] == "HTTP API is listening":
                return str(entry["url"])
        return ""

    def revive(self) -> None:
        """Start it again, if somebody has killed it."""
        assert self._process is not None
        if self._process.poll() is not None:
            assert self._process.returncode == -signal.SIGKILL, self._log.read_text()
            self.kills += 1
            self.start()

    def exported(self) -> None:
        """Wait until all that happened is in the lake."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while b"\nholdfast_journal_behind_rows 0" not in urllib.request.urlopen(f"{self.url}/metrics").read():
            assert time.monotonic() < deadline, "the journal is not exported"
            time.sleep(0.02)

    def client(self) -> SyncClient:
        return SyncClient(self.url)
