"""The commands of "Put queues in PostgreSQL", run as they stand there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from holdfast.client import SyncClient
from holdfast.errors import ServerUnreachable
from tests import postgres
from tests.ports import reserved_port
from tests.waiting import PATIENCE_SECONDS

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "put-queues-in-postgresql.md"
ADDRESS = "postgresql://holdfast:change%20me@db.example.com/queues?sslmode=verify-full"


@contextmanager
def serving(command: list[str], environment: dict[str, str], url: str) -> Iterator[None]:
    """A server in a process of its own, which stops in order at the end."""
    with subprocess.Popen(command, env=environment) as process:
        try:
            until = time.monotonic() + PATIENCE_SECONDS
            while True:
                try:
                    with SyncClient(url) as client:
                        client.health()
                    break
                except ServerUnreachable:
                    assert process.poll() is None
                    assert time.monotonic() < until
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0


def test_the_commands_of_the_guide_work(tmp_path: Path) -> None:
    blocks = re.findall(r"```(sh|sql)\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (_, _install), (_, create), (_, start), (_, send), (_, look) = blocks
    for statement in filter(str.strip, create.split(";")):
        postgres.execute(statement)
    assert ADDRESS in start
    store_url = postgres.url("queues", "holdfast")
    http = reserved_port()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOLDFAST_HTTP_LISTEN": f"127.0.0.1:{http}",
        "HOLDFAST_MQTT_LISTEN": f"127.0.0.1:{reserved_port()}",
        "HOLDFAST_URL": f"http://127.0.0.1:{http}",
        "NO_COLOR": "1",
    }
    *exports, doctor, serve = start.replace(ADDRESS, store_url).strip().splitlines()
    script = "\n".join(["set -eu", *exports, f"{doctor} || true", "env"])
    said = subprocess.run(
        ["bash", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r"ok\s+store\s+postgres: The database queues on \S+, schema holdfast_0000", said), said
    environment |= dict(line.split("=", 1) for line in said.splitlines() if line.startswith("HOLDFAST_STORE_"))
    with serving([*serve.replace("./data", str(tmp_path / "data")).split()], environment, environment["HOLDFAST_URL"]):
        subprocess.run(["bash", "-c", send], env=environment, check=True, capture_output=True)
        with psycopg.connect(store_url) as connection:
            found = [connection.execute(statement.encode()).fetchall() for statement in look.strip().split(";")[:-1]]
    messages, queues, letters = found
    assert [(row[1], row[2], row[5]) for row in messages] == [("orders", "ready", "invoice 4711")]
    assert ("default", "orders", 1, 0) in queues
    assert letters == []
