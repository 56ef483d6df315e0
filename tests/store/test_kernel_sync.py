"""A RocksDB store that the kernel syncs: when it may, what it has then, and what happens when it fails."""

from __future__ import annotations

import errno
import fcntl
import os
import select
from pathlib import Path

import pytest

from holdfast.core.effects import DeleteUntil
from holdfast.core.records import Table
from holdfast.errors import StoreFull, StoreUnavailable
from holdfast.store import RocksStore
from holdfast.store.kernel_sync import ring
from holdfast.store.kernel_sync.live_log import LiveLog
from holdfast.store.kernel_sync.rocks import RocksKernelSyncs
from holdfast.store.rocks_log import read_mark
from tests.store.kernel import supported

pytestmark = pytest.mark.skipif(not supported(), reason="the kernel has or allows no asynchronous syncs")

SMALL = 1 << 16  # of a write buffer: a log is left after some hundred records


class Writer:
    """Writes to a store record by record, and has the kernel sync it."""

    def __init__(self, path: Path, write_buffer_bytes: int = 32 << 20) -> None:
        self.path = path
        self.store = RocksStore(path, write_buffer_bytes=write_buffer_bytes)
        self.epoch = self.store.acquire()
        syncs = self.store.kernel_syncs
        assert isinstance(syncs, RocksKernelSyncs)
        self.syncs = syncs
        self.written = 0

    def write(self) -> None:
        self.store.write(self.epoch, [(Table.MESSAGES, self.written.to_bytes(8, "big"), os.urandom(300))])
        self.written += 1

    def leave_log(self) -> None:
        """Have RocksDB go on in another log, and delete this one."""
        self.store.write(self.epoch, [(Table.MESSAGES, b"", DeleteUntil(b"\xff" * 9))])
        self.store.sync()
        self.store.reclaim(wait=True)

    def sync(self) -> bool:
        """False: the kernel cannot."""
        if not self.syncs.begin():
            return False
        select.select([self.syncs.descriptor], [], [])
        assert self.syncs.end()
        return True

    def followed(self) -> list[Path]:
        """Logs that are open for reading: not those that RocksDB writes."""
        found = []
        for entry in Path("/proc/self/fd").iterdir():
            try:
                link, flags = entry.readlink(), fcntl.fcntl(int(entry.name), fcntl.F_GETFL)
            except OSError:  # of another thread, and closed meanwhile
                continue
            if link.is_relative_to(self.path / "db") and ".log" in link.name and flags & os.O_ACCMODE == os.O_RDONLY:
                found.append(link)
        return found


def test_the_kernel_syncs_what_was_written(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for _ in range(3):
        before = read_mark(tmp_path / "synced")
        assert before is not None
        writer.write()
        assert writer.sync()
        assert read_mark(tmp_path / "synced") == before + 1
    assert not writer.syncs.end()  # there is none
    writer.store.close()


def test_what_is_written_meanwhile_is_not_said_to_be_synced(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write()
    before = read_mark(tmp_path / "synced")
    assert before is not None
    assert writer.syncs.begin()
    writer.write()
    select.select([writer.syncs.descriptor], [], [])
    assert writer.syncs.end()
    assert read_mark(tmp_path / "synced") == before + 1
    writer.store.close()


def test_after_a_change_of_logs_the_first_sync_is_the_databases(tmp_path: Path) -> None:
    writer = Writer(tmp_path, SMALL)
    changes = 0
    while changes < 5:
        logs = set(tmp_path.glob("db/*.log"))
        writer.write()
        if set(tmp_path.glob("db/*.log")) <= logs:
            assert writer.sync()
            continue
        changes += 1
        assert not writer.sync()
        assert not writer.sync()
        writer.store.sync()
    writer.store.close()
    opened = RocksStore(tmp_path)
    assert len(opened.scan(Table.MESSAGES, b"", b"\xff", writer.written)) == writer.written
    opened.close()


def test_a_log_that_changes_in_the_background_is_noticed_at_the_next_write(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for _ in range(2000):
        writer.write()
    assert writer.sync()
    writer.leave_log()
    writer.write()
    assert not writer.sync()
    writer.store.sync()
    assert writer.sync()
    writer.store.close()


def test_a_log_that_changes_after_the_databases_sync_is_not_followed(tmp_path: Path) -> None:
    """The kernel is asked for the first time after that."""
    writer = Writer(tmp_path)
    for _ in range(2000):
        writer.write()
    writer.leave_log()
    writer.write()
    assert not writer.sync()
    writer.store.close()


def test_a_deleted_log_does_not_keep_its_space(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for _ in range(2000):
        writer.write()
    assert writer.sync()
    assert len(writer.followed()) == 1
    writer.leave_log()
    writer.store.room()
    assert writer.followed() == []
    writer.write()
    writer.store.sync()
    assert writer.sync()
    assert len(writer.followed()) == 1
    writer.store.close()
    assert writer.followed() == []


@pytest.mark.parametrize(("number", "kind"), [(errno.EIO, StoreUnavailable), (errno.ENOSPC, StoreFull)])
def test_a_sync_that_fails_is_reported_and_overcome_by_reopening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StoreUnavailable]
) -> None:
    writer = Writer(tmp_path)
    writer.write()

    def end(_sync: ring.AsynchronousSync) -> bool:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(ring.AsynchronousSync, "end", end)
        assert writer.syncs.begin()
        with pytest.raises(kind):
            writer.syncs.end()
        assert not writer.syncs.begin()
        with pytest.raises(kind):
            writer.store.sync()
        with pytest.raises(kind):
            writer.write()
    select.select([writer.syncs.descriptor], [], [])
    assert writer.syncs.end()  # of the one that was said to fail
    writer.store.reopen()
    writer.epoch = writer.store.acquire()
    writer.write()
    assert writer.sync()
    writer.store.close()


def test_one_that_ends_after_the_store_was_opened_again_is_reported(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write()
    assert writer.syncs.begin()
    writer.store.reopen()
    marked = read_mark(tmp_path / "synced")
    select.select([writer.syncs.descriptor], [], [])
    assert writer.syncs.end()
    assert read_mark(tmp_path / "synced") == marked
    writer.store.close()


def test_where_the_kernel_takes_no_request_the_database_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path)

    def full(_sync: ring.AsynchronousSync, _number: int, *_arguments: int) -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    for answer in (full, lambda *_: 0):
        with monkeypatch.context() as patched:
            patched.setattr(ring.AsynchronousSync, "_call", answer)
            assert not writer.syncs.begin()
        writer.store.sync()
        writer.write()
        assert writer.sync()  # once: what was not taken is forgotten
        assert not writer.syncs.end()
    writer.store.close()


def test_what_the_kernel_says_of_a_file_is_the_result(tmp_path: Path) -> None:
    sync = ring.AsynchronousSync()
    with (tmp_path / "file").open("wb", buffering=0) as file:
        for _ in range(3):
            file.write(b"some")
            sync.begin(file.fileno())
            select.select([sync.descriptor], [], [])
            assert sync.end()
    sync.begin(sync.descriptor)  # which cannot be synced
    select.select([sync.descriptor], [], [])
    with pytest.raises(OSError, match="Invalid argument"):
        sync.end()
    sync.close()


def test_a_file_that_is_closed_meanwhile_is_synced(tmp_path: Path) -> None:
    """The kernel looks for it later, and must not find another one under its number."""
    sync = ring.AsynchronousSync()
    for _ in range(50):
        file = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
        os.write(file, b"some")
        sync.begin(file)
        os.close(file)
        select.select([sync.descriptor], [], [])
        assert sync.end()
    sync.close()


def test_a_log_that_is_deleted_while_its_size_is_asked_for_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "000001.log").write_bytes(b"some")
    (tmp_path / "000002.log").write_bytes(b"some")
    log = LiveLog(tmp_path)
    found = list(log._logs())
    (tmp_path / "000002.log").unlink()
    monkeypatch.setattr(log, "_logs", lambda: iter(found))
    assert log.before_sync() == 1


def test_where_there_is_no_such_kernel_the_store_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "MACHINES", ())
    store = RocksStore(tmp_path)
    assert store.kernel_syncs is None
    store.close()
