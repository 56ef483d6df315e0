"""The guides for who comes from something else: their code is that of the examples, which run."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from kombu.connection import Connection

from holdfast.client import SyncClient, draft
from holdfast.testing import Broker
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def run(url: str, *command: str | Path) -> list[str]:
    """The lines that a program printed."""
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "HOLDFAST_URL": url},
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def blocks(guide: str) -> list[str]:
    text = (ROOT / "docs" / "how-to" / f"move-from-{guide}.md").read_text()
    return [dedent(block) for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]


def shown_in(example: str, shown: list[str]) -> bool:
    """Whether the lines of these blocks stand in the example."""
    source = {line.strip() for line in (EXAMPLES / f"{example}.py").read_text().splitlines()}
    return [line for block in shown for line in block.splitlines() if line.strip() not in source] == []


def work_off(url: str, module: str) -> list[str]:
    """What workers print; one job at a time, since lines of threads may mix."""
    return run(url, "-m", "holdfast.cli", "worker", "--app-dir", ".", f"{module}:app", "--burst", "--concurrency", "1")


def test_the_guide_from_rabbitmq() -> None:
    theirs, ours = blocks("rabbitmq")
    assert "basic_publish" in theirs
    assert shown_in("from_rabbitmq", [ours])
    with Broker(http=True) as broker:
        assert run(broker.url, "from_rabbitmq.py") == ["sent to ann@example.com"]


def test_the_guide_from_sqs() -> None:
    assert shown_in("from_sqs", blocks("sqs"))
    with Broker(http=True) as broker:
        assert run(broker.url, "from_sqs.py") == ["sent to ann@example.com", "sent to bob@example.com"]


def test_the_guide_from_redis_queues() -> None:
    theirs, *ours, from_rq, from_arq = blocks("redis-queues")
    assert "enqueue_job" in theirs
    assert "get_current_job" in from_rq
    assert shown_in("from_redis_queues", ours)
    program = f"import asyncio, from_redis_queues\n{from_arq}\n"
    program += "for _ in range(2): asyncio.run(send_email({'job_id': '7'}, 'bob@example.com'))\n"
    with Broker(http=True) as broker:
        run(broker.url, "from_redis_queues.py")
        run(broker.url, "-c", program)
        assert sorted(work_off(broker.url, "from_redis_queues")) == [
            "sent to ann@example.com: Hello",
            "sent to bob@example.com: Hello",
        ]


def test_the_guide_from_a_jobs_table(tmp_path: Path) -> None:
    assert shown_in("from_jobs_table", blocks("a-jobs-table"))
    path = tmp_path / "shop.db"
    database = sqlite3.connect(path)
    with database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, buyer TEXT)")
        database.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, args TEXT, priority INTEGER, status TEXT)")
        database.executemany(
            "INSERT INTO jobs (args, priority, status) VALUES (?, 128, ?)",
            [('{"to": "ann@example.com"}', "waiting"), ('{"to": "bob@example.com"}', "running")],
        )
    program = "import sqlite3, sys, from_jobs_table as shop\n"
    program += "connection = sqlite3.connect(sys.argv[1])\nshop.place_order(connection, 'cid@example.com')\n"
    with Broker(http=True) as broker:
        assert run(broker.url, "from_jobs_table.py", path) == ["moved 1 jobs"]
        run(broker.url, "-c", program, path)
        run(broker.url, "-m", "holdfast.outbox", f"sqlite:{path}", "--once")
        assert sorted(work_off(broker.url, "from_jobs_table")) == ["sent to ann@example.com", "sent to cid@example.com"]
    assert database.execute("SELECT status FROM jobs").fetchall() == [("running",)], "the old worker has it"
    database.close()


def connecting(**options: Any) -> Any:
    return Connection(**options)  # type: ignore[no-untyped-call]


@pytest.fixture
def other(tmp_path: Path) -> dict[str, Any]:
    """Another broker: one of Kombu's that lives in a directory, seen from several processes."""
    (tmp_path / "other").mkdir()
    folder = str(tmp_path / "other")
    return {"hostname": "filesystem://", "transport_options": {"data_folder_in": folder, "data_folder_out": folder}}


BRIDGE = """
import ast, sys, kombu, bridge
from holdfast.client import SyncClient
with kombu.Connection(**ast.literal_eval(sys.argv[2])) as other, SyncClient() as client:
    print(getattr(bridge, sys.argv[1])(other, client, "emails", True))
"""


def test_the_bridge_moves_messages_in_and_out(other: dict[str, Any]) -> None:
    with Broker(http=True) as broker, SyncClient(broker.url) as client, connecting(**other) as connection:
        client.create_queue("emails", {"partitions": 1})
        theirs = connection.SimpleQueue("emails")
        fields = {"content_type": "text/plain", "content_encoding": "utf-8", "serializer": None}
        for number in range(3):
            theirs.put(f"n{number}", message_id=f"id-{number}", priority=5, headers={"colour": "red"}, **fields)
        assert run(broker.url, "-c", BRIDGE, "take_in", repr(other)) == ["3"]
        received = client.receive("emails", limit=10)
        assert sorted((each.text(), each.message_id, each.priority) for each in received) == [
            (f"n{number}", f"id-{number}", 123) for number in range(3)
        ], "a directory keeps no order"
        assert received[0].properties == {"colour": "red"}
        for each in received:
            each.ack()
        client.send_many("emails", [draft(f"back {number}", properties={"size": "small"}) for number in range(3)])
        assert run(broker.url, "-c", BRIDGE, "give_out", repr(other)) == ["3"]
        back = [theirs.get(timeout=PATIENCE_SECONDS) for _ in range(3)]
        assert sorted(message.body for message in back) in (
            [f"back {n}" for n in range(3)],
            [b"back %d" % n for n in range(3)],
        )
        assert {message.headers["size"] for message in back} == {"small"}
        assert client.stats("emails").depth == 0
        theirs.close()


def test_what_is_moved_in_again_is_not_stored_again(other: dict[str, Any]) -> None:
    """As after a bridge that died between storing and acking."""
    with Broker(http=True) as broker, SyncClient(broker.url) as client, connecting(**other) as connection:
        with connection.SimpleQueue("emails") as theirs:
            for _ in range(2):
                theirs.put("hello", message_id="id-1")
        assert run(broker.url, "-c", BRIDGE, "take_in", repr(other)) == ["2"]
        assert client.stats("emails").depth == 1
