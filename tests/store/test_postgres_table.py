"""The records of a cell in PostgreSQL: every sentence of store/remote/table.py, with a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue

import psycopg
import pytest

from holdfast.core.effects import Read
from holdfast.core.records import Table
from holdfast.errors import StoreError
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.table import PostgresTable
from holdfast.store.remote.table import BatchPosition, BatchRefused, Change, Disconnected
from tests import postgres
from tests.waiting import PATIENCE_SECONDS

Outcome = Disconnected | BatchRefused | StoreError | None


@pytest.fixture
def cell() -> int:
    return postgres.new_cell()


@pytest.fixture
def table(cell: int) -> Iterator[PostgresTable]:
    table = open_table(cell)
    yield table
    table.close()


def open_table(cell: int) -> PostgresTable:
    return PostgresTable(Database(postgres.url(postgres.own_database()), cell))


def change(*keys: bytes, value: bytes = b"v") -> Change:
    return Change([], [], [(Table.READY, key, value) for key in keys])


def commit(table: PostgresTable, epoch: int, before: int, what: Change) -> Outcome:
    outcomes: SimpleQueue[Outcome] = SimpleQueue()
    table.commit(epoch, before, before + 1, what, outcomes.put)
    return outcomes.get(timeout=PATIENCE_SECONDS)


def keys_in(table: PostgresTable) -> list[bytes]:
    [rows] = table.read([Read(Table.READY, b"", b"\xff", 1000)], PATIENCE_SECONDS)
    assert isinstance(rows, list)
    return [key for key, _ in rows]


def end_sessions(cell: int, role: str) -> int:
    """Cut the connections of a cell, as a network or an operator may. Returns how many there were. Cells of other test
    processes, in other databases of the server, have the same numbers."""
    with psycopg.connect(postgres.url(postgres.own_database()), autocommit=True) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE %s",
            [f"holdfast:{cell}:%:{role}"],
        ).fetchall()
    return len(ended)


def test_a_batch_is_stored_with_its_number(table: PostgresTable) -> None:
    epoch, batch = table.acquire()
    assert (epoch, batch) == (1, 0)
    assert commit(table, epoch, 0, change(b"a", b"")) is None
    assert keys_in(table) == [b"", b"a"]
    assert table.position() == BatchPosition(1, 1)
    what = Change(
        [(Table.READY, b"a", b"c")], [(Table.READY, b"")], [(Table.READY, b"b", b"2"), (Table.META, b"m", b"")]
    )
    assert commit(table, epoch, 1, what) is None
    reads = [Read(Table.META, b"m"), Read(Table.READY, b"b"), Read(Table.READY, b"a"), Read(Table.JOURNAL, b"m")]
    assert table.read(reads, PATIENCE_SECONDS) == [b"", b"2", None, None]
    assert table.read([], PATIENCE_SECONDS) == []


def test_several_batches_under_way_are_answered_in_order(table: PostgresTable) -> None:
    epoch, _ = table.acquire()
    outcomes: SimpleQueue[tuple[int, Outcome]] = SimpleQueue()
    for number in range(20):

        def done(outcome: Outcome, number: int = number) -> None:
            outcomes.put((number, outcome))

        table.commit(epoch, number, number + 1, change(b"%02d" % number), done)
    assert [outcomes.get(timeout=PATIENCE_SECONDS) for _ in range(20)] == [(number, None) for number in range(20)]
    assert len(keys_in(table)) == 20


def test_a_batch_that_does_not_follow_the_last_is_refused_with_what_is_stored(table: PostgresTable) -> None:
    epoch, _ = table.acquire()
    assert commit(table, epoch, 0, change(b"a")) is None
    for wrong_epoch, before in ((epoch, 0), (epoch, 2), (epoch + 1, 1), (epoch - 1, 1)):
        outcome = commit(table, wrong_epoch, before, change(b"b"))
        assert isinstance(outcome, BatchRefused)
        assert outcome.position == BatchPosition(epoch, 1)
    assert keys_in(table) == [b"a"]


def test_after_a_batch_that_failed_those_behind_it_fail(table: PostgresTable) -> None:
    epoch, _ = table.acquire()
    outcomes: SimpleQueue[Outcome] = SimpleQueue()
    for before in (1, 2, 3):
        table.commit(epoch, before, before + 1, change(b"k"), outcomes.put)
    assert all(isinstance(outcomes.get(timeout=PATIENCE_SECONDS), BatchRefused) for _ in range(3))
    assert keys_in(table) == []


def test_a_successor_fences_the_owner_before_it(table: PostgresTable, cell: int) -> None:
    old, _ = table.acquire()
    assert commit(table, old, 0, change(b"a")) is None
    other = open_table(cell)
    try:
        new, batch = other.acquire()
        assert (new, batch) == (old + 1, 1)
        outcome = commit(table, old, 1, change(b"b"))
        if isinstance(outcome, Disconnected):  # it was told before it noticed that its session had been ended
            outcome = commit(table, old, 1, change(b"b"))
        assert isinstance(outcome, BatchRefused)
        assert outcome.position == BatchPosition(new, 1)
        assert table.position() == BatchPosition(new, 1)
        assert commit(other, new, 1, change(b"c")) is None, "asking for the position ends no session of another process"
        assert keys_in(table) == [b"a", b"c"]
    finally:
        other.close()


def test_an_owner_that_hangs_inside_a_transaction_is_ended(table: PostgresTable, cell: int) -> None:
    table.acquire()
    url = postgres.url(postgres.own_database())
    with psycopg.connect(url, application_name=f"holdfast:{cell}:other:writer") as hanging:
        hanging.execute(f"UPDATE holdfast_{cell:04d}.cell SET batch = batch + 1")
        assert table.acquire() == BatchPosition(2, 0)
        with pytest.raises(psycopg.errors.AdminShutdown):
            hanging.execute("SELECT 1")


def test_a_batch_whose_connection_breaks_is_found_by_its_number(table: PostgresTable, cell: int) -> None:
    epoch, _ = table.acquire()
    assert commit(table, epoch, 0, change(b"a")) is None
    schema = f"holdfast_{cell:04d}"
    outcomes: SimpleQueue[Outcome] = SimpleQueue()
    with psycopg.connect(postgres.url(postgres.own_database())) as blocking:
        blocking.execute(f"LOCK TABLE {schema}.records")
        table.commit(epoch, 1, 2, change(b"b"), outcomes.put)
        wait_until_it_waits(cell)
        assert end_sessions(cell, "writer") == 1
        assert isinstance(outcomes.get(timeout=PATIENCE_SECONDS), Disconnected)
    assert table.position() == BatchPosition(epoch, 1), "nothing of it was stored"
    assert commit(table, epoch, 1, change(b"b")) is None
    assert keys_in(table) == [b"a", b"b"]


def wait_until_it_waits(cell: int) -> None:
    with psycopg.connect(postgres.url(postgres.own_database()), autocommit=True) as connection:
        while not connection.execute(
            "SELECT 1 FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE %s AND wait_event_type = 'Lock'",
            [f"holdfast:{cell}:%:writer"],
        ).fetchone():
            pass


def test_asking_for_the_position_ends_what_is_under_way(table: PostgresTable, cell: int) -> None:
    epoch, _ = table.acquire()
    outcomes: SimpleQueue[Outcome] = SimpleQueue()
    with psycopg.connect(postgres.url(postgres.own_database())) as blocking:
        blocking.execute(f"LOCK TABLE holdfast_{cell:04d}.records")
        table.commit(epoch, 0, 1, change(b"a"), outcomes.put)
        wait_until_it_waits(cell)
        assert table.position() == BatchPosition(epoch, 0)
        assert isinstance(outcomes.get(timeout=PATIENCE_SECONDS), Disconnected)
    assert keys_in(table) == []


def test_an_idle_connection_that_was_cut_is_replaced(table: PostgresTable, cell: int) -> None:
    epoch, _ = table.acquire()
    assert commit(table, epoch, 0, change(b"a")) is None
    assert keys_in(table) == [b"a"]
    assert end_sessions(cell, "reader") == 1
    assert keys_in(table) == [b"a"]
    assert end_sessions(cell, "writer") == 1
    outcome = commit(table, epoch, 1, change(b"b"))
    if isinstance(outcome, Disconnected):
        assert table.position() == BatchPosition(epoch, 1)
        outcome = commit(table, epoch, 1, change(b"b"))
    assert outcome is None


def test_a_read_that_takes_too_long_is_told_and_the_next_one_works(table: PostgresTable, cell: int) -> None:
    epoch, _ = table.acquire()
    assert commit(table, epoch, 0, change(b"a")) is None
    with psycopg.connect(postgres.url(postgres.own_database())) as blocking:
        blocking.execute(f"LOCK TABLE holdfast_{cell:04d}.records")
        with pytest.raises(Disconnected, match="no answer in time"):
            table.read([Read(Table.READY, b"a")], 0.2)
    assert keys_in(table) == [b"a"]


def test_reads_on_other_threads_and_ahead_of_need(table: PostgresTable) -> None:
    epoch, _ = table.acquire()
    assert commit(table, epoch, 0, change(b"a")) is None
    found: SimpleQueue[object] = SimpleQueue()
    table.read_soon([Read(Table.READY, b"a")], found.put)
    assert found.get(timeout=PATIENCE_SECONDS) == [b"v"]

    def look() -> None:
        with table.reader() as reader:
            found.put(reader.read([Read(Table.READY, b"", b"z", 5)], PATIENCE_SECONDS))

    thread = threading.Thread(target=look)
    thread.start()
    assert found.get(timeout=PATIENCE_SECONDS) == [[(b"a", b"v")]]
    thread.join()


def test_a_view_is_of_one_moment(table: PostgresTable) -> None:
    epoch, _ = table.acquire()
    assert commit(table, epoch, 0, change(b"a")) is None
    with table.view() as view:
        assert view.position == BatchPosition(epoch, 1)
        assert commit(table, epoch, 1, Change([], [(Table.READY, b"a")], [(Table.READY, b"b", b"v")])) is None
        assert view.read([Read(Table.READY, b"", b"z", 5), Read(Table.READY, b"b")], PATIENCE_SECONDS) == [
            [(b"a", b"v")],
            None,
        ]
        assert view.read([], PATIENCE_SECONDS) == []
    assert keys_in(table) == [b"b"]


def test_a_user_without_rights_gets_a_store_error(table: PostgresTable, cell: int) -> None:
    epoch, _ = table.acquire()
    postgres.execute(f"DROP TABLE holdfast_{cell:04d}.records CASCADE", postgres.own_database())
    outcome = commit(table, epoch, 0, change(b"a"))
    assert isinstance(outcome, StoreError)
    assert "tables are not there any more" in str(outcome)
