"""RocksDB on a small disk that is full: it opens, settling goes on, and what is deleted makes room again."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from holdfast.core.effects import Op
from holdfast.core.records import Table
from holdfast.errors import InvalidConfig, StoreFull, StoreUnavailable
from holdfast.store import RocksStore, open_store
from holdfast.units import MIB
from tests.power.small_disk import SmallDisk, small_disk
from tests.waiting import until_sync

DISK_BYTES = 48 * MIB
WRITE_BUFFER_BYTES = MIB
RESERVE_BYTES = 12 * MIB


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    holding = small_disk(tmp_path / "disk", DISK_BYTES)
    try:
        disk = holding.__enter__()
    except OSError as error:
        pytest.skip(f"no file system of its own can be had here: {error}")
    yield disk
    holding.__exit__(None, None, None)


@contextmanager
def opened(path: Path, reserve_bytes: int = RESERVE_BYTES) -> Iterator[RocksStore]:
    store = RocksStore(path, write_buffer_bytes=WRITE_BUFFER_BYTES, reserve_bytes=reserve_bytes)
    try:
        yield store
    finally:
        store.close()


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


class Writer:
    """Writes as a node does: after a failure it opens the store again, as often as that takes."""

    def __init__(self, store: RocksStore) -> None:
        self._store = store
        self._epoch = store.acquire()

    def write(self, ops: Sequence[Op]) -> None:
        self._store.write(self._epoch, ops)
        self._store.sync()

    def recover(self) -> bool:
        try:
            self._store.reopen()
            self._epoch = self._store.acquire()
        except StoreFull:
            return False
        return True

    def insist(self, ops: Sequence[Op]) -> None:
        def written() -> bool:
            try:
                self.write(ops)
            except StoreFull:
                self.recover()
                return False
            return True

        until_sync(written)


@pytest.mark.parametrize("value_bytes", [2_000, 100_000], ids=["in tables", "in blobs"])
def test_what_is_deleted_from_a_full_disk_makes_room_again(disk: SmallDisk, value_bytes: int) -> None:
    """What is stored is more than the reserve, so that no compaction of all of it fits."""
    with opened(disk.path / "store") as store:
        writer = Writer(store)
        stored = write_until_full(writer, value_bytes)
        assert stored * value_bytes > RESERVE_BYTES
        assert store.room() < 0 or (disk.path / "store" / "reserve").exists()
        for number in range(0, stored, 10):
            writer.insist([(Table.MESSAGES, key(one), None) for one in range(number, number + 10)])
        store.reclaim(wait=True)
        until_sync(lambda: store.room() > DISK_BYTES - RESERVE_BYTES - 6 * MIB)
        writer.insist([(Table.MESSAGES, key(0), os.urandom(value_bytes))])


def write_until_full(writer: Writer, value_bytes: int) -> int:
    for number in range(100_000):
        try:
            writer.write([(Table.MESSAGES, key(number), os.urandom(value_bytes))])
        except StoreFull:
            return number + 1
    raise AssertionError("the disk has not become full")


def test_what_is_stored_can_be_settled_when_others_fill_the_disk(disk: SmallDisk) -> None:
    with opened(disk.path / "store") as store:
        writer = Writer(store)
        for number in range(80):
            writer.write([(Table.MESSAGES, key(number), os.urandom(100_000))])
        disk.fill()
        for number in range(80):
            writer.insist([(Table.DELIVERIES, key(number), os.urandom(100)), (Table.MESSAGES, key(number), None)])
        assert store.scan(Table.MESSAGES, b"", b"\xff" * 9, 100) == []


def events(path: Path) -> str:
    """What RocksDB says that it did since it was opened."""
    return (path / "db" / "LOG").read_text()


def test_nothing_is_compacted_by_itself_while_the_disk_is_nearly_full(disk: SmallDisk) -> None:
    path = disk.path / "store"
    filler = disk.path / "filler"
    filler.write_bytes(b"x" * (DISK_BYTES - RESERVE_BYTES - 11 * MIB))
    with opened(path) as store:
        assert store.room() < RESERVE_BYTES
        writer = Writer(store)
        for _ in range(12):  # each fills a table in memory, and four tables of a level would be compacted
            writer.write([(Table.MESSAGES, key(number), os.urandom(1_000)) for number in range(600)])
        until_sync(lambda: events(path).count("flush_finished") >= 6)
        assert "compaction_started" not in events(path)
        filler.unlink()

        def compacted() -> bool:
            return store.room() > RESERVE_BYTES and "compaction_started" in events(path)

        until_sync(compacted)


@contextmanager
def files_no_larger_than(size_bytes: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def tables(path: Path) -> set[str]:
    return {file.name for file in (path / "db").iterdir() if file.suffix in {".sst", ".blob"}}


def test_an_opening_that_fails_leaves_no_tables(tmp_path: Path) -> None:
    """The first table that it writes from the log is small, the second one fails."""
    store = RocksStore(tmp_path / "running", write_buffer_bytes=16 * MIB)
    writer = Writer(store)
    for number in range(2_400):
        writer.write([(Table.MESSAGES, key(number), b"x" * 1_000 if number < 1_200 else os.urandom(1_000))])
    shutil.copytree(tmp_path / "running", tmp_path / "killed")
    store.close()
    with files_no_larger_than(200_000):
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="File too large"), opened(tmp_path / "killed"):
                pass
    assert tables(tmp_path / "killed") == set()
    with opened(tmp_path / "killed") as killed:
        assert len(killed.scan(Table.MESSAGES, b"", b"\xff" * 9, 10_000)) == 2_400


def test_after_a_write_without_room_the_reserve_is_given_up_whatever_room_there_is_by_then(disk: SmallDisk) -> None:
    """What filled the disk was a file that RocksDB has deleted meanwhile, and will write again."""
    with opened(disk.path / "store") as store:
        writer = Writer(store)
        filler = disk.fill()
        with pytest.raises(StoreFull):
            writer.write([(Table.MESSAGES, key(1), os.urandom(100_000))])
        filler.unlink()
        with capture_logs() as logs:
            assert writer.recover()
        assert "the reserve is given up" in logs[0]["event"]
        assert store.room() > 0
        assert (disk.path / "store" / "reserve").exists(), "there is room for it again"


def test_a_reserve_that_would_not_be_enough_to_open_the_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"2 × store\.write_buffer_bytes"):
        open_store("rocks", tmp_path, write_buffer_bytes=4 * MIB, reserve_bytes=8 * MIB - 1)
    open_store("rocks", tmp_path, write_buffer_bytes=4 * MIB, reserve_bytes=8 * MIB).close()
    open_store("rocks", tmp_path, write_buffer_bytes=4 * MIB, reserve_bytes=0).close()
