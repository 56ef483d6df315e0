"""An outbox in real databases, and its relay to a real server."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.client import Retries, SyncClient, draft, worker
from holdfast.errors import InvalidArgument, ServerUnreachable
from holdfast.outbox import Outbox, Relay, outbox_item
from holdfast.outbox.connected import ConnectedTable, connected_table
from holdfast.testing import Broker
from tests import postgres
from tests.ports import reserved_port
from tests.waiting import PATIENCE_SECONDS


class Database:
    """Where the outbox is."""

    def __init__(self, url: str, connect: Callable[[], Any]) -> None:
        self.url = url
        self.connect = connect
        self.outbox = Outbox()
        self.table: ConnectedTable = connected_table(url, self.outbox)
        self.table.create()

    def rows(self) -> list[tuple[str, str | None]]:
        connection = self.connect()
        cursor = connection.cursor()
        cursor.execute("SELECT queue, problem FROM holdfast_outbox ORDER BY id")
        found = [tuple(row) for row in cursor.fetchall()]
        connection.close()
        return found


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        path = tmp_path / "shop.db"
        database = Database(f"sqlite:{path}", lambda: sqlite3.connect(path))
    else:
        url = postgres.url(postgres.new_database())
        database = Database(url, lambda: psycopg.connect(url))
    yield database
    database.table.close()


@pytest.fixture
def client() -> Iterator[SyncClient]:
    """Its queues have one partition, so that the order of everything is known."""
    with Broker(http=True) as broker, SyncClient(broker.url, retries=Retries(attempts=1)) as client:
        for queue in ("orders", "queue-0", "queue-1"):
            client.create_queue(queue, {"partitions": 1})
        yield client


def payloads(client: SyncClient, queue: str) -> list[object]:
    received = client.receive(queue, limit=100)
    for message in received:
        message.ack()
    return [message.json() for message in received]


def payloads_text(client: SyncClient) -> list[str]:
    received = client.receive("orders", limit=100)
    for message in received:
        message.ack()
    return [message.text() for message in received]


def payloads_soon(client: SyncClient, queue: str) -> list[object]:
    """The first that come."""
    received = client.receive(queue, limit=100, wait=PATIENCE_SECONDS)
    for message in received:
        message.ack()
    return [message.json() for message in received]


def test_what_a_transaction_committed_is_enqueued_in_order_and_what_it_did_not_is_not(
    database: Database, client: SyncClient
) -> None:
    connection = database.connect()
    database.outbox.add(connection, "orders", {"order": 1}, draft({"order": 2}, key="ann"))
    connection.commit()
    database.outbox.add(connection, "orders", {"order": 3})
    connection.rollback()
    relay = Relay(database.table, client)
    assert relay.relay() == 2
    database.outbox.add(connection, "orders", {"order": 4})
    connection.commit()
    assert relay.relay() == 1
    assert relay.relay() == 0
    assert payloads(client, "orders") == [{"order": 1}, {"order": 2}, {"order": 4}]
    assert database.rows() == []
    connection.close()


def test_more_than_one_batch_is_relayed_and_queues_keep_their_order(database: Database, client: SyncClient) -> None:
    connection = database.connect()
    for number in range(25):
        database.outbox.add(connection, f"queue-{number // 3 % 2}", number)
    connection.commit()
    connection.close()
    assert Relay(database.table, client, batch=4).relay() == 25
    for queue in (0, 1):
        expected = [number for number in range(25) if number // 3 % 2 == queue]
        assert payloads(client, f"queue-{queue}") == expected


class Dies(Exception):
    pass


def test_a_relay_that_dies_before_it_removes_what_it_sent_doubles_nothing(
    database: Database, client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = database.connect()
    database.outbox.add(connection, "orders", 1, 2, 3)
    connection.commit()
    connection.close()

    def die(_ids: object) -> None:
        raise Dies

    with monkeypatch.context() as patch:
        patch.setattr(database.table, "remove", die)
        with pytest.raises(Dies):
            Relay(database.table, client).relay()
    assert len(database.rows()) == 3, "they are sent and not removed"
    assert Relay(database.table, client).relay() == 3
    assert payloads(client, "orders") == [1, 2, 3]


def test_a_message_that_no_server_will_take_stays_with_the_reason_and_stops_no_other(
    database: Database, client: SyncClient
) -> None:
    connection = database.connect()
    database.outbox.add(connection, "orders", 1, draft(2, priority=999), 3)
    cursor = connection.cursor()
    cursor.execute("INSERT INTO holdfast_outbox (queue, message) VALUES ('orders', 'no draft')")
    connection.commit()
    assert Relay(database.table, client).relay() == 2
    assert payloads(client, "orders") == [1, 3]
    (first, second) = database.rows()
    assert "priority" in str(first[1])
    assert "no draft of a message" in str(second[1])
    cursor.execute(
        "UPDATE holdfast_outbox SET problem = NULL, message = '{\"payload\": 2}' WHERE problem LIKE '%priority%'"
    )
    connection.commit()
    connection.close()
    assert Relay(database.table, client).relay() == 1
    assert payloads(client, "orders") == [2]


def test_a_queue_that_takes_nothing_holds_up_no_other_and_is_told_of_once(
    database: Database, client: SyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.create_queue("full", {"max_depth": 1, "partitions": 1})
    client.create_group("full", "default")
    connection = database.connect()
    database.outbox.add(connection, "full", 1, 2)
    database.outbox.add(connection, "orders", 3)
    connection.commit()
    connection.close()
    relay = Relay(database.table, client, batch=1)
    with caplog.at_level(logging.WARNING, "holdfast.outbox"):
        assert relay.relay() == 2
        assert relay.relay() == 0
    assert payloads(client, "orders") == [3]
    assert [record.getMessage() for record in caplog.records if "messages for full wait" in record.getMessage()] != []
    assert len(caplog.records) == 1
    assert payloads(client, "full") == [1]
    assert relay.relay() == 1
    assert payloads(client, "full") == [2]


def test_a_server_that_is_away_is_an_error_and_nothing_is_lost(database: Database, client: SyncClient) -> None:
    connection = database.connect()
    database.outbox.add(connection, "orders", 1)
    connection.commit()
    connection.close()
    with (
        SyncClient(f"http://127.0.0.1:{reserved_port()}", retries=Retries(attempts=1)) as nobody,
        pytest.raises(ServerUnreachable),
    ):
        Relay(database.table, nobody).relay()
    assert database.rows() == [("orders", None)]
    assert Relay(database.table, client).relay() == 1


def test_a_delay_counts_from_when_the_message_was_added() -> None:
    before = datetime.now(UTC)
    _, message = outbox_item("orders", draft(1, delay="1h"))
    assert '"delay"' not in message
    due = datetime.fromisoformat(message.partition('"deliver_at":"')[2].partition('"')[0])
    assert 3600 <= (due - before).total_seconds() <= 3600 + PATIENCE_SECONDS


def test_a_transaction_under_way_is_not_seen_and_does_not_hold_up_others(client: SyncClient) -> None:
    url = postgres.url(postgres.new_database())
    table = connected_table(url, Outbox())
    table.create()
    relay = Relay(table, client)
    with psycopg.connect(url) as slow, psycopg.connect(url) as fast:
        Outbox().add(slow, "orders", "slow")
        Outbox().add(fast, "orders", "fast")
        fast.commit()
        assert relay.relay() == 1
        slow.commit()
    assert relay.relay() == 1
    table.close()
    assert payloads_text(client) == ["fast", "slow"]


def test_of_two_relays_of_one_postgresql_one_works(client: SyncClient) -> None:
    url = postgres.url(postgres.new_database())
    first, second = (connected_table(url, Outbox()) for _ in range(2))
    first.create()
    with first.leading() as leads, second.leading() as leads_too:
        assert (leads, leads_too) == (True, False)
    with second.leading() as leads:
        assert leads
    first.close()
    second.close()


def test_a_relay_comes_back_after_its_database_connection_was_cut(client: SyncClient) -> None:
    name = postgres.new_database()
    table = connected_table(postgres.url(name), Outbox())
    table.create()
    relay = Relay(table, client)
    stop = threading.Event()
    running = threading.Thread(target=relay.run, args=(stop, 0.01))
    running.start()
    try:
        postgres.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        with psycopg.connect(postgres.url(name)) as connection:
            Outbox().add(connection, "orders", 1)
        got = payloads_soon(client, "orders")
        assert got == [1]
    finally:
        stop.set()
        running.join()
        table.close()


def test_jobs_are_added_as_drafts_of_their_worker(database: Database, client: SyncClient) -> None:
    @worker("emails")
    def send_email(to: str, text: str) -> None: ...

    connection = database.connect()
    database.outbox.add(connection, send_email.queue, send_email.draft(to="ann@example.com", text="hi"))
    connection.commit()
    connection.close()
    Relay(database.table, client).relay()
    assert payloads(client, "emails") == [{"to": "ann@example.com", "text": "hi"}]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: Outbox("a b"), "plain SQL name"),
        (lambda: Outbox().add(object(), "orders", 1), "give a connection of sqlite3 or psycopg"),  # type: ignore[arg-type]
        (lambda: connected_table("mysql://db", Outbox()), r"is postgresql://… or sqlite:PATH, not 'mysql'"),
        (lambda: outbox_item("", 1), "name the queue"),
    ],
)
def test_what_cannot_be_is_refused(call: Callable[[], object], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        call()


def test_the_command_relays_until_it_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with Broker(http=True) as broker, SyncClient(broker.url) as client:
        command = [sys.executable, "-W", "error", "-m", "holdfast.outbox", f"sqlite:{path}", "--create"]
        environment = {**os.environ, "HOLDFAST_URL": broker.url}
        once = subprocess.run([*command, "--once"], env=environment, capture_output=True, text=True, check=True)
        assert once.stdout == "relayed 0 messages\n"
        with sqlite3.connect(path) as connection:
            Outbox().add(connection, "orders", 1)
        connection.close()
        with subprocess.Popen(command, env=environment) as process:
            got = payloads_soon(client, "orders")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0
        assert got == [1]


def test_a_relay_killed_at_any_moment_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Five kills, while messages are added."""
    path, total = tmp_path / "shop.db", 2_000
    with Broker(http=True) as broker, SyncClient(broker.url) as client:
        table = connected_table(f"sqlite:{path}", Outbox())
        table.create()
        table.close()
        client.create_queue("orders", {"dedup_window": "1h", "partitions": 1})
        client.create_group("orders", "default")
        connection = sqlite3.connect(path, timeout=PATIENCE_SECONDS)
        command = [sys.executable, "-m", "holdfast.outbox", f"sqlite:{path}", "--batch", "7"]
        for first in range(0, total, total // 5):
            for number in range(first, first + total // 5):
                Outbox().add(connection, "orders", number)
            connection.commit()
            enough = client.stats("orders").depth + 50
            with subprocess.Popen(command, env={**os.environ, "HOLDFAST_URL": broker.url}) as process:
                while client.stats("orders").depth < enough:
                    assert process.poll() is None
                process.kill()
        connection.close()
        last = connected_table(f"sqlite:{path}", Outbox())
        Relay(last, client).relay()
        last.close()
        got = [number for _ in range(total // 100) for number in payloads(client, "orders")]
        assert got == list(range(total))
        assert payloads(client, "orders") == []


def test_the_example_stores_orders_and_messages_together(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    orders = """
import sys
from fastapi import HTTPException
import orders_outbox as shop
for item, cents in (("tea", 300), ("gold", 0), ("cup", 900)):
    opened = shop.database()
    connection = next(opened)
    try:
        shop.place(shop.Order(item=item, cents=cents), connection)
    except HTTPException as error:
        print(error.status_code)
"""
    with Broker(http=True) as broker:
        environment = {
            **os.environ,
            "HOLDFAST_URL": broker.url,
            "SHOP_DATABASE": str(path),
            "PYTHONPATH": str(Path(__file__).parents[2] / "examples"),
        }

        def run(*command: str) -> str:
            done = subprocess.run(
                [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert run("-c", orders) == "402\n"
        assert run("-m", "holdfast.outbox", f"sqlite:{path}", "--once") == "relayed 2 messages\n"
        worked = run("-m", "holdfast.cli", "worker", "orders_outbox:workers", "--burst")
    assert sorted(line for line in worked.splitlines() if line.startswith("packed")) == [
        "packed order 1: tea",
        "packed order 2: cup",
    ]
