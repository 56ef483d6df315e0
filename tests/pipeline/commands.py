"""`holdfast pipeline` for a shell, run by this process and its Spark: a command that starts its own takes seconds.

A directory for PATH holds a `holdfast` that sends the commands of the pipeline here, with its working directory,
environment and standard streams, and starts the real one for all others.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from threading import Thread
from unittest.mock import patch

from holdfast.cli.main import main

HOLDFAST = Path(sys.executable).parent / "holdfast"

FORWARD = """\
#!{python} -IS
import json, os, socket, sys

if sys.argv[1:2] != ["pipeline"]:
    os.execv({holdfast!r}, [{holdfast!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    request = {{"arguments": sys.argv[1:], "directory": os.getcwd(), "environment": dict(os.environ)}}
    socket.send_fds(server, [b"streams"], [1, 2])
    server.sendall(json.dumps(request).encode())
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.makefile().read()))
"""


@contextmanager
def pipeline_commands(directory: Path) -> Iterator[Path]:
    """Serve commands until the block ends. Yields the directory for PATH. The process must have a Spark session."""
    bin_dir = directory / "bin"
    bin_dir.mkdir()
    address = str(directory / "socket")
    script = bin_dir / "holdfast"
    script.write_text(FORWARD.format(python=sys.executable, holdfast=str(HOLDFAST), address=address))
    script.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        thread = Thread(target=_serve, args=(listener,))
        thread.start()
        try:
            yield bin_dir
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # it was shut down
            return
        with connection:
            _, streams, _, _ = socket.recv_fds(connection, len(b"streams"), 2)
            with connection.makefile() as file:
                request = json.load(file)
            code = _run(request["arguments"], request["directory"], request["environment"], streams)
            connection.sendall(str(code).encode())


def _run(arguments: list[str], directory: str, environment: dict[str, str], streams: list[int]) -> int:
    before = Path.cwd()
    with ExitStack() as stack:
        output, errors = (stack.enter_context(os.fdopen(stream, "w")) for stream in streams)
        stack.enter_context(redirect_stdout(output))
        stack.enter_context(redirect_stderr(errors))
        stack.enter_context(patch.dict(os.environ, environment, clear=True))
        stack.callback(os.chdir, before)
        os.chdir(directory)
        try:
            main(arguments, prog_name="holdfast")
        except SystemExit as done:
            return done.code if isinstance(done.code, int) else int(done.code is not None)
        except Exception:  # noqa: BLE001 - as the interpreter does for a command of its own
            traceback.print_exc()
            return 1
    return 0
