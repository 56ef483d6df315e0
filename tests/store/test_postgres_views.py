"""The views for people show what `browse` shows, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.settings import JournalSettings, NodeSettings
from holdfast.core.commands import DeliveryStatus, Draft, Settlement, Verb
from holdfast.core.records import Extra, Message
from holdfast.store import Remote, open_store
from holdfast.units import HOUR
from tests import postgres
from tests.waiting import PATIENCE_SECONDS

Row = dict[str, Any]
ORDERS, BILLS = ("default", "orders"), ("shop", "bills/ö")
COLUMNS = (
    *("id", "namespace", "topic", "status", "priority", "payload"),
    *("deliver_after", "lease_expires_at", "created_at"),
)


def instant(microseconds: int) -> datetime | None:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds) if microseconds else None


@pytest.fixture
def database() -> str:
    return postgres.new_database()


@pytest.fixture
async def node(tmp_path: Path, database: str) -> AsyncIterator[Node]:
    config = Config(node=NodeSettings(data_dir=tmp_path), journal=JournalSettings(segment_age=HOUR))
    remote = Remote(postgres.url(database), 0, PATIENCE_SECONDS, PATIENCE_SECONDS)
    store = open_store("postgres", tmp_path, remote=remote)
    node = Node(config, store)
    await node.start()
    yield node
    await node.stop()
    store.close()


def rows(database: str, view: str) -> list[Row]:
    with psycopg.connect(postgres.url(database), row_factory=dict_row) as connection:
        order = "namespace, topic" if view == "queues" else "namespace, topic, id"
        return connection.execute(f"SELECT * FROM holdfast_0000.{view} ORDER BY {order}").fetchall()


def expected(name: tuple[str, str], message: Message, statuses: list[DeliveryStatus]) -> Row:
    """The row of a message that is in one group, or in none yet."""
    status = statuses[0] if statuses else None
    state = status.state if status else "scheduled" if message.deliver_at else "ready"
    waits = status.ready_at if status and status.ready_at else message.deliver_at
    values = (
        *(message.id, *name, str(state), message.priority, message.payload, instant(waits)),
        *(instant(status.deadline if status and state == "leased" else 0), instant(message.enqueued_at)),
    )
    return dict(zip(COLUMNS, values, strict=True))


async def browsed(node: Node, name: tuple[str, str]) -> list[Row]:
    page = await node.inspection.browse(name, 1_000, "")
    assert not page.cursor
    return sorted((expected(name, message, status) for _, message, status in page.messages), key=lambda row: row["id"])


async def fill(node: Node) -> None:
    """Messages in packs and single, plain and with everything, in each state."""
    await node.queues.create(ORDERS, {"partitions": 2, "retry.initial_backoff": "1h", "retry.max_backoff": "1h"})
    await node.queues.create(("shop", "graves"), {"dlq.enabled": False})
    await node.queues.create(BILLS, {"partitions": 1, "dlq.queue": "graves"})
    await node.messages.enqueue(ORDERS, [Draft(b"plain %d" % number) for number in range(120)])
    await node.messages.enqueue(ORDERS, [Draft(b"", priority=201), Draft(bytes(range(256)) * 40, priority=209)])
    await node.messages.enqueue(ORDERS, [Draft(b"later", deliver_at=node.clock() + HOUR) for _ in range(3)])
    extra = Extra(key="käse", properties=(("a", "b\0c"),), correlation_data=b"\xff", content_type="text/plain")
    await node.messages.enqueue(BILLS, [Draft(b"%d" % number, extra=extra) for number in range(40)])
    await settle(node, ORDERS, 40, Verb.ACK)
    await settle(node, ORDERS, 4, Verb.NACK)
    await settle(node, ORDERS, 3, Verb.REJECT)
    await node.messages.lease(ORDERS, "default", 20)
    extended = await node.messages.lease(ORDERS, "default", 1)
    end = Settlement(
        extended[0].message.id, extended[0].token, Verb.EXTEND, partition=extended[0].partition, timeout=HOUR
    )
    [deadline] = await node.messages.settle(ORDERS, "default", [end])
    assert isinstance(deadline, int)
    await settle(node, BILLS, 1, Verb.REJECT)


async def settle(node: Node, name: tuple[str, str], count: int, verb: Verb) -> None:
    leased = await node.messages.lease(name, "default", count)
    assert len(leased) == count
    settlements = [
        Settlement(one.message.id, one.token, verb, partition=one.partition, error="no such customer") for one in leased
    ]
    assert await node.messages.settle(name, "default", settlements) == [None] * count


async def test_messages_are_what_browse_shows(node: Node, database: str) -> None:
    await fill(node)
    found: dict[tuple[str, str], list[Row]] = {(row["namespace"], row["topic"]): [] for row in rows(database, "queues")}
    for row in rows(database, "messages"):
        found[row["namespace"], row["topic"]].append({name: row[name] for name in COLUMNS})
    assert set(found) == {ORDERS, BILLS, ("shop", "graves"), ("default", "dlq/orders")}
    for name, shown in found.items():
        assert shown == await browsed(node, name), name
    states = {row["status"] for row in found[ORDERS]}
    assert states == {"ready", "leased", "scheduled"}


async def test_queues_and_dead_letters(node: Node, database: str) -> None:
    await fill(node)
    shown = {(row["namespace"], row["topic"]): row for row in rows(database, "queues")}
    for name, row in shown.items():
        stats = await node.inspection.stats(name)
        assert row["ready"] + row["scheduled"] == stats.depth
        assert row["scheduled"] == (3 if name == ORDERS else 0)
        assert row["payload_bytes"] == stats.size_bytes
    assert shown[ORDERS]["partitions"] == 2
    assert shown[BILLS]["config"]["dlq"]["queue"] == "graves"
    assert shown[BILLS]["config"]["retry"]["multiplier"] == 2.0
    letters = rows(database, "dead_letters")
    assert [(row["namespace"], row["topic"]) for row in letters] == [("default", "dlq/orders")] * 3 + [
        ("shop", "graves")
    ]
    assert {(row["reason"], row["error"], row["attempts"]) for row in letters} == {("rejected", "no such customer", 1)}
    assert {row["source_topic"] for row in letters} == {"orders", "bills/ö"}
    assert all(row["source_id"] < row["id"] and row["source_group"] == "default" for row in letters)
    assert all(row["first_attempt_at"] <= row["last_attempt_at"] <= row["created_at"] for row in letters)
