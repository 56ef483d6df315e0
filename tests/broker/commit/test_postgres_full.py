"""A database whose disk is full: what it cannot take is refused and said, and everything else goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.broker import cell
from holdfast.broker.node import Node
from holdfast.core.commands import Draft, Settlement
from holdfast.errors import StoreFull
from holdfast.store import Remote, open_store
from tests import postgres
from tests.broker.conftest import config_for, running
from tests.waiting import PATIENCE_SECONDS, until

Q = ("default", "tasks")


@pytest.fixture
def number() -> int:
    return postgres.new_cell()


@pytest.fixture
async def node(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(cell, "RECOVERY_PAUSE_SECONDS", 0.005)
    remote = Remote(postgres.url(postgres.own_database()), number, PATIENCE_SECONDS, PATIENCE_SECONDS)
    async with running(config_for(tmp_path), open_store("postgres", "", remote=remote)) as node:
        yield node


class Disk:
    """New messages find no room, as where the disk of the tables is full: the server says so in the same way."""

    def __init__(self, number: int) -> None:
        self._schema = f"holdfast_{number:04d}"

    def _execute(self, statement: str) -> None:
        postgres.execute(statement, postgres.own_database())

    def fill(self) -> None:
        self._execute(
            f"CREATE FUNCTION {self._schema}.full_disk() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$"
        )
        self._execute(
            f"CREATE TRIGGER full_disk BEFORE INSERT ON {self._schema}.records FOR EACH ROW"
            f" EXECUTE FUNCTION {self._schema}.full_disk()"
        )

    def make_room(self) -> None:
        self._execute(f"DROP FUNCTION IF EXISTS {self._schema}.full_disk CASCADE")


@pytest.fixture
def disk(number: int) -> Iterator[Disk]:
    disk = Disk(number)
    yield disk
    disk.make_room()


async def test_a_full_database_refuses_messages_until_there_is_room(node: Node, disk: Disk) -> None:
    messages = node.messages
    await messages.enqueue(Q, [Draft(b"before")])
    [leased] = await messages.lease(Q, "g")
    await node.cell.commit.durable()
    engine = node.cell.engine
    disk.fill()
    with pytest.raises(StoreFull):
        await messages.enqueue(Q, [Draft(b"too much")])
    await until(lambda: node.cell.open_engine not in (None, engine))
    [settled] = await messages.settle(Q, "g", [Settlement(leased.message.id, leased.token)])
    assert settled is None, "what frees room goes on"
    disk.make_room()
    await messages.enqueue(Q, [Draft(b"after")])
    assert [one.message.payload for one in await messages.lease(Q, "g", 10)] == [b"after"]
