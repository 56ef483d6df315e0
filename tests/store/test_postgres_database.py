"""Databases that cannot hold queues are refused with what to do; schemas are made once and brought forward."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from holdfast.errors import DatabaseUnreachable, DatabaseUnsuitable, FormatTooOld, FormatUnknown, StoreError
from holdfast.store.formats import FORMAT
from holdfast.store.postgres import schema
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.session import DatabaseSession
from holdfast.store.postgres.statements import STATEMENTS, TABLES
from tests import postgres
from tests.waiting import PATIENCE_SECONDS
from tools.postgres import Server


@pytest.fixture
def cell() -> int:
    return postgres.new_cell()


@pytest.fixture
def database(cell: int) -> Database:
    return Database(postgres.url(postgres.own_database()), cell)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres.own_server() as server:
        yield server


@pytest.fixture
def poor() -> Iterator[str]:
    """A user who may connect, and nothing else."""
    name = f"poor_{postgres.new_database()}"
    postgres.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    postgres.execute(f"DROP OWNED BY {name}", postgres.own_database())
    postgres.execute(f"DROP ROLE {name}")


@pytest.fixture
def session() -> Iterator[DatabaseSession]:
    with closing(DatabaseSession(postgres.url(postgres.own_database()), {}, PATIENCE_SECONDS)) as session:
        yield session


def version_of(database: Database) -> int:
    with closing(DatabaseSession(postgres.url(postgres.own_database()), {}, PATIENCE_SECONDS)) as session:
        return schema.found_version(session, database.schema)


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("setting", "value"), [("fsync", "off"), ("full_page_writes", "off")])
def test_a_database_that_a_power_cut_may_destroy_is_refused(server: Server, setting: str, value: str) -> None:
    database = Database(server.url())
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET {setting} = {value}".encode())
        connection.execute("SELECT pg_reload_conf()")
        while connection.execute(f"SHOW {setting}".encode()).fetchone() != (value,):
            pass
    with pytest.raises(DatabaseUnsuitable, match=rf"{setting} is {value}.*Set {setting} = on"):
        database.prepare()
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM RESET {setting}".encode())
        connection.execute("SELECT pg_reload_conf()")
        while connection.execute(f"SHOW {setting}".encode()).fetchone() != ("on",):
            pass
    assert database.look() == []


def test_a_database_of_another_encoding_is_refused() -> None:
    name = postgres.new_database("ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(DatabaseUnsuitable, match=r"its encoding is LATIN1.*CREATE DATABASE … ENCODING 'UTF8'"):
        Database(postgres.url(name)).prepare()


def test_a_user_who_may_not_make_the_schema_is_told_which_right_is_missing(poor: str, cell: int) -> None:
    with pytest.raises(DatabaseUnsuitable, match=r"permission denied.*GRANT CREATE ON DATABASE"):
        Database(postgres.url(postgres.own_database(), poor), cell).prepare()


def test_a_user_who_may_not_write_the_tables_is_told_so(poor: str, database: Database, cell: int) -> None:
    database.prepare()
    name = postgres.own_database()
    postgres.execute(f"GRANT USAGE ON SCHEMA {database.schema} TO {poor}", name)
    with pytest.raises(DatabaseUnsuitable, match=r"its user lacks a right .permission denied.*the owner of Holdfast's"):
        Database(postgres.url(name, poor), cell).prepare()


def test_a_server_that_is_not_there_is_told_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnreachable, match=rf"queues on {tmp_path} cannot be reached: .*store.url"):
        Database(f"postgresql://me:very-secret@/queues?host={tmp_path}").prepare()


@pytest.mark.parametrize("url", ["nonsense", "postgresql://h/d?never=1"])
def test_an_address_that_is_none_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(DatabaseUnsuitable, match=r"postgresql://user:password@host/database"):
        Database(url)


def test_a_password_is_in_no_error() -> None:
    url = postgres.url("no_such_database").replace("postgres@", "postgres:very-secret@")
    with pytest.raises(StoreError) as refused:
        Database(url).prepare()
    assert "very-secret" not in str(refused.value)
    assert "no_such_database" in str(refused.value)


@contextmanager
def pooler(target: str) -> Iterator[str]:
    """Passes bytes to and fro, and as poolers do gives every client a number of its own for its session."""
    path = psycopg.conninfo.conninfo_to_dict(target)["host"]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client, socket.socket(socket.AF_UNIX) as upstream:
                upstream.connect(f"{path}/.s.PGSQL.5432")
                back = threading.Thread(target=answer, args=(upstream, client))
                back.start()
                pump(client, upstream)
                back.join()

        def answer(upstream: socket.socket, client: socket.socket) -> None:
            head = b""
            while b"K\x00\x00\x00" not in head or len(head) < head.index(b"K\x00\x00\x00") + 9:
                head += upstream.recv(65536)
            at = head.index(b"K\x00\x00\x00") + 5
            client.sendall(head[:at] + (1).to_bytes(4, "big") + head[at + 4 :])
            pump(upstream, client)

        def pump(source: socket.socket, target: socket.socket) -> None:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"postgresql://postgres@127.0.0.1:{listener.getsockname()[1]}/postgres?sslmode=disable&gssencmode=disable"
        thread.join(PATIENCE_SECONDS)


def test_a_pooler_is_refused() -> None:
    with (
        pooler(postgres.url()) as url,
        pytest.raises(DatabaseUnsuitable, match=r"there is a pooler between.*name PostgreSQL itself"),
    ):
        Database(url).prepare()


# --- the schema -----------------------------------------------------------------------------------------------------


def test_a_schema_is_made_once_whoever_starts_at_the_same_time(cell: int) -> None:
    url = postgres.url(postgres.own_database())
    with ThreadPoolExecutor() as threads:
        warnings = list(threads.map(lambda _: Database(url, cell).prepare(), range(4)))
    assert warnings == [[]] * 4
    assert version_of(Database(url, cell)) == max(schema.steps())


def test_an_older_schema_is_brought_forward_step_by_step(
    database: Database, session: DatabaseSession, cell: int
) -> None:
    steps = schema.steps()
    schema.prepare(session, cell, {1: steps[1]})
    assert version_of(database) == 1
    assert database.look() == []
    assert version_of(database) == 1, "looking changes nothing"
    database.prepare()
    assert version_of(database) == max(steps)


def test_a_step_that_fails_changes_nothing(database: Database, session: DatabaseSession, cell: int) -> None:
    database.prepare()
    newest = max(schema.steps())
    bad = {**schema.steps(), newest + 1: "CREATE TABLE half (a int); SELECT 1/0"}
    with pytest.raises(Exception, match=r"division by zero"):
        schema.prepare(session, cell, bad)
    assert version_of(database) == newest


def test_a_newer_schema_is_refused(database: Database) -> None:
    database.prepare()
    name = postgres.own_database()
    postgres.execute(f"COMMENT ON SCHEMA {database.schema} IS 'holdfast schema 99'", name)
    for look in (database.prepare, database.look):
        with pytest.raises(FormatUnknown, match=r"was written in format 99.*Install a newer Holdfast"):
            look()


@pytest.mark.parametrize(("change", "refusal"), [(1, FormatUnknown), (-1, FormatTooOld)])
def test_records_of_another_format_are_refused(database: Database, change: int, refusal: type[StoreError]) -> None:
    database.prepare()
    postgres.execute(f"UPDATE {database.schema}.cell SET format = {FORMAT + change}", postgres.own_database())
    with pytest.raises(refusal):
        database.prepare()


def test_a_schema_of_somebody_else_is_left_alone(database: Database) -> None:
    postgres.execute(f"CREATE SCHEMA {database.schema}", postgres.own_database())
    with pytest.raises(DatabaseUnsuitable, match=r"it was not made by Holdfast"):
        database.prepare()


def test_every_table_has_every_statement() -> None:
    kinds = {name.removesuffix(f"_{table}") for table in TABLES for name in STATEMENTS if name.endswith(f"_{table}")}
    assert kinds == {"put", "delete", "delete_ranges", "get", "scan"}
    single = {"acquire", "connected", "fence", "position", "terminate"}
    assert set(STATEMENTS) == {f"{kind}_{table}" for kind in kinds for table in TABLES} | single
