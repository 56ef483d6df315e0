"""An open RocksDB and everything that refers to it, in one place, so that dropping it closes the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rocksdict import AccessType, Cache, ColumnFamily, Rdict, WriteBatch

from holdfast.core.records import Table
from holdfast.store.rocks_errors import translate
from holdfast.store.rocks_log import SyncedMark
from holdfast.store.rocks_sweep import Sweeper
from holdfast.store.rocks_tuning import FAMILIES, FAMILY_CHANGES, FAMILY_OF, database_options, family_options

_EPOCH_FAMILY = "state"
_EPOCH_KEY = b"\xffepoch"  # no table has the number 255


class Handles:
    """The open database. `failed` is called with an error on a background thread. `sparing`: while the disk has little
    room, of which `free_bytes` says how much, nothing is compacted that does not fit."""

    def __init__(
        self,
        path: Path,
        synced: Path,
        cache_bytes: int,
        write_buffer_bytes: int,
        *,
        create: bool,
        failed: Callable[[Exception], object],
        skip_damaged: bool = False,
        sparing: bool = False,
        free_bytes: Callable[[], int],
    ) -> None:
        # The directory's FORMAT is written last, so where it is missing there can be no tables. If there are, RocksDB
        # must report what else is missing instead of creating new ones beside them.
        create = create and not any(path.glob("*.sst"))
        self._cache = Cache(cache_bytes)
        options = {name: family_options(name, write_buffer_bytes, self._cache, sparing=sparing) for name in FAMILIES}
        database = database_options(write_buffer_bytes, create=create, skip_damaged=skip_damaged)
        self.db = Rdict(str(path), database, options)
        named = {name: self.db.get_column_family(name) for name in FAMILIES}
        for name, changes in FAMILY_CHANGES.items():
            named[name].set_options(changes)
        handles = {name: self.db.get_column_family_handle(name) for name in FAMILIES}
        # Lists by table number: looking one up costs a third of hashing a member of an enum.
        homes = [(n, FAMILY_OF.get(n, _EPOCH_FAMILY)) for n in range(max(FAMILY_OF) + 1)]  # some numbers are no table's
        self.families: list[tuple[bytes, Rdict]] = [(bytes([n]), named[name]) for n, name in homes]
        self.homes: list[tuple[bytes, ColumnFamily]] = [(bytes([n]), handles[name]) for n, name in homes]
        self.sweeper = Sweeper(self.db, named, failed, free_bytes, sparing=sparing)
        self._synced = SyncedMark(synced)
        self._named = named
        self._epoch_home: ColumnFamily | None = handles[_EPOCH_FAMILY]

    def stored_epoch(self) -> int:
        """The newest epoch that was acquired, 0 if none was."""
        stored: bytes | None = self._named[_EPOCH_FAMILY].get(_EPOCH_KEY)
        return int.from_bytes(stored, "big") if stored else 0

    def epoch_batch(self, epoch: int) -> WriteBatch:
        """The write that stores an epoch."""
        batch = WriteBatch(raw_mode=True)
        batch.put(_EPOCH_KEY, epoch.to_bytes(8, "big"), self._epoch_home)
        return batch

    def sync(self) -> None:
        """Flush the log to the disk, and remember how far. The GIL is not held meanwhile."""
        change = self.db.latest_sequence_number()
        self.db.flush_wal(True)
        self._synced.write(change)

    def memory_bytes(self) -> dict[str, int]:
        """What the block cache and the memtables take."""
        tables = [family.property_int_value("rocksdb.size-all-mem-tables") or 0 for family in self._named.values()]
        return {"blocks": self._cache.get_usage(), "write_buffers": sum(tables)}

    def unwritten_bytes(self) -> int:
        """What is in memory and in the log, and in no table yet."""
        return sum(family.property_int_value("rocksdb.cur-size-all-mem-tables") or 0 for family in self._named.values())

    def flush(self) -> None:
        """Write the memtables to tables, and wait for it. The GIL is not held meanwhile."""
        for family in self._named.values():
            family.flush(True)

    def close(self) -> Exception | None:
        """Sync, flush and close. The first problem is returned, not raised: everything is released all the same.

        A running sweep is cancelled; RocksDB then refuses the flush, which is no loss, since the log is synced.
        """
        problem: Exception | None = None
        try:
            self.db.flush_wal(True)
        except Exception as error:  # noqa: BLE001 - the binding raises nothing more specific
            problem = error.with_traceback(None)
        self._synced.close()
        cut_short = self.sweeper.stop()
        self.homes.clear()
        self.families.clear()
        self._epoch_home = None
        for database in (*self._named.values(), self.db):
            try:
                database.close()
            except Exception as error:  # noqa: BLE001 - the binding raises nothing more specific
                if problem is None and not cut_short:
                    problem = error.with_traceback(None)
        return problem


@contextmanager
def read_only(path: Path) -> Iterator[tuple[Rdict, dict[str, Rdict]]]:
    """The database and its families, opened for reading only: nothing on the disk is changed."""
    cache = Cache(0)
    options = {name: family_options(name, 0, cache) for name in FAMILIES}
    db = Rdict(str(path), database_options(0, create=False), options, access_type=AccessType.read_only())
    families = {name: db.get_column_family(name) for name in FAMILIES}
    try:
        yield db, families
    finally:
        for opened in (*families.values(), db):
            opened.close()


def readable_changes(path: Path) -> int:
    """The number of the last change that can be read."""
    with read_only(path) as (db, _):
        return db.latest_sequence_number()


def read_copied(copy: Path, table: Table, key: bytes) -> bytes | None:
    """A record of a table that has no packs, in what `copy_to` has made."""
    try:
        with read_only(copy / "db") as (_, families):
            value: bytes | None = families[FAMILY_OF[table]].get(bytes([table]) + key)
    except Exception as error:  # noqa: BLE001 - the binding raises nothing more specific
        failure = translate(error, copy, opening=True)
    else:
        return value
    raise failure
