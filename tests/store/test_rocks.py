"""What only the RocksDB store has: a directory, a disk that fills up, damage, garbage, formats."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

from holdfast.core.effects import DeleteUntil
from holdfast.core.records import Table
from holdfast.errors import (
    Fenced,
    FormatUnknown,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreUnavailable,
)
from holdfast.store import RocksStore
from holdfast.store.formats import FORMAT, MIGRATIONS
from holdfast.store.rocks_rows import read_rows
from holdfast.store.rocks_sweep import Span, merged, widened
from holdfast.store.rocks_tuning import FAMILIES

END = b"\xff" * 16
MIB = 1 << 20


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def open_small(path: Path) -> RocksStore:
    return RocksStore(path, write_buffer_bytes=MIB // 4)


def rows(store: RocksStore, table: Table = Table.MESSAGES) -> list[tuple[bytes, bytes]]:
    return store.scan(table, b"", END, 1_000_000)


def fill(path: Path, count: int = 100) -> None:
    store = open_small(path)
    store.write(store.acquire(), [(Table.MESSAGES, key(number), os.urandom(100)) for number in range(count)])
    store.close()


def test_every_table_has_exactly_one_family() -> None:
    assert sorted(table for tables in FAMILIES.values() for table in tables) == sorted(Table)


# --- one process at a time ------------------------------------------------------------------------------------------

HOLD = """
import sys
from holdfast.core.records import Table
from holdfast.store import RocksStore
store = RocksStore(sys.argv[1])
epoch = store.acquire()
number = 0
while True:
    for each in range(number, number + 5):
        store.write(epoch, [(Table.MESSAGES, (2 * each + half).to_bytes(8, "big"), b"v" * 500) for half in (0, 1)])
    number += 5
    store.sync()
    print(number, flush=True)
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that writes to a store, syncs, and says how far it is, on and on."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_second_process_is_refused_with_the_pid_of_the_one_that_has_the_store(tmp_path: Path) -> None:
    with holder(tmp_path / "data") as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(StoreLocked) as refused:
            RocksStore(tmp_path / "data")
    assert f"(pid {process.pid} since " in str(refused.value)
    assert str(tmp_path / "data") in str(refused.value)


def test_a_second_store_in_the_same_process_is_refused_and_does_no_harm(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    with pytest.raises(StoreLocked) as refused:
        RocksStore(tmp_path)
    assert f"(pid {os.getpid()} since " in str(refused.value)
    store.write(store.acquire(), [(Table.META, b"k", b"v")])
    store.close()


ORPHAN = """
import os, sys
from pathlib import Path
from holdfast.store.directory import Directory

Directory(Path(sys.argv[1]))
if os.fork():
    os._exit(0)
sys.stdin.read()  # a process that was being started when its parent died: the lock is its own too until it executes
"""


def test_the_lock_of_a_process_that_has_ended_is_waited_for(tmp_path: Path) -> None:
    """A killed server leaves its lock for a moment to a process that it was about to start."""
    with subprocess.Popen([sys.executable, "-c", ORPHAN, tmp_path], stdin=subprocess.PIPE) as parent:
        parent.wait()
        assert parent.stdin is not None
        Timer(0.3, parent.stdin.close).start()
        RocksStore(tmp_path).close()


def test_reopening_keeps_others_out(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    store.reopen()
    with pytest.raises(StoreLocked):
        RocksStore(tmp_path)
    store.close()
    RocksStore(tmp_path).close()


@pytest.mark.crash
def test_killed_in_the_middle_it_has_all_that_was_synced_and_whole_writes_without_gaps(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        said += process.stdout.read().splitlines()
    synced = int(said[-1])
    store = RocksStore(tmp_path)
    numbers = [int.from_bytes(each, "big") for each, _ in rows(store)]
    assert len(numbers) % 2 == 0
    assert len(numbers) >= 2 * synced
    assert numbers == list(range(len(numbers)))
    store.close()


# --- a directory that cannot be used --------------------------------------------------------------------------------


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StoreReadOnly) as refused:
        RocksStore(tmp_path / "file" / "data")
    assert "Not a directory" in str(refused.value)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Without the right to write everywhere, which root has whatever the permission bits say."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_directory_is_a_clear_error() -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        fill(path)
        (path / "holder").chmod(0o444)
        path.chmod(0o555)
        with unprivileged(), pytest.raises(StoreReadOnly) as refused:
            RocksStore(path)
        path.chmod(0o755)
        (path / "holder").chmod(0o644)
        assert "Permission denied" in str(refused.value)
        store = RocksStore(path)
        assert len(rows(store)) == 100
        store.close()


# --- memory ---------------------------------------------------------------------------------------------------------


def test_what_is_read_once_does_not_fill_the_cache(tmp_path: Path) -> None:
    """The export reads all that passes through the store: it would push out what consumers read."""
    store = RocksStore(tmp_path)
    epoch, noise = store.acquire(), os.urandom(MIB)
    for table in (Table.MESSAGES, Table.JOURNAL):
        store.write(epoch, [(table, key(each), noise[each * 1_000 :][:1_000]) for each in range(1_000)])
    handles = store._handles
    assert handles is not None
    handles.flush()
    assert store.memory_bytes()["write_buffers"] < MIB
    assert [len(run) for run in store.scan_runs(Table.MESSAGES, key(0), 1_000)] == [1_000]
    assert len(store.scan(Table.JOURNAL, key(0), END, 1_000)) == 1_000
    before = store.memory_bytes()["blocks"]
    assert before < 100_000  # indexes and filters of two files
    assert len(store.scan(Table.MESSAGES, key(0), END, 1_000)) == 1_000
    assert store.memory_bytes()["blocks"] > before + 900_000
    store.close()
    assert store.memory_bytes() == {}


# --- a full disk ----------------------------------------------------------------------------------------------------


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """The next log files of RocksDB lead to /dev/full, where every write says that there is no space left."""
    numbers = (each.stem.rpartition("-")[2] for each in (path / "db").iterdir())
    last = max(int(number) for number in numbers if number.isdigit())
    links = [path / "db" / f"{number:06}.log" for number in range(last + 1, last + 100)]
    for link in links:
        link.symlink_to("/dev/full")
    try:
        yield
    finally:
        for link in links:
            link.unlink(missing_ok=True)


def write_until_refused(store: RocksStore, epoch: int) -> tuple[int, StoreUnavailable]:
    """Write and sync records until one is refused: how many were confirmed, and the error."""
    for confirmed in range(0, 100_000, 10):
        try:
            store.write(epoch, [(Table.MESSAGES, key(confirmed + each), os.urandom(1000)) for each in range(10)])
            store.sync()
        except StoreUnavailable as error:
            return confirmed, error
    raise AssertionError("no write was refused")


def test_a_full_disk_is_reported_nothing_is_lost_and_writing_goes_on_when_there_is_room(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    epoch = store.acquire()
    with full_disk(tmp_path):
        confirmed, error = write_until_refused(store, epoch)
        for call in (lambda: store.write(epoch, []), store.sync, store.acquire):
            with pytest.raises(StoreFull):
                call()
        assert len(rows(store)) >= confirmed  # reads go on
    assert isinstance(error, StoreFull)
    assert str(tmp_path) in str(error)
    store.reopen()
    stored = len(rows(store))
    assert stored in (confirmed, confirmed + 10)
    with pytest.raises(Fenced):
        store.write(epoch, [])
    store.write(store.acquire(), [(Table.META, b"k", b"v")])
    store.close()
    store = open_small(tmp_path)
    assert len(rows(store)) == stored
    assert store.get(Table.META, b"k") == b"v"
    store.close()


def test_reopening_while_the_disk_is_still_full_is_refused_and_reading_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_small(tmp_path)
    with full_disk(tmp_path):
        confirmed, _ = write_until_refused(store, store.acquire())
    with monkeypatch.context() as patch:
        patch.setattr(store._directory, "room", lambda: 0)
        with pytest.raises(StoreFull):
            store.reopen()
        assert len(rows(store)) >= confirmed
    store.reopen()
    store.write(store.acquire(), [])
    store.close()


@contextmanager
def files_no_larger_than(size_bytes: int) -> Iterator[None]:
    """Writing beyond that is an I/O error (EFBIG; Python ignores the signal that comes with it)."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_an_error_in_the_background_stops_writes_too(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    epoch = store.acquire()
    store.write(epoch, [(Table.MESSAGES, key(number), os.urandom(500)) for number in range(1000)])
    store.write(epoch, [(Table.MESSAGES, key(0), DeleteUntil(key(500)))])
    store.sync()
    with files_no_larger_than(10_000):
        store.reclaim(wait=True)
    with pytest.raises(StoreUnavailable):
        store.write(epoch, [(Table.META, b"k", b"v")])
    store.reopen()
    assert len(rows(store)) == 500
    store.write(store.acquire(), [(Table.META, b"k", b"v")])
    store.close()


def test_an_io_error_is_reported_and_overcome_by_reopening(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    epoch = store.acquire()
    with files_no_larger_than(50_000):
        confirmed, error = write_until_refused(store, epoch)
        with pytest.raises(StoreUnavailable):
            store.sync()
    assert "File too large" in str(error)
    with files_no_larger_than(1_000):
        with pytest.raises(StoreUnavailable):
            store.reopen()  # recovery writes tables, which are too large as well
        with pytest.raises(StoreUnavailable):
            rows(store)
    store.reopen()
    assert len(rows(store)) in (confirmed, confirmed + 10)
    store.write(store.acquire(), [(Table.META, b"k", b"v")])
    store.sync()
    store.close()


def test_a_store_that_failed_can_be_closed(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    with full_disk(tmp_path):
        write_until_refused(store, store.acquire())
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.get(Table.META, b"k")
    RocksStore(tmp_path).close()


# --- damage ---------------------------------------------------------------------------------------------------------


def flip(path: Path, start: int, count: int) -> None:
    content = bytearray(path.read_bytes())
    content[start : start + count] = bytes(byte ^ 0xFF for byte in content[start : start + count])
    path.write_bytes(content)


def only(path: Path, pattern: str) -> Path:
    return max((path / "db").glob(pattern), key=lambda file: file.stat().st_size)


def test_a_damaged_table_is_reported_by_every_read_that_meets_it(tmp_path: Path) -> None:
    fill(tmp_path)
    flip(only(tmp_path, "*.sst"), 1000, 200)
    store = RocksStore(tmp_path)
    for read in (
        lambda: store.get(Table.MESSAGES, key(50)),
        lambda: store.get_many(Table.MESSAGES, [key(1), key(50)]),
        lambda: store.scan(Table.MESSAGES, b"", END, 1000),
        lambda: store.scan(Table.MESSAGES, b"", END, 1000, reverse=True),
    ):
        with pytest.raises(StoreCorrupt, match=re.escape(str(tmp_path))):
            read()
    store.close()


def test_a_damaged_blob_is_reported(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    store.write(store.acquire(), [(Table.MESSAGES, b"k", os.urandom(100_000))])
    store.close()
    flip(only(tmp_path, "*.blob"), 5000, 10)
    store = RocksStore(tmp_path)
    with pytest.raises(StoreCorrupt):
        store.get(Table.MESSAGES, b"k")
    store.close()


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    flip(only(tmp_path, "MANIFEST-*"), 20, 5)
    with pytest.raises(StoreCorrupt):
        RocksStore(tmp_path)


def test_a_log_that_was_cut_after_an_orderly_close_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    files = tmp_path / "files"
    assert files.exists()
    RocksStore(tmp_path).close()
    log = only(tmp_path, "*.log")
    log.write_bytes(b"something")
    with pytest.raises(StoreCorrupt, match="9 bytes instead of"):
        RocksStore(tmp_path)
    with pytest.raises(StoreCorrupt, match="9 bytes instead of"):
        RocksStore(tmp_path)


def test_the_inventory_is_gone_while_the_store_is_open(tmp_path: Path) -> None:
    fill(tmp_path)
    store = RocksStore(tmp_path)
    assert not (tmp_path / "files").exists()
    store.close()
    assert (tmp_path / "files").exists()


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.sst"])
@pytest.mark.parametrize("damage", ["gone", "emptied", "cut", "flipped"])
def test_damage_to_what_opening_needs_is_refused_and_nothing_is_changed(
    tmp_path: Path, pattern: str, damage: str
) -> None:
    fill(tmp_path)
    victim = only(tmp_path, pattern)
    whole = victim.read_bytes()
    match damage:
        case "gone":
            victim.unlink()
        case "emptied":
            victim.write_bytes(b"")
        case "cut":
            victim.write_bytes(whole[: len(whole) // 2])
        case _:
            flip(victim, 0, len(whole))
    with pytest.raises(StoreCorrupt) as damaged:
        RocksStore(tmp_path)
    assert str(tmp_path) in str(damaged.value)
    victim.write_bytes(whole)
    store = RocksStore(tmp_path)
    assert len(rows(store)) == 100
    store.close()


# --- formats --------------------------------------------------------------------------------------------------------


def test_a_new_store_says_its_format(tmp_path: Path) -> None:
    RocksStore(tmp_path).close()
    assert (tmp_path / "FORMAT").read_text() == f"{FORMAT}\n"
    assert set(MIGRATIONS) == set(range(1, FORMAT))


def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "FORMAT").write_text(f"{FORMAT + 1}\n")
    before = {file: file.read_bytes() for file in (tmp_path / "db").iterdir()}
    with pytest.raises(FormatUnknown) as refused:
        RocksStore(tmp_path)
    assert refused.value.details == {"path": tmp_path, "found": FORMAT + 1, "known": FORMAT}
    assert {file: file.read_bytes() for file in (tmp_path / "db").iterdir()} == before


def test_an_older_format_is_brought_up_step_by_step(tmp_path: Path) -> None:
    fill(tmp_path)
    taken: list[int] = []

    def step(number: int) -> None:
        assert (tmp_path / "FORMAT").read_text() == f"{number}\n"
        taken.append(number)

    steps = {number: lambda path, number=number: step(number) for number in (FORMAT, FORMAT + 1, FORMAT + 2)}
    store = RocksStore(tmp_path, format_number=FORMAT + 3, migrations=steps)
    assert taken == [FORMAT, FORMAT + 1, FORMAT + 2]
    assert len(rows(store)) == 100
    store.close()
    RocksStore(tmp_path, format_number=FORMAT + 3, migrations={}).close()


def test_a_migration_that_was_cut_short_is_run_again_from_the_step_it_was_in(tmp_path: Path) -> None:
    fill(tmp_path)
    taken: list[int] = []

    def break_once(_path: Path) -> None:
        taken.append(FORMAT + 1)
        if len(taken) == 2:
            raise StoreUnavailable(problem="power cut")

    steps = {FORMAT: lambda _path: taken.append(FORMAT), FORMAT + 1: break_once}
    with pytest.raises(StoreUnavailable):
        RocksStore(tmp_path, format_number=FORMAT + 2, migrations=steps)
    RocksStore(tmp_path, format_number=FORMAT + 2, migrations=steps).close()
    assert taken == [FORMAT, FORMAT + 1, FORMAT + 1]


@pytest.mark.parametrize("text", ["", "one", "0"])
def test_a_format_that_never_was_is_damage(tmp_path: Path, text: str) -> None:
    fill(tmp_path)
    (tmp_path / "FORMAT").write_text(text)
    with pytest.raises(StoreCorrupt):
        RocksStore(tmp_path)


def test_records_without_a_format_are_damage(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "FORMAT").unlink()
    with pytest.raises(StoreCorrupt, match="FORMAT"):
        RocksStore(tmp_path)


def test_a_creation_that_was_cut_short_is_completed(tmp_path: Path) -> None:
    RocksStore(tmp_path).close()
    (tmp_path / "FORMAT").unlink()
    RocksStore(tmp_path).close()
    assert (tmp_path / "FORMAT").exists()


# --- space ----------------------------------------------------------------------------------------------------------


def test_after_a_backlog_is_drained_its_space_comes_back_and_its_front_is_quick_to_scan(tmp_path: Path) -> None:
    count = 200_000
    noise = os.urandom(MIB)
    store = RocksStore(tmp_path, write_buffer_bytes=8 * MIB)
    epoch = store.acquire()
    for first in range(0, count, 1000):
        numbers = range(first, first + 1000)
        store.write(epoch, [(Table.MESSAGES, key(each), noise[each * 1024 % MIB :][:1024]) for each in numbers])
        store.write(epoch, [(Table.READY, key(each), b"v" * 16) for each in numbers])
    store.sync()
    full = store.disk_bytes()
    assert full > count * 1024
    for first in range(0, count, 1000):
        store.write(epoch, [(Table.READY, key(each), None) for each in range(first, first + 1000)])
        if first < count // 2:
            store.write(epoch, [(Table.MESSAGES, key(each), None) for each in range(first, first + 1000)])
        else:
            store.write(epoch, [(Table.MESSAGES, key(first), DeleteUntil(key(first + 1000)))])
    store.reclaim(wait=True)
    assert store.disk_bytes() < full / 50
    for table in (Table.READY, Table.MESSAGES):
        assert step_over_at_most(100, store, table) == []
    store.close()


def step_over_at_most(skipped_max: int, store: RocksStore, table: Table) -> list[tuple[bytes, bytes]]:
    """Scan from the front; fails when more tombstones than that are in the way."""
    handles = store._handles
    assert handles is not None
    prefix, family = handles.families[table]
    return read_rows(family.iter, prefix, prefix + END, 10, False, skipped_max)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_that_meets_many_tombstones_reads_on_and_has_them_removed(tmp_path: Path, reverse: bool) -> None:
    store = RocksStore(tmp_path)
    epoch = store.acquire()
    store.write(epoch, [(Table.READY, key(number), b"v") for number in range(10_000)])
    store.write(epoch, [(Table.READY, key(number), None) for number in range(10_000) if number != 5000])
    with pytest.raises(Exception, match="Result incomplete"):
        step_over_at_most(1000, store, Table.READY)
    assert store.scan(Table.READY, b"", END, 10, reverse) == [(key(5000), b"v")]
    assert store._handles is not None
    store._handles.sweeper.wait()
    assert step_over_at_most(10, store, Table.READY) == [(key(5000), b"v")]
    store.close()


def test_large_values_give_their_space_back(tmp_path: Path) -> None:
    store = RocksStore(tmp_path, write_buffer_bytes=2 * MIB)
    epoch = store.acquire()
    for number in range(200):
        store.write(epoch, [(Table.MESSAGES, key(number), os.urandom(100_000))])
    store.write(epoch, [(Table.MESSAGES, key(0), DeleteUntil(key(190)))])
    full = store.disk_bytes()
    store.reclaim(wait=True)
    assert full > 19_000_000
    assert store.disk_bytes() < 4_000_000
    assert len(rows(store)) == 10
    store.close()


def test_closing_ends_a_sweep_that_is_under_way(tmp_path: Path) -> None:
    store = RocksStore(tmp_path, write_buffer_bytes=2 * MIB)
    epoch = store.acquire()
    for first in range(0, 20_000, 1000):
        store.write(epoch, [(Table.MESSAGES, key(each), os.urandom(500)) for each in range(first, first + 1000)])
    store.write(epoch, [(Table.MESSAGES, key(0), DeleteUntil(key(10_000)))])
    store.reclaim()
    store.close()
    store = RocksStore(tmp_path)
    assert len(rows(store)) == 10_000
    store.close()


def test_spans_that_overlap_or_touch_are_one() -> None:
    spans = [Span("b", b"1", b"2"), Span("a", b"3", b"5"), Span("a", b"1", b"3"), Span("a", b"7", b"9")]
    assert merged(spans) == [Span("a", b"1", b"5"), Span("a", b"7", b"9"), Span("b", b"1", b"2")]
    assert sorted(widened(spans, 0)) == [Span("a", b"1", b"9"), Span("b", b"1", b"2")]
    assert merged([]) == widened([], 0) == []


def test_spans_are_widened_to_a_common_prefix() -> None:
    spans = [Span("a", b"x1", b"x2"), Span("a", b"y5", b"y6"), Span("a", b"x7", b"x9"), Span("b", b"x1", b"x2")]
    assert sorted(widened(spans, 1)) == [Span("a", b"x1", b"x9"), Span("a", b"y5", b"y6"), Span("b", b"x1", b"x2")]
