"""The embedded store: RocksDB in one directory, for one process.

How it maps to the contract: `write` is one RocksDB write batch, in its log when the call returns; `sync` flushes that
log to the disk, without the GIL. The directory's lock keeps other processes out, so that the epoch need not be read
from the disk at each write; it is stored under a key that no table has.

store/runs.py keeps runs of records in packs, whose layout is in store/packs.py. Tuning, and what is cheaper as a range
or a pack, is in store/rocks_tuning.py, the open database in store/rocks_handles.py, readers for other threads in
store/rocks_reader.py, removal of garbage in store/rocks_sweep.py, the meaning of errors in store/rocks_errors.py, the
directory in store/directory.py, its formats in store/formats.py, the checks for lost files in store/inventory.py and
for a damaged log in store/rocks_log.py.

Errors are raised outside of the `except` that caught them: a chained error keeps the frames it came through, those keep
iterators, and those keep RocksDB open, so that it could not be opened again.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from uuid import uuid4

import structlog
from rocksdict import Checkpoint, WriteBatch

from holdfast.core.effects import DeleteRun, DeleteUntil, Op, Read
from holdfast.core.records import Table
from holdfast.core.runs import RecordRun
from holdfast.errors import Fenced, StoreCorrupt, StoreError, StoreFull
from holdfast.store import formats, inventory, rocks_log
from holdfast.store.contract import (
    NOTHING_BEHIND,
    Behind,
    ReadDone,
    Reader,
    Rows,
    Synced,
    read_in_place,
    sync_in_place,
)
from holdfast.store.directory import Directory
from holdfast.store.formats import FORMAT, MIGRATIONS, Migration
from holdfast.store.packed_reads import PackedReads
from holdfast.store.reserve import WRITE_BUFFERS_MIN, Reserve
from holdfast.store.rocks_errors import too_many_skipped, translate
from holdfast.store.rocks_handles import Handles, readable_changes
from holdfast.store.rocks_reader import RocksReader
from holdfast.store.rocks_rows import read_rows
from holdfast.store.rocks_sweep import Span
from holdfast.store.rocks_tuning import (
    CACHE_BYTES,
    FAMILY_OF,
    MESSAGE_RANGE_MIN,
    RANGE_MIN,
    RUN_MIN,
    SKIPPED_MAX,
    VIEW_CACHE_BYTES,
    WRITE_BUFFER_BYTES,
)
from holdfast.store.runs import PackIndex, PackReader
from holdfast.units import MIB

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

_OPENING_BYTES = 2 * MIB  # what RocksDB writes beside tables: a manifest, options, its own log


class RocksStore(PackedReads):
    """A store on RocksDB in the directory `path`, which is created if it does not exist. `skip_damaged` reads what is
    left of a damaged log, in which changes are missing: for salvage, not for a broker. `reserve_bytes`: what is kept
    of the disk for the time when it is full; None: what there is."""

    name = "rocks"
    remote = False
    in_flight_max = 1

    def __init__(
        self,
        path: str | Path,
        *,
        cache_bytes: int = CACHE_BYTES,
        write_buffer_bytes: int = WRITE_BUFFER_BYTES,
        reserve_bytes: int | None = None,
        format_number: int = FORMAT,
        migrations: Mapping[int, Migration] = MIGRATIONS,
        skip_damaged: bool = False,
    ) -> None:
        self._cache_bytes = cache_bytes
        self._write_buffer_bytes = write_buffer_bytes
        self._skip_damaged = skip_damaged
        self._handles: Handles | None = None
        self._failure: StoreError | None = None
        self._epoch = 0  # the newest that was acquired
        self._held: int | None = None  # the one that may write; none until it is acquired
        self._copying = threading.Lock()  # the database is not closed during a copy
        self._syncing = threading.Lock()  # nor during a sync on its worker thread
        self._directory = Directory(Path(path))
        self._reserve = Reserve(self._directory.reserve, reserve_bytes)
        self._room_low = max(self._reserve.size_bytes, WRITE_BUFFERS_MIN * write_buffer_bytes)
        try:
            self._ensure_room()
            found = self._directory.format()
            if found is not None:
                formats.check(self._directory.path, found, format_number, migrations)
            inventory.check(self._directory)
            shutil.rmtree(self._directory.views, ignore_errors=True)  # of a process that was killed
            if found is not None:
                self._recover_log()
            inventory.drop(self._directory)
            if found is not None:
                self._bring_forward(found, format_number, migrations)
            self._open(create=found is None)
            if found is None:
                self._complete(format_number)
            self._reserve.make(self._directory.room())
        except BaseException:
            self._tear_down()
            self._directory.release()
            raise

    # --- opening and closing ----------------------------------------------------------------------------------------

    def _bring_forward(self, found: int, known: int, migrations: Mapping[int, Migration]) -> None:
        for number in range(found, known):
            self._migrate(migrations[number])
            self._directory.set_format(number + 1)

    def _migrate(self, migration: Migration) -> None:
        try:
            migration(self._directory.data)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - the binding raises nothing more specific
            failure = translate(error, self._directory.path, opening=True)
        else:
            return
        raise failure

    def _recover_log(self) -> None:
        """Raise StoreCorrupt if RocksDB would drop changes that were synced."""
        if self._skip_damaged:
            return
        logs = rocks_log.logs_of(self._directory.data)
        synced = rocks_log.read_mark(self._directory.synced)
        if not logs and synced is None:
            return
        try:
            readable = readable_changes(self._directory.data)
        except Exception as error:  # noqa: BLE001 - the binding raises nothing more specific
            failure = translate(error, self._directory.path, opening=True)
        else:
            torn = rocks_log.recover(logs, readable, synced)
            if torn is not None:
                log.warning("the log was torn and is cut", log=str(torn.log), offset=torn.offset, change=torn.changes)
            return
        raise failure

    def _open(self, *, create: bool) -> None:
        before = inventory.BeforeOpening(self._directory.data)
        try:
            self._handles = Handles(
                self._directory.data,
                self._directory.synced,
                self._cache_bytes,
                self._write_buffer_bytes,
                create=create,
                failed=self._fail,
                skip_damaged=self._skip_damaged,
                sparing=self._room() < self._room_low,
                free_bytes=self._directory.room,
            )
            self._epoch = self._handles.stored_epoch()
            self._runs = PackIndex(self._scan, self._get)
        except Exception as error:  # noqa: BLE001 - the binding raises nothing more specific
            failure = translate(error, self._directory.path, opening=True)
        else:
            return
        before.remove_others()
        raise failure

    def _complete(self, format_number: int) -> None:
        """Finish the creation of a store, unless it has records: then FORMAT was lost, and is not guessed."""
        if self._opened().db.latest_sequence_number() > 0:
            raise StoreCorrupt(path=self._directory.path, problem="its FORMAT file is missing")
        self._directory.set_format(format_number)

    def reopen(self) -> None:
        """Drop everything in memory and read what is stored. RocksDB accepts no write after a failed one until then.

        RocksDB first writes what it recovers from the log to new, synced tables: so what a failed fsync left only in
        the page cache is durable, or reported as failed, before anything relies on it.
        """
        self._not_closed()
        if isinstance(self._failure, StoreFull):
            self._give_up_reserve()  # though there be room now: what filled the disk did not fit, and is written again
            if self._handles is not None and self._directory.room() < self._handles.unwritten_bytes() + _OPENING_BYTES:
                raise _again(self._failure)  # it would not open again: leave it as it is, open for reading
        self._tear_down()
        self._ensure_room()
        try:
            self._recover_log()
            self._open(create=False)
        except StoreError as error:
            self._fail(error)
            raise
        self._failure = None

    def _ensure_room(self) -> None:
        """Before opening, which writes what is in the log to tables: give up the reserve if there is no room for it."""
        logs = sum(path.stat().st_size for path in rocks_log.logs_of(self._directory.data))
        if self._directory.room() < logs + _OPENING_BYTES:
            self._give_up_reserve()

    def _give_up_reserve(self) -> None:
        if self._reserve.give_up():
            log.error(
                "the disk is full: the reserve is given up, so that what is stored can be leased and settled",
                path=str(self._directory.path),
            )

    def close(self) -> None:
        """Sync, flush the memtables so that the next opening has no log to read, and release the directory."""
        if self._handles is None and self._failure is None:
            return
        clean = self._failure is None
        problem = self._tear_down()
        self._failure = None
        try:
            if clean and problem is not None:
                raise translate(problem, self._directory.path)
            if clean:
                inventory.write(self._directory)
        finally:
            self._directory.release()

    def _tear_down(self) -> Exception | None:
        with self._copying, self._syncing:
            handles, self._handles = self._handles, None
            self._held = None
            return handles.close() if handles is not None else None

    def _not_closed(self) -> None:
        if self._handles is None and self._failure is None:
            raise StoreError(problem="it was closed")

    def _opened(self) -> Handles:
        if self._handles is not None:
            return self._handles
        self._not_closed()
        assert self._failure is not None
        raise _again(self._failure)

    def _writable(self) -> Handles:
        if self._failure is not None:
            raise _again(self._failure)
        return self._handles or self._opened()

    def _fail(self, error: Exception) -> StoreError:
        """Remember that the outcome of the last write is unknown: nothing is written until `reopen` has succeeded."""
        self._failure = error if isinstance(error, StoreError) else translate(error, self._directory.path)
        return self._failure

    # --- writing ----------------------------------------------------------------------------------------------------

    def acquire(self) -> int:
        """Take over: a new epoch, stored and synced."""
        epoch = self._epoch + 1
        self._commit(self._opened().epoch_batch(epoch))
        self.sync()
        self._epoch = self._held = epoch
        return epoch

    def write(self, epoch: int, ops: Sequence[Op]) -> None:
        """Apply `ops` in order, all or none."""
        if epoch != self._held:
            self._opened()
            raise Fenced(epoch=epoch, current=self._epoch)
        try:
            batch = self._batch(ops)
        except BaseException:
            self._runs.forget()  # what the batch changed of the packs is not written
            raise
        self._commit(batch)

    def _batch(self, ops: Sequence[Op]) -> WriteBatch:
        """The hot path: one loop, one call into RocksDB an operation."""
        handles, runs = self._opened(), self._runs
        homes = handles.homes
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        delete = batch.delete
        packed = runs.packed
        last = Table.META
        prefix, home = homes[last]
        in_runs = False  # whether records of this table may be in packs
        runs.begin()
        for table, key, value in ops:
            if table is not last:  # operations on one table mostly follow each other
                last = table
                prefix, home = homes[table]
                in_runs = table in packed
            if isinstance(value, bytes):
                if in_runs:
                    runs.leave(table, key)
                put(prefix + key, value, home)
            elif value is None:
                if not in_runs or not runs.leave(table, key):
                    delete(prefix + key, home)
            else:
                self._put_many(batch, table, key, value)
                in_runs = table in packed
        if runs.changed:
            self._put_direct(batch, runs.settle())
        return batch

    def _put_many(
        self, batch: WriteBatch, table: Table, key: bytes, value: RecordRun | DeleteRun | DeleteUntil
    ) -> None:
        """Operations on many records: as packs and ranges where that is cheaper than one by one."""
        runs = self._runs
        packed = table in runs.packed
        prefix, home = self._opened().homes[table]
        if isinstance(value, RecordRun):
            if len(value) >= RUN_MIN:
                self._put_direct(batch, runs.join(table, key, value))
                return
            for one, content in value.rows(key):
                batch.put(prefix + one, content, home)
            return
        if isinstance(value, DeleteRun):
            if len(value) < (MESSAGE_RANGE_MIN if table is Table.MESSAGES else RANGE_MIN):
                for one in value.keys(key):
                    if not packed or not runs.leave(table, one):
                        batch.delete(prefix + one, home)
                return
            value = value.until(key)
        if key < value.end:
            self._put_direct(batch, [(table, key, value)])
            if packed:
                self._put_direct(batch, runs.leave_range(table, key, value.end))

    def _put_direct(self, batch: WriteBatch, ops: Iterable[Op]) -> None:
        """Add operations that concern no pack."""
        handles = self._opened()
        for table, key, value in ops:
            prefix, home = handles.homes[table]
            if isinstance(value, bytes):
                batch.put(prefix + key, value, home)
            elif value is None:
                batch.delete(prefix + key, home)
            elif isinstance(value, DeleteUntil) and key < value.end:
                batch.delete_range(prefix + key, prefix + value.end, home)
                handles.sweeper.emptied(Span(FAMILY_OF[table], prefix + key, prefix + value.end))

    def _commit(self, batch: WriteBatch) -> None:
        db = self._writable().db
        try:
            db.write(batch)
        except Exception as error:  # noqa: BLE001 - the binding raises nothing more specific
            failure = self._fail(error)
        else:
            return
        raise failure

    def sync(self) -> None:
        """Flush RocksDB's log to the disk, without holding the GIL."""
        with self._syncing:
            handles = self._writable()
            try:
                handles.sync()
            except Exception as error:  # noqa: BLE001 - the binding raises nothing more specific
                failure = self._fail(error)
            else:
                return
        raise failure

    def sync_soon(self, done: Synced) -> None:
        """Syncs in place."""
        sync_in_place(self, done)

    def behind(self) -> Behind:
        """A local store is never behind."""
        self._opened()
        return NOTHING_BEHIND

    # --- reading ----------------------------------------------------------------------------------------------------

    def reader(self) -> AbstractContextManager[Reader]:
        """A reader for another thread: RocksDB's reads are safe on any."""
        self._opened()
        return nullcontext(RocksReader(self))

    @contextmanager
    def view(self) -> Iterator[Reader]:
        """A copy, which is opened. (The iterators of the binding's snapshots, 0.3.29, read what is stored now.)"""
        self._opened()
        self._directory.views.mkdir(exist_ok=True)
        copy = self._directory.views / uuid4().hex
        try:
            self.copy_to(copy)
            opened = RocksStore(copy, cache_bytes=VIEW_CACHE_BYTES)
            try:
                yield opened
            finally:
                opened.close()
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def read_soon(self, reads: Sequence[Read], done: ReadDone) -> None:
        """Reads in place."""
        read_in_place(self, reads, done)

    @property
    def opening(self) -> object:
        """Another one after each `reopen`."""
        return self._runs

    @property
    def packed(self) -> Collection[Table]:
        """Tables whose records may be in packs."""
        return self._runs.packed

    def _packs_of(self, table: Table) -> PackReader | None:
        if self._handles is None:
            self._opened()
        return self._runs if table in self._runs.packed else None

    def get_single(self, table: Table, key: bytes) -> bytes | None:
        """A record that is in no pack, on any thread."""
        prefix, family = self._opened().families[table]
        try:
            value: bytes | None = family.get(prefix + key)
        except Exception as error:  # noqa: BLE001 - the binding raises nothing more specific
            failure = translate(error, self._directory.path)
        else:
            return value
        raise failure

    def get_many_single(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """Records that are in no pack, on any thread."""
        prefix, family = self._opened().families[table]
        try:
            values: list[bytes | None] = family.get([prefix + key for key in keys]) or []
        except Exception as error:  # noqa: BLE001 - the binding raises nothing more specific
            failure = translate(error, self._directory.path)
        else:
            return values
        raise failure

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """The records under `keys`, in their order; neighbours share the work of finding their block."""
        values = self.get_many_single(table, keys)
        if table in self._runs.packed:
            get = self._runs.get  # after the single records: nothing is written meanwhile
            return [get(table, key) if value is None else value for key, value in zip(keys, values, strict=True)]
        return values

    def scan_single(
        self, table: Table, start: bytes, end: bytes, limit: int, reverse: bool = False, *, once: bool = False
    ) -> Rows:
        """Records of a range that are in no pack, on any thread. `once`: they will not be read again, and are not put
        into the block cache. Those of the journal never are."""
        handles = self._opened()
        prefix, family = handles.families[table]
        lower, upper = prefix + start, prefix + end
        sweeper = handles.sweeper
        fill_cache = not once and table is not Table.JOURNAL
        skipped_max = 0 if sweeper.running else SKIPPED_MAX
        try:
            return read_rows(family.iter, lower, upper, limit, reverse, skipped_max, fill_cache)
        except Exception as error:  # noqa: BLE001 - the binding raises nothing more specific
            failure = None if too_many_skipped(error) else translate(error, self._directory.path)
        if failure is not None:
            raise failure
        # The range has many tombstones: skip all of them, and have them removed.
        try:
            rows = read_rows(family.iter, lower, upper, limit, reverse, 0, fill_cache)
        except Exception as error:  # noqa: BLE001 - the binding raises nothing more specific
            failure = translate(error, self._directory.path)
        else:
            seen = prefix + rows[-1][0] if rows else lower if reverse else upper
            span = Span(FAMILY_OF[table], seen, upper) if reverse else Span(FAMILY_OF[table], lower, seen)
            sweeper.emptied(span)
            sweeper.start(everything=False)
            return rows
        raise failure

    _get = get_single
    _get_many = get_many_single
    _scan = scan_single

    def _scan_once(self, table: Table, start: bytes, end: bytes, limit: int) -> Rows:
        return self.scan_single(table, start, end, limit, once=True)

    def copy_to(self, path: Path) -> None:
        """A checkpoint: hard links to tables, and what is only in memory as one more table. RocksDB holds the GIL while
        it creates one, so memory is flushed before, which does not: a checkpoint then takes milliseconds."""
        self._writable()
        with self._copying:
            handles = self._opened()
            try:
                path.mkdir(parents=True)
                handles.flush()
                Checkpoint(handles.db).create_checkpoint(str(path / "db"))
                (path / "FORMAT").write_text(f"{FORMAT}\n")
            except Exception as error:  # noqa: BLE001 - the binding raises nothing more specific
                failure = translate(error, path)
            else:
                return
        raise failure

    # --- space ------------------------------------------------------------------------------------------------------

    def reclaim(self, wait: bool = False) -> None:
        """Compact ranges and files with many deleted records, on a thread of its own; `wait` until that is done."""
        sweeper = self._opened().sweeper
        if wait:
            sweeper.wait()
        sweeper.start(everything=True)
        if wait:
            sweeper.wait()

    def room(self) -> int:
        """Bytes free on the file system, without those that the reserve still has to get; below 0 if it cannot have
        them. It gets them here, when there is room."""
        self._not_closed()
        if self._reserve.missing_bytes:
            self._reserve.make(self._directory.room())
        room = self._room()
        handles = self._handles
        if handles is not None:
            low = self._room_low * (2 if handles.sweeper.sparing else 1)  # not to and fro
            handles.sweeper.spare(room < low)
        return room

    def _room(self) -> int:
        return self._directory.room() - self._reserve.missing_bytes

    def memory_bytes(self) -> dict[str, int]:
        """Of the block cache and the memtables."""
        return self._handles.memory_bytes() if self._handles is not None else {}

    def disk_bytes(self) -> int:
        """Bytes that the database's files occupy."""
        self._not_closed()
        return self._directory.occupied()


def _again(failure: StoreError) -> StoreError:
    return type(failure)(**failure.details)
