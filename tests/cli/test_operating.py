"""`holdfast tail`, `move`, `consumer disconnect` and `group move`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.client import SyncClient
from holdfast.errors import StreamEnded
from holdfast.testing import Broker
from tests.cli.conftest import Shell
from tests.waiting import PATIENCE_SECONDS, until_sync

HOLDFAST = Path(sys.executable).parent / "holdfast"


def payloads(shell: Shell, queue: str) -> list[object]:
    return [each.get("payload", each.get("text")) for each in shell.json("browse", queue, "--all")]


# --- tail -----------------------------------------------------------------------------------------------------------


def test_tail_shows_what_comes_and_what_was_consumed_immediately(shell: Shell, client: SyncClient) -> None:
    client.create_queue("orders", {"partitions": 2})
    client.send_many("orders", [{"n": n} for n in range(4)])
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    process = subprocess.Popen(
        [HOLDFAST, "--url", shell.url, "tail", "orders", "-o", "jsonl"], stdout=subprocess.PIPE, env=clean, text=True
    )
    assert process.stdout is not None
    try:
        assert sorted(json.loads(process.stdout.readline())["payload"]["n"] for _ in range(4)) == [0, 1, 2, 3]
        sent = client.send("orders", {"n": 4})
        while messages := client.receive("orders", limit=5, wait="0s"):
            for message in messages:
                message.ack()
        assert client.queue("orders").depth == 0
        shown = json.loads(process.stdout.readline())
        assert (shown["id"], shown["payload"]) == (sent.id, {"n": 4})
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
        process.stdout.close()


def test_tail_shows_the_last_ones_and_changes_nothing(shell: Shell, client: SyncClient) -> None:
    client.create_queue("orders", {"partitions": 1})
    client.send_many("orders", [f"m{n}\x1b[2J" for n in range(5)])
    lines = shell.done("tail", "orders", "-n", "2", "--no-follow").stdout.splitlines()
    assert [line.split()[-1] for line in lines] == ["m3\\x1b[2J", "m4\\x1b[2J"]
    assert client.stats("orders").groups == []
    assert shell.run("tail", "none", "--no-follow").exit_code == 1


# --- move -----------------------------------------------------------------------------------------------------------


def test_move_takes_what_matches_to_another_queue(shell: Shell, client: SyncClient) -> None:
    client.create_queue("slow")
    for tenant in ("a", "b", "a"):
        client.send("orders", tenant, properties={"tenant": tenant})
    shown = shell.done("move", "orders", "--to", "slow", "-p", "tenant=a", "--dry-run")
    assert "Would move 2 messages of orders to slow." in shown.stderr
    assert len(payloads(shell, "orders")) == 3
    moved = json.loads(shell.done("move", "orders", "--to", "slow", "-p", "tenant=a", "-y", "-o", "json").stdout)
    assert (moved["state"], moved["moved"], moved["to"]) == ("done", 2, "slow")
    assert (payloads(shell, "orders"), payloads(shell, "slow")) == (["b"], ["a", "a"])
    assert "Moved 1 message of orders to slow." in shell.done("move", "orders", "--to", "slow", "-y").stderr
    assert "No messages of orders match." in shell.done("move", "orders", "--to", "slow", "-y").stderr
    jobs = shell.json("move", "orders", "--jobs")
    assert [(job["to"], job["moved"]) for job in jobs] == [("slow", 1), ("slow", 2)]
    table = shell.done("move", "orders", "--jobs").stdout.splitlines()
    assert table[0].split() == ["id", "state", "moved", "matched", "skipped", "to", "started", "problem"]


def test_a_move_that_cannot_be_says_why_and_moves_nothing(shell: Shell, client: SyncClient) -> None:
    client.send("orders", "x")
    assert "--to QUEUE" in shell.run("move", "orders").stderr
    assert "NAME=VALUE" in shell.run("move", "orders", "--to", "slow", "-p", "tenant").stderr
    for to, code in (("misspelt", "queue_not_found"), ("orders", "invalid_argument")):
        refused = shell.run("move", "orders", "--to", to, "-y")
        assert (refused.exit_code, f"[{code}]" in refused.stderr) == (1, True), refused.stderr
    assert payloads(shell, "orders") == ["x"]
    assert [queue.name for queue in client.queues()] == ["orders"]


def test_a_move_can_be_left_to_the_server_and_cancelled(shell: Shell, client: SyncClient) -> None:
    client.create_queue("slow", {"max_depth": 1})
    client.send_many("orders", ["x", "y", "z"])
    job = shell.done("move", "orders", "--to", "slow", "-y", "--background").stdout.strip()
    until_sync(lambda: client.operations.move_progress("orders", job).moved == 1)
    assert "it moved 1 message." in shell.done("move", "orders", "--cancel", job).stderr
    assert client.operations.move_progress("orders", job).state == "cancelled"
    assert (client.queue("orders").depth, client.queue("slow").depth) == (2, 1)


# --- consumer disconnect --------------------------------------------------------------------------------------------


def test_disconnect_ends_a_stream_and_says_why(shell: Shell, client: SyncClient, broker: Broker) -> None:
    client.create_queue("orders")
    ended: list[str] = []

    def read() -> None:
        import httpx

        url = f"{broker.url}/api/v1/queues/orders/stream"
        params = {"consumer": "worker-1", "group": "g"}
        with httpx.stream("POST", url, params=params, timeout=PATIENCE_SECONDS) as response:
            ended.extend(line for line in response.iter_lines() if '"end"' in line)

    reader = threading.Thread(target=read)
    reader.start()
    until_sync(lambda: client.consumers("orders").consumers)
    [consumer] = client.consumers("orders").consumers
    shown = shell.done("consumer", "disconnect", "orders", consumer.name, "--dry-run")
    assert "Would end 1 connection" in shown.stderr
    assert shell.run("consumer", "disconnect", "orders", consumer.name, "-g", "other", "-y").exit_code == 1
    done = json.loads(shell.done("consumer", "disconnect", "orders", consumer.name, "-y", "-o", "json").stdout)
    assert done == {"queue": "orders", "consumer": consumer.name, "disconnected": 1}
    reader.join(PATIENCE_SECONDS)
    assert json.loads(ended[0])["end"]["code"] == StreamEnded.code
    again = shell.run("consumer", "disconnect", "orders", consumer.name, "-y")
    assert (again.exit_code, "[consumer_not_found]" in again.stderr) == (1, True)


# --- group move -----------------------------------------------------------------------------------------------------


@pytest.fixture
def log(client: SyncClient, shell: Shell) -> str:
    client.create_queue("orders", {"partitions": 1})
    client.create_group("orders", "audit", kind="cursor")
    return "orders"


def test_a_cursor_group_is_moved_forward(shell: Shell, client: SyncClient, log: str) -> None:
    client.send_many(log, [str(n) for n in range(6)])
    since = client.operations.range(log, 0, 3).messages[0].enqueued_at
    dry = shell.done("queue", "group", "move", log, "audit", "--sequence", "3", "--dry-run")
    assert "Would move group audit of orders past 2 messages." in dry.stderr
    assert shell.json("queue", "group", "move", log, "audit", "--sequence", "3", "-y") == [
        {"partition": 0, "from": 1, "to": 3}
    ]
    assert client.operations.ends(log, "audit")[0].committed == 2
    behind = shell.run("queue", "group", "move", log, "audit", "--sequence", "2", "-y")
    assert (behind.exit_code, "moves forward only" in behind.stderr) == (1, True)
    past = shell.run("queue", "group", "move", log, "audit", "--sequence", "8", "-y")
    assert (past.exit_code, "is at most 7" in past.stderr) == (1, True)
    shell.done("queue", "group", "move", log, "audit", "--since", since, "-y")
    assert client.operations.ends(log, "audit")[0].committed == 2, "it has passed that already"
    shell.done("queue", "group", "move", log, "audit", "--to-end", "-y")
    assert client.operations.ends(log, "audit")[0].committed == 6
    client.send(log, "next")
    assert client.stats(log).groups[0].lag == 1


def test_a_leasing_group_has_no_position(shell: Shell, client: SyncClient) -> None:
    client.create_group("orders", "workers")
    refused = shell.run("queue", "group", "move", "orders", "workers", "--to-end", "-y")
    assert (refused.exit_code, "[wrong_group_kind]" in refused.stderr) == (1, True)
    assert "one of --to-end" in shell.run("queue", "group", "move", "orders", "workers", "-y").stderr
