"""A standby takes over that follows asynchronously, with and without what the primary had confirmed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from holdfast.core.records import Table
from holdfast.errors import StoreWentBack
from holdfast.store import Remote, Store, open_store
from tests import postgres
from tests.waiting import PATIENCE_SECONDS, until
from tools.postgres import Server


class Pair:
    """A primary and its standby. The store is given the addresses of both, as people do."""

    def __init__(self, primary: Server, path: Path) -> None:
        self.primary = primary
        self.standby = primary.base_backup(path / "standby")
        self.standby.start()

    def open(self) -> Store:
        hosts = f"{self.primary.sockets},{self.standby.sockets}"
        url = f"postgresql://postgres@/postgres?host={hosts}&target_session_attrs=read-write"
        return open_store("postgres", "", remote=Remote(url, 0, PATIENCE_SECONDS, PATIENCE_SECONDS))

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.promote()

    async def caught_up(self) -> None:
        """Wait until the standby has all that the primary has."""
        with psycopg.connect(self.primary.url(), autocommit=True) as primary:
            behind = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()"
            await until(lambda: (primary.execute(behind).fetchone() or (0,))[0])


@pytest.fixture
def pair() -> Iterator[Pair]:
    with postgres.own_server() as primary, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        path = Path(directory)
        path.chmod(0o755)  # PostgreSQL runs as another user where tests run as root
        pair = Pair(primary, path)
        yield pair
        pair.standby.remove()


def put(store: Store, epoch: int, key: bytes) -> None:
    store.write(epoch, [(Table.META, key, b"v")])
    store.sync()


async def test_a_standby_that_has_everything_is_written_on(pair: Pair) -> None:
    store = pair.open()
    epoch = store.acquire()
    put(store, epoch, b"before")
    await pair.caught_up()
    pair.fail_over()
    put(store, epoch, b"after")
    assert store.get_many(Table.META, [b"before", b"after"]) == [b"v", b"v"]
    store.close()


async def test_a_standby_that_lacks_confirmed_batches_is_not_written(pair: Pair) -> None:
    store = pair.open()
    epoch = store.acquire()
    put(store, epoch, b"both")
    await pair.caught_up()
    pair.standby.stop()
    put(store, epoch, b"primary only")
    pair.primary.kill()
    pair.standby.start()
    pair.standby.promote()
    with pytest.raises(StoreWentBack):
        put(store, epoch, b"more")
    with pytest.raises(StoreWentBack):
        store.acquire()
    store.close()
