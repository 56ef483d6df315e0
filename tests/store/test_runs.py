"""Runs: records under consecutive keys, which a store may keep together, and takes apart as they change and go.

Over every store, and over RocksDB with packs as small as can be, so that every border is met.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from holdfast.core.effects import DeleteRun, DeleteUntil, Op
from holdfast.core.records import LAST, Table, message_key, ready_key
from holdfast.core.runs import BytesColumn, HomogeneousRun, RecordRun, key_after
from holdfast.errors import StoreCorrupt
from holdfast.store import runs as store_runs
from holdfast.store.contract import Store
from holdfast.store.rocks import RocksStore
from holdfast.store.rocks_tuning import RUN_MIN
from tests.store.conftest import Opener
from tests.store.test_conformance import Model, apply_to_model, scan_model

RUNS = (Table.MESSAGES, Table.READY)
OWN = (Table.RUNS, Table.MESSAGE_RUNS, Table.READY_RUNS)


def key(table: Table, shard: int, number: int) -> bytes:
    return message_key(shard, number) if table is Table.MESSAGES else ready_key(shard, 5, number)


def put(model: Model, store: Store, epoch: int, ops: list[Op]) -> None:
    store.write(epoch, ops)
    apply_to_model(model, ops)


def whole(store: Store, table: Table) -> list[tuple[bytes, bytes]]:
    return store.scan(table, b"", b"\xff" * 20, 1_000_000)


def left_over(store: Store) -> int:
    """Records that only runs have."""
    return sum(len(whole(store, table)) for table in OWN)


class Writer:
    """Random operations over two shards; the keys of runs are always new."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.next = {(table, shard): 1 for table in RUNS for shard in (1, 2)}

    def ops(self) -> Iterator[Op]:
        while True:
            random = self.random
            table, shard = random.choice(RUNS), random.choice((1, 2))
            end = self.next[table, shard]
            number = random.randint(max(0, end - 60), end + 2)
            match random.choice(("run", "run", "put", "new", "delete", "delete", "delete", "deletes", "range", "all")):
                case "run":
                    first = end + random.choice((0, 0, 1, 300))
                    count = random.randint(1, 40)
                    self.next[table, shard] = first + count
                    size = random.choice((1, 1, 1, 600))
                    values = [random.randbytes(random.choice((size, size, 0))) for _ in range(count)]
                    homogeneous = HomogeneousRun(b"<", random.getrandbits(60), b"-", BytesColumn.of(values))
                    yield table, key(table, shard, first), random.choice((RecordRun.of(values), homogeneous))
                case "put":
                    self.next[table, shard] = max(end, number + 1)
                    yield table, key(table, shard, number), random.randbytes(3)
                case "new":
                    self.next[table, shard] = end + 1
                    yield table, key(table, shard, end), random.randbytes(3)
                case "delete":
                    yield table, key(table, shard, number), None
                case "deletes":
                    yield table, key(table, shard, number), DeleteRun(range(number, number + random.choice((2, 7, 40))))
                case "range":
                    yield (
                        table,
                        key(table, shard, number),
                        DeleteUntil(key(table, shard, number + random.randint(0, 50))),
                    )
                case "all":
                    if random.random() < 0.1:
                        yield table, key(table, shard, 0)[:4], DeleteUntil(key(table, shard + 1, 0)[:4])


def check(store: Store, model: Model, random: Random) -> None:
    for table in RUNS:
        everything = scan_model(model, table, b"", b"\xff" * 20, 1_000_000, False)
        assert whole(store, table) == everything
        known = [one for one, _ in everything] or [b"\0"]
        for _ in range(4):
            ends = sorted((random.choice(known), random.choice(known) + random.choice((b"", b"\0"))))
            cut = random.choice((0, 0, 2))
            start, end = ends[0][: len(ends[0]) - cut], ends[1]
            limit, reverse = random.randint(0, 30), random.random() < 0.3
            assert store.scan(table, start, end, limit, reverse) == scan_model(model, table, start, end, limit, reverse)
        for _ in range(2):
            first, count = random.choice(known).ljust(8, b"\0"), random.choice((0, 1, 3, 50, 500))
            found = store.scan_runs(table, first, count)
            rows = scan_model(model, table, first, key_after(first, count), count, False)
            assert [value for run in found for value in run[:]] == [value for _, value in rows]
        asked = [random.choice(known), key(table, 1, random.randint(0, 400)), b"", random.choice(known) + b"\0"]
        assert store.get_many(table, asked) == [model.get((table, one)) for one in asked]
        assert [store.get(table, one) for one in asked] == [model.get((table, one)) for one in asked]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("small", [False, True])
def test_runs_are_records_like_others(opener: Opener, seed: int, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if small:
        for name, value in (("PACK_MAX", 6), ("PACK_BYTES", 2_000), ("PAGE", 3), ("RESOLVED_AT", 3)):
            monkeypatch.setattr(store_runs, name, value)
        monkeypatch.setattr(store_runs, "REMEMBERED_MAX", 5)
    writer = Writer(seed)
    random, ops = writer.random, writer.ops()
    model: Model = {}
    store = opener()
    try:
        epoch = store.acquire()
        store.write(epoch, [(table, b"", DeleteUntil(b"\xff" * 20)) for table in Table])
        for _ in range(40):
            put(model, store, epoch, list(islice(ops, random.randint(1, 12))))
            if random.random() < 0.2:
                store.sync()
                store.reopen()
                epoch = store.acquire()
            check(store, model, random)
        for table, one in list(model):
            put(model, store, epoch, [(table, one, None)])
        check(store, model, random)
        store.sync()
        assert left_over(store) == 0, "when nobody is left, nothing is"
    finally:
        store.close()


@pytest.mark.parametrize(("count", "packs"), [(RUN_MIN - 1, 0), (RUN_MIN, 1)])
def test_a_short_run_is_stored_as_single_records(tmp_path: Path, count: int, packs: int) -> None:
    store = RocksStore(tmp_path)
    run = RecordRun.of([b"%d" % number for number in range(count)])
    store.write(store.acquire(), [(Table.READY, key(Table.READY, 1, 1), run)])
    assert len(store.scan(Table.RUNS, b"", b"\xff" * 20, 10)) == packs
    assert store.scan(Table.READY, b"", b"\xff" * 20, 100) == run.rows(key(Table.READY, 1, 1))
    store.close()


def test_a_run_whose_write_failed_half_way_leaves_nothing(opener: Opener) -> None:
    store = opener()
    epoch = store.acquire()
    store.write(epoch, [(Table.READY, key(Table.READY, 1, 1), RecordRun.of([b"a"] * 20))])
    bad: list[Op] = [
        (Table.READY, key(Table.READY, 1, 3), None),
        (Table.READY, key(Table.READY, 1, 100), RecordRun.of([b"b"] * 20)),
        (Table.READY, key(Table.READY, 1, 4), 7),  # type: ignore[list-item]
    ]
    with pytest.raises(Exception, match=r".*"):
        store.write(epoch, bad)
    store.write(epoch, [(Table.READY, key(Table.READY, 1, 5), None)])
    found = [int.from_bytes(one[-8:], "big") for one, _ in whole(store, Table.READY)]
    assert found == [number for number in range(1, 21) if number != 5]
    store.close()


def test_what_stays_behind_keeps_little_else(tmp_path: Path) -> None:
    """One in each hundred is never settled: the others' bytes go all the same."""
    store = RocksStore(tmp_path / "data")
    epoch = store.acquire()
    random = Random(1)
    for batch in range(100):
        values = [random.randbytes(250) for _ in range(256)]
        store.write(epoch, [(Table.MESSAGES, message_key(1, 1 + batch * 256), RecordRun.of(values))])
    full = len(whole(store, Table.MESSAGE_RUNS))
    assert full == 100
    kept = range(50, 25_600, 100)
    for number in range(1, 25_601):
        if number not in kept:
            store.write(epoch, [(Table.MESSAGES, message_key(1, number), None)])
    assert [int.from_bytes(one[-8:], "big") for one, _ in whole(store, Table.MESSAGES)] == list(kept)
    assert left_over(store) == 0
    store.close()


def test_a_run_that_has_lost_its_values_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RocksStore(tmp_path / "data")
    epoch = store.acquire()
    store.write(epoch, [(Table.READY, key(Table.READY, 1, 1), RecordRun.of([b"a"] * 20))])
    store.write(epoch, [(Table.READY_RUNS, key(Table.READY, 1, 20), None)])
    monkeypatch.setattr(store_runs, "RESOLVED_AT", 1)
    with pytest.raises(StoreCorrupt, match="are missing"):
        store.write(epoch, [(Table.READY, key(Table.READY, 1, LAST >> 60), None)])
    store.close()


def test_what_lies_together_is_read_as_it_lies(opener: Opener) -> None:
    store = opener()
    epoch = store.acquire()
    homogeneous = HomogeneousRun(b"<", 7, b">", BytesColumn.of([b"%d" % number for number in range(300)]))
    store.write(
        epoch, [(Table.MESSAGES, message_key(1, 10), homogeneous), (Table.MESSAGES, message_key(1, 5), b"five")]
    )
    store.write(epoch, [(Table.MESSAGES, message_key(1, 310), b"last"), (Table.MESSAGES, message_key(2, 1), b"other")])
    found = store.scan_runs(Table.MESSAGES, message_key(1, 0), 400)
    assert [value for run in found for value in run[:]] == [b"five", *homogeneous[:], b"last"]
    if store.name == "rocks":
        assert [type(run) for run in found] == [RecordRun, HomogeneousRun, HomogeneousRun, RecordRun]
    store.write(epoch, [(Table.MESSAGES, message_key(1, 20), None)])
    found = store.scan_runs(Table.MESSAGES, message_key(1, 15), 10)
    assert [value for run in found for value in run[:]] == [*homogeneous[5:10], *homogeneous[11:15]]
    store.close()
