"""A real Spark cluster out of the pip package: a master and two workers, processes of this machine, and a Spark Connect
server whose driver runs on it. Its executors have nothing of Holdfast: an import of it fails there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

import psutil
import pyspark

from holdfast.pipeline.spark.java import java_home

HOME = Path(pyspark.__file__).parent
WAIT_SECONDS = 200
CORES = 2
MEMORY = "1g"

BARE = """
import sys

class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("holdfast", "pyspark_holdfast", "tests", "msgspec", "deltalake"):
            raise ImportError(f"{name} is not installed on an executor")

sys.meta_path.insert(0, Bare())
"""

Found = TypeVar("Found")


class Cluster:
    """See the module."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""
        self.remote = ""
        bare = path / "bare"
        bare.mkdir(parents=True)
        (bare / "sitecustomize.py").write_text(BARE)
        self.settings = {
            "spark.executorEnv.PYTHONPATH": str(bare),
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.cores.max": str(CORES),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
        }
        self._environment = {
            **os.environ,
            "JAVA_HOME": str(java_home(os.environ)),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "768m",
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOG_DIR": str(path),
        }

    def __enter__(self) -> Self:
        deploy = "org.apache.spark.deploy"
        at = ["--host", "127.0.0.1", "--webui-port", "0"]
        master = self._run("master", "spark-class", f"{deploy}.master.Master", *at, "--port", "0")
        self.master = self._until(lambda: find_in_log(master, r"Starting Spark master at (spark://\S+)"), "the master")
        for number in range(2):
            work = ["-c", str(CORES), "-m", MEMORY, "-d", str(self._path / f"work{number}")]
            self._run(f"worker{number}", "spark-class", f"{deploy}.worker.Worker", self.master, *at, *work)
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
                child.kill()
            process.kill()
            process.wait()

    def _run(self, name: str, script: str, *arguments: str) -> Path:
        log = self._path / f"{name}.log"
        with log.open("wb") as file:
            command = [str(HOME / "bin" / script), *arguments]
            process = subprocess.Popen(command, stdout=file, stderr=file, env=self._environment, cwd=self._path)
        self._processes.append(process)
        return log

    def _until(self, condition: Callable[[], Found | None], what: str) -> Found:
        deadline = time.monotonic() + WAIT_SECONDS
        while (found := condition()) is None:
            assert all(process.poll() is None for process in self._processes), f"{what} ended; see {self._path}"
            assert time.monotonic() < deadline, f"{what} does not come; see {self._path}"
            time.sleep(0.05)
        return found

    def connect(self) -> None:
        """Start the Spark Connect server."""
        given = {
            **self.settings,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
        }
        settings = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        log = self._run(
            "connect", "spark-submit", "--master", self.master, *settings, "--class", server, "spark-internal"
        )
        port = self._until(
            lambda: find_in_log(log, r"Spark Connect server started at: \S*:(\d+)"), "the Connect server"
        )
        self.remote = f"sc://127.0.0.1:{port}"
        self._until(lambda: self.executors() if len(self.executors()) == CORES else None, "executors")

    def executors(self) -> list[int]:
        """The processes of executors."""
        return [
            child.pid
            for process in self._processes
            for child in psutil.Process(process.pid).children(recursive=True)
            if any("CoarseGrainedExecutorBackend" in word for word in _words(child))
        ]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def find_in_log(log: Path, pattern: str) -> str | None:
    match = re.search(pattern, log.read_text())
    return match[1] if match else None
