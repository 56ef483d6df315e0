"""Starts `holdfast serve` again and again without importing everything anew: `python -m tests.crash.zygote`.

A line on standard input, `LOG ARGUMENT ...`, starts a server that logs to LOG; its process id is the answer. Two dozen
restarts would else be half a minute of imports.
"""

from __future__ import annotations

import os
import signal
import sys

from holdfast import server  # noqa: F401 - to have it in memory already
from holdfast.cli.main import main
from holdfast.store import rocks  # noqa: F401 - the same


def serve(log: str, arguments: list[str]) -> int:
    """The child: `holdfast serve` with its own standard streams."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.argv = ["holdfast", "serve", *arguments]
    main()
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are nobody's burden
    for line in sys.stdin:
        log, *arguments = line.split()
        child = os.fork()
        if not child:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os._exit(serve(log, arguments))
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
