"""The PostgreSQL that all tests of a run share: the first that asks starts it, whichever process of xdist that is in.

The process that began the run chooses its directory, tells it to the others in the environment, and ends the server.
Each test process has a database of its own there, and a test that needs a whole one makes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path

import psutil
import psycopg

from tools.postgres import STOP_SECONDS, Server

DIRECTORY = "HOLDFAST_TEST_POSTGRES"
_numbers = count(1)
_started: list[Server] = []  # by this process; most runs end in another one


def configure() -> None:
    """When a run begins: choose the directory, unless the run has one."""
    os.environ.setdefault(DIRECTORY, str(Path(tempfile.gettempdir()) / f"holdfast-postgres-{os.getpid()}"))


def end() -> None:
    """When a run ends: end the server, if one was started."""
    directory = Path(os.environ[DIRECTORY])
    if not directory.name.endswith(f"-{os.getpid()}"):  # the process that began the run ends it
        for server in _started:
            server.leave()
        return
    if not directory.exists():
        return
    for server in _started:
        server.stop(signal.SIGQUIT)  # nobody needs its data any more
    with suppress(FileNotFoundError, psutil.NoSuchProcess):
        process = psutil.Process(int((directory / "pid").read_text()))
        process.send_signal(signal.SIGQUIT)
        process.wait(STOP_SECONDS)
    with suppress(FileNotFoundError):
        shutil.rmtree((directory / "sockets").read_text())
    shutil.rmtree(directory, ignore_errors=True)


@cache
def _sockets() -> str:
    """Where the server listens."""
    directory = Path(os.environ[DIRECTORY])
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = directory / "sockets"
        if not known.exists():
            template = Server(directory / "template")
            template.create()
            server = Server(directory / "server")
            server.create(template.data)
            server.start()
            (directory / "pid").write_text(str(server.pid))
            _started.append(server)
            known.write_text(str(server.sockets))
        return known.read_text()


@contextmanager
def own_server() -> Iterator[Server]:
    """A server for a test that changes its settings, or ends it. It may run as another user, who must reach its data:
    so these are in no directory of pytest."""
    _sockets()
    server = Server(Path(tempfile.mkdtemp(prefix="holdfast-postgres-own-")))
    server.create(Path(os.environ[DIRECTORY]) / "template" / "data")
    try:
        server.start()
        yield server
    finally:
        server.remove()


def url(database: str = "postgres", user: str = "postgres") -> str:
    """The address of a database of the server."""
    return f"postgresql://{user}@/{database}?host={_sockets()}"


def execute(text: str, database: str = "postgres", user: str = "postgres") -> None:
    """Run a statement on its own."""
    with psycopg.connect(url(database, user), autocommit=True) as connection:
        connection.execute(text.encode())


def new_database(options: str = "") -> str:
    """The name of an empty database."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    execute(f"CREATE DATABASE {name} {options}")
    return name


@cache
def own_database() -> str:
    """The database of this test process."""
    return new_database()


def new_cell() -> int:
    """The number of a cell that this process has not used yet."""
    return next(_numbers)
