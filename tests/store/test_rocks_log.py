"""A log that was torn by a crash is normal; one that is damaged is not, and is refused before anything is lost."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.records import Table
from holdfast.errors import StoreCorrupt
from holdfast.store import RocksStore
from holdfast.store.rocks_log import Break, examine, logs_of, read_mark

END = b"\xff" * 16
BLOCK = 32 * 1024
SYNCED, UNSYNCED = 700, 700  # writes, of 64 bytes each in the log: whole records fill a block
Damage = Callable[[bytearray], None]


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def write(store: RocksStore, epoch: int, number: int) -> None:
    """Two records at a time, so that half a write can be seen. The first is longer, to fill up behind the epoch's."""
    values = (b"v" * 10, b"w" * (36 if number == 0 else 9))
    store.write(epoch, [(Table.MESSAGES, key(2 * number + half), value) for half, value in enumerate(values)])


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The files of a store as a kill leaves them, and the size of its log up to which it was synced."""
    path = tmp_path_factory.mktemp("store")
    store = RocksStore(path / "live")
    epoch = store.acquire()
    for number in range(SYNCED):
        write(store, epoch, number)
    store.sync()
    synced = log_of(path / "live").stat().st_size
    for number in range(SYNCED, SYNCED + UNSYNCED):
        write(store, epoch, number)
    shutil.copytree(path / "live", path / "killed")
    store.close()
    return path / "killed", synced


def log_of(path: Path) -> Path:
    (log,) = logs_of(path / "db")
    return log


def damaged(crashed: Path, tmp_path: Path, damage: Damage) -> Path:
    path = tmp_path / "store"
    shutil.copytree(crashed, path)
    content = bytearray(log_of(path).read_bytes())
    damage(content)
    log_of(path).write_bytes(content)
    return path


def writes_in(path: Path) -> int:
    """Opens it: how many writes it has, which are whole, and the first ones without a gap."""
    store = RocksStore(path)
    numbers = [int.from_bytes(found, "big") for found, _ in store.scan(Table.MESSAGES, b"", END, 1_000_000)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) % 2 == 0
    write(store, store.acquire(), len(numbers) // 2)
    store.close()
    store = RocksStore(path)
    assert len(store.scan(Table.MESSAGES, b"", END, 1_000_000)) == len(numbers) + 2
    store.close()
    return len(numbers) // 2


def refusal(path: Path) -> str:
    """Why it is not opened, by which it is not changed."""
    before = {file.name: file.read_bytes() for file in (path / "db").iterdir()}
    with pytest.raises(StoreCorrupt) as refused:
        RocksStore(path)
    assert {file.name: file.read_bytes() for file in (path / "db").iterdir()} == before
    with pytest.raises(StoreCorrupt) as again:
        RocksStore(path)
    assert str(again.value) == str(refused.value)
    assert "holdfast store salvage" in str(refused.value)
    return str(refused.value)


def flip(at: int) -> Damage:
    def damage(content: bytearray) -> None:
        content[at] ^= 0x10

    return damage


def zeros(start: int, end: int) -> Damage:
    def damage(content: bytearray) -> None:
        content[start:end] = bytes(end - start)

    return damage


def cut(at: int) -> Damage:
    def damage(content: bytearray) -> None:
        del content[at:]

    return damage


def test_a_whole_log_is_read_to_its_end(crashed: tuple[Path, int], tmp_path: Path) -> None:
    assert writes_in(damaged(crashed[0], tmp_path, lambda content: None)) == SYNCED + UNSYNCED


@pytest.mark.parametrize("part", range(40))
def test_a_flipped_bit_in_what_was_synced_is_refused(crashed: tuple[Path, int], tmp_path: Path, part: int) -> None:
    path, synced = crashed
    at = synced * part // 40 + part  # in heads of records, lengths, kinds, numbers, keys and values
    assert "log at byte" in refusal(damaged(path, tmp_path, flip(at)))


@pytest.mark.parametrize("offset", [0, 1, 63, 64, 100])
def test_a_log_that_lost_the_end_of_what_was_synced_is_refused(
    crashed: tuple[Path, int], tmp_path: Path, offset: int
) -> None:
    path, synced = crashed
    message = refusal(damaged(path, tmp_path, cut(synced - 1 - offset)))
    assert f"synced up to change {1 + 2 * SYNCED}" in message


def test_a_log_that_is_gone_is_refused(crashed: tuple[Path, int], tmp_path: Path) -> None:
    path = damaged(crashed[0], tmp_path, lambda content: None)
    log_of(path).unlink()
    assert "it ends with change 0" in refusal(path)


def test_a_damaged_log_is_refused_when_the_store_is_opened_again_after_a_failure(
    crashed: tuple[Path, int], tmp_path: Path
) -> None:
    path = damaged(crashed[0], tmp_path, lambda content: None)
    store = RocksStore(path)
    epoch = store.acquire()
    for number in range(100):
        write(store, epoch, 10_000 + number)
    store.sync()
    store._tear_down = lambda: None  # type: ignore[method-assign] # without the flush that leaves nothing in the log
    log = log_of(path)
    content = bytearray(log.read_bytes())
    flip(len(content) // 2)(content)
    log.write_bytes(content)
    with pytest.raises(StoreCorrupt, match="log at byte"):
        store.reopen()


@pytest.mark.parametrize("offset", [0, 1, 6, 7, 20, 63, 64, 500, 5_000, 20_000, 40_000])
def test_a_torn_end_is_cut(crashed: tuple[Path, int], tmp_path: Path, offset: int) -> None:
    path, synced = crashed
    assert writes_in(damaged(path, tmp_path, cut(synced + offset))) == SYNCED + offset // 64


@pytest.mark.parametrize("offset", [0, 1, 6, 7, 20, 63, 64, 500, 5_000, 20_000])
@pytest.mark.parametrize("to_the_end", [True, False])
def test_sectors_that_were_never_written_are_the_torn_end_whatever_follows(
    crashed: tuple[Path, int], tmp_path: Path, offset: int, to_the_end: bool
) -> None:
    path, synced = crashed
    start = (synced + offset) // 512 * 512 if offset > 512 else synced + offset
    end = log_of(path).stat().st_size if to_the_end else start // 512 * 512 + 1024
    assert writes_in(damaged(path, tmp_path, zeros(start, end))) == start // 64 - 1


def test_nothing_is_read_behind_zeros_that_end_with_a_block(crashed: tuple[Path, int], tmp_path: Path) -> None:
    """RocksDB alone reads on: what is missing would be in the middle."""
    path, synced = crashed
    start = synced + 64
    end = (start // BLOCK + 1) * BLOCK
    assert end < log_of(path).stat().st_size
    assert writes_in(damaged(path, tmp_path, zeros(start, end))) == SYNCED + 1


def test_zeros_that_end_with_a_block_in_what_was_synced_are_refused(crashed: tuple[Path, int], tmp_path: Path) -> None:
    path, _ = crashed
    assert f"log at byte {BLOCK - 640} " in refusal(damaged(path, tmp_path, zeros(BLOCK - 640, BLOCK)))


@pytest.mark.parametrize("mark", ["none", "torn", "damaged"])
def test_without_a_mark_a_flipped_bit_is_told_from_a_torn_end_by_its_sectors(
    crashed: tuple[Path, int], tmp_path: Path, mark: str
) -> None:
    """As after an upgrade from a version without it, or a crash of the machine before it reached the disk."""
    path, synced = crashed
    at = synced // 2
    flipped = damaged(path, tmp_path / "flipped", flip(at + 20))
    torn = damaged(path, tmp_path / "torn", zeros(at // 512 * 512, at // 512 * 512 + 512))
    for each in (flipped, torn):
        match mark:
            case "none":
                (each / "synced").unlink()
            case "torn":
                (each / "synced").write_bytes(b"123")
            case _:
                (each / "synced").write_bytes(bytes(11) + b"1")
        assert read_mark(each / "synced") is None
    assert "not torn" in refusal(flipped)
    assert writes_in(torn) == at // 512 * 512 // 64 - 1


def test_without_a_mark_a_flipped_bit_in_the_last_record_is_refused(crashed: tuple[Path, int], tmp_path: Path) -> None:
    path = damaged(crashed[0], tmp_path, flip(-3))
    (path / "synced").unlink()
    assert "not torn" in refusal(path)


def log_file(path: Path, *changes: tuple[int, int], torn: bytes = b"") -> Path:
    """A log with records of so many changes from such a number on, whole as far as their lengths show."""
    records = [number.to_bytes(8, "little") + count.to_bytes(4, "little") + b"change" for number, count in changes]
    fragments = [bytes(4) + len(record).to_bytes(2, "little") + b"\x01" + record for record in records]
    path.write_bytes(b"".join(fragments) + torn)
    return path


def test_a_log_that_is_missing_between_others_is_damage(tmp_path: Path) -> None:
    logs = [log_file(tmp_path / "1.log", (1, 5), (6, 5)), log_file(tmp_path / "3.log", (21, 5))]
    found = examine(logs, readable=25, synced=None)
    assert found is not None
    assert found.damage is not None
    assert (found.log, found.offset, found.changes) == (logs[1], 0, 10)


def test_a_torn_end_after_which_the_next_log_goes_on_is_no_break(tmp_path: Path) -> None:
    """A write failed half-way, and the store was opened again: what comes after the last whole one is in a new log."""
    logs = [log_file(tmp_path / "1.log", (1, 5), torn=b"half"), log_file(tmp_path / "2.log", (6, 5))]
    assert examine(logs, readable=10, synced=10) is None
    assert examine(logs[:1], readable=5, synced=5) == Break(logs[0], logs[0].stat().st_size - 4, 5, None)
    damaged_log = examine(logs[:1], readable=5, synced=6)
    assert damaged_log is not None
    assert damaged_log.damage is not None


HOLD = """
import sys
from holdfast.store import RocksStore
from tests.store.test_rocks_log import write
store = RocksStore(sys.argv[1])
epoch = store.acquire()
number = 0
while True:
    write(store, epoch, number)
    number += 1
    if number % 5 == 0:
        store.sync()
        print(number, flush=True)
"""


@pytest.mark.crash
def test_a_log_that_is_damaged_after_a_kill_is_refused(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path / "live"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(40)]
        process.send_signal(signal.SIGKILL)
        said += process.stdout.read().splitlines()
    synced = int(said[-1])
    whole = log_of(tmp_path / "live").read_bytes()
    for part in range(20):
        path = tmp_path / str(part)
        shutil.copytree(tmp_path / "live", path)
        content = bytearray(whole)
        flip((synced * 64 * part // 20) + 3 * part)(content)
        log_of(path).write_bytes(content)
        refusal(path)
    assert writes_in(tmp_path / "live") >= synced
