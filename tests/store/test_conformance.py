"""Every sentence of store/contract.py, over every store of conftest.STORES."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.effects import DeleteRun, DeleteUntil, Op, Read
from holdfast.core.records import Table, message_key, seq_of
from holdfast.core.runs import RecordRun
from holdfast.errors import CopyUnsupported, Fenced, StoreError
from holdfast.store import Store, open_store

END = b"\xff" * 32
TIMEOUT_SECONDS = 60
Opener = Callable[[], Store]


def rows(store: Store, table: Table = Table.READY) -> list[tuple[bytes, bytes]]:
    return store.scan(table, b"", END, 1_000_000)


# --- records --------------------------------------------------------------------------------------------------------


def test_a_record_that_was_put_is_read_when_write_returns(store: Store) -> None:
    store.write(store.acquire(), [(Table.READY, b"k", b"v")])
    assert store.get(Table.READY, b"k") == b"v"
    assert rows(store) == [(b"k", b"v")]


def test_a_record_that_was_never_put_is_none(store: Store) -> None:
    assert store.get(Table.READY, b"k") is None


def test_an_empty_value_is_a_value(store: Store) -> None:
    store.write(store.acquire(), [(Table.READY, b"k", b"")])
    assert store.get(Table.READY, b"k") == b""
    assert rows(store) == [(b"k", b"")]


def test_an_empty_key_is_a_key(store: Store) -> None:
    store.write(store.acquire(), [(Table.READY, b"", b"v")])
    assert store.get(Table.READY, b"") == b"v"
    assert rows(store) == [(b"", b"v")]


def test_a_large_value_comes_back_whole(store: Store) -> None:
    value = bytes(range(256)) * 8192
    store.write(store.acquire(), [(Table.MESSAGES, b"k", value)])
    assert store.get(Table.MESSAGES, b"k") == value


def test_every_table_keeps_its_own_records(store: Store) -> None:
    store.write(store.acquire(), [(table, b"same key", table.name.encode()) for table in Table])
    for table in Table:
        assert store.get(table, b"same key") == table.name.encode()
        assert rows(store, table) == [(b"same key", table.name.encode())]


def test_a_second_put_replaces_the_first(store: Store) -> None:
    epoch = store.acquire()
    store.write(epoch, [(Table.META, b"k", b"old")])
    store.write(epoch, [(Table.META, b"k", b"new")])
    assert rows(store, Table.META) == [(b"k", b"new")]


def test_deleting_what_is_not_there_changes_nothing(store: Store) -> None:
    store.write(store.acquire(), [(Table.META, b"k", b"v"), (Table.META, b"other", None)])
    assert rows(store, Table.META) == [(b"k", b"v")]


def test_the_operations_of_a_write_apply_in_order(store: Store) -> None:
    epoch = store.acquire()
    store.write(epoch, [(Table.READY, b"a", b"1"), (Table.READY, b"a", None), (Table.READY, b"b", b"1")])
    assert rows(store) == [(b"b", b"1")]
    store.write(epoch, [(Table.READY, b"c", b"2"), (Table.READY, b"a", DeleteUntil(b"z")), (Table.READY, b"b", b"3")])
    assert rows(store) == [(b"b", b"3")]


def test_a_range_delete_includes_its_start_and_not_its_end(store: Store) -> None:
    epoch = store.acquire()
    store.write(epoch, [(Table.JOURNAL, bytes([n]), b"v") for n in range(10)])
    store.write(epoch, [(Table.JOURNAL, b"\x03", DeleteUntil(b"\x07"))])
    assert [key[0] for key, _ in rows(store, Table.JOURNAL)] == [0, 1, 2, 7, 8, 9]


def test_a_range_delete_stays_in_its_table(store: Store) -> None:
    epoch = store.acquire()
    store.write(epoch, [(table, b"k", b"v") for table in Table])
    store.write(epoch, [(Table.READY, b"", DeleteUntil(END))])
    assert [table for table in Table if store.get(table, b"k") is None] == [Table.READY]


@pytest.mark.parametrize("end", [b"m", b"a", b""])
def test_a_range_whose_end_is_not_after_its_start_deletes_nothing(store: Store, end: bytes) -> None:
    epoch = store.acquire()
    store.write(epoch, [(Table.READY, b"m", b"v"), (Table.READY, b"a", b"v")])
    store.write(epoch, [(Table.READY, b"m", DeleteUntil(end))])
    assert len(rows(store)) == 2


@pytest.mark.parametrize("table", [Table.MESSAGES, Table.READY, Table.SETTLED])
@pytest.mark.parametrize("numbers", [[5], [5, 6], range(5, 12), range(5, 45), [5, 9, 30], range(5, 90, 2)])
@pytest.mark.parametrize("run", [False, True])
def test_a_deleted_run_is_its_records_and_no_others(
    store: Store, table: Table, numbers: Sequence[int], run: bool
) -> None:
    epoch = store.acquire()
    kept = [key for key in range(100) if not numbers[0] <= key <= numbers[-1]]
    values = [b"%d" % number for number in range(100)]
    if run and table is not Table.SETTLED:
        store.write(epoch, [(table, message_key(1, 0), RecordRun.of(values))])
        others = [number for number in range(numbers[0], numbers[-1] + 1) if number not in numbers]
        store.write(epoch, [(table, message_key(1, number), None) for number in others])
    else:
        store.write(epoch, [(table, message_key(1, number), values[number]) for number in (*kept, *numbers)])
    store.write(epoch, [(table, message_key(1, numbers[0]), DeleteRun(numbers))])
    assert [seq_of(key) for key, _ in rows(store, table)] == kept


def test_a_write_of_nothing_is_allowed(store: Store) -> None:
    store.write(store.acquire(), [])
    assert rows(store) == []


def test_a_write_that_cannot_be_applied_changes_nothing(store: Store) -> None:
    epoch = store.acquire()
    bad: list[Op] = [(Table.READY, b"a", b"1"), (Table.READY, b"b", "text")]  # type: ignore[list-item]
    with pytest.raises((TypeError, ValueError, AttributeError)):
        store.write(epoch, bad)
    assert rows(store) == []
    store.write(epoch, [(Table.READY, b"a", b"2")])
    assert rows(store) == [(b"a", b"2")]


# --- reading --------------------------------------------------------------------------------------------------------


def test_get_many_answers_in_the_order_asked_with_none_for_what_is_missing(store: Store) -> None:
    store.write(store.acquire(), [(Table.MESSAGES, bytes([n]), bytes([n])) for n in range(5)])
    assert store.get_many(Table.MESSAGES, [b"\x03", b"x", b"\x00", b"\x03"]) == [b"\x03", None, b"\x00", b"\x03"]
    assert store.get_many(Table.MESSAGES, []) == []


def test_keys_sort_as_unsigned_bytes(store: Store) -> None:
    keys = [b"\xff\xff", b"\x7f", b"\x80", b"a\x00", b"a", b"", b"\x00", b"\xff"]
    store.write(store.acquire(), [(Table.READY, key, b"v") for key in keys])
    assert [key for key, _ in rows(store)] == sorted(keys)
    assert [key for key, _ in store.scan(Table.READY, b"", END, 100, reverse=True)] == sorted(keys, reverse=True)


def test_a_scan_includes_its_start_and_not_its_end(store: Store) -> None:
    store.write(store.acquire(), [(Table.READY, bytes([n]), b"v") for n in range(10)])
    assert [key[0] for key, _ in store.scan(Table.READY, b"\x02", b"\x05", 10)] == [2, 3, 4]
    assert [key[0] for key, _ in store.scan(Table.READY, b"\x02", b"\x05", 10, reverse=True)] == [4, 3, 2]


def test_a_scan_gives_at_most_its_limit_from_the_end_it_starts_at(store: Store) -> None:
    store.write(store.acquire(), [(Table.READY, bytes([n]), b"v") for n in range(10)])
    assert [key[0] for key, _ in store.scan(Table.READY, b"\x02", b"\x08", 2)] == [2, 3]
    assert [key[0] for key, _ in store.scan(Table.READY, b"\x02", b"\x08", 2, reverse=True)] == [7, 6]
    assert store.scan(Table.READY, b"\x02", b"\x08", 0) == []


@pytest.mark.parametrize(("start", "end"), [(b"b", b"b"), (b"c", b"b"), (b"b", b"")])
def test_a_scan_of_an_empty_range_is_empty(store: Store, start: bytes, end: bytes) -> None:
    store.write(store.acquire(), [(Table.READY, b"b", b"v"), (Table.READY, b"bb", b"v")])
    assert store.scan(Table.READY, start, end, 10) == []
    assert store.scan(Table.READY, start, end, 10, reverse=True) == []


def test_one_read_asks_for_records_and_ranges_of_any_tables_and_answers_in_that_order(store: Store) -> None:
    ops: list[Op] = [(Table.META, b"m", b"1"), (Table.GROUPS, b"g", b""), (Table.READY, b"r1", b"2")]
    store.write(store.acquire(), [*ops, (Table.READY, b"r2", b"3"), (Table.MESSAGES, message_key(1, 5), b"4")])
    reads = [
        Read(Table.READY, b"r", b"s", 1),
        Read(Table.META, b"m"),
        Read(Table.MESSAGES, message_key(1, 5)),
        Read(Table.META, b"absent"),
        Read(Table.READY, b"r", b"s", 10),
        Read(Table.GROUPS, b"g"),
        Read(Table.DEDUP, b"", END, 10),
    ]
    assert store.read(reads) == [[(b"r1", b"2")], b"1", b"4", None, [(b"r1", b"2"), (b"r2", b"3")], b"", []]
    assert store.read([]) == []
    assert store.read(reads[1:2] * 2) == [b"1", b"1"]


def test_a_read_ahead_of_need_answers_the_same(store: Store) -> None:
    store.write(store.acquire(), [(Table.META, b"m", b"1"), (Table.READY, b"r", b"2")])
    answers: SimpleQueue[object] = SimpleQueue()
    store.read_soon([Read(Table.READY, b"", END, 9), Read(Table.META, b"m")], answers.put)
    assert answers.get(timeout=TIMEOUT_SECONDS) == [[(b"r", b"2")], b"1"]


def test_a_reader_on_another_thread_sees_every_write_that_returned_before(store: Store) -> None:
    epoch = store.acquire()
    run = RecordRun.of([b"%d" % number for number in range(40)])
    store.write(epoch, [(Table.META, b"m", b"1"), (Table.MESSAGES, message_key(1, 0), run)])
    with store.reader() as reader, ThreadPoolExecutor(1) as thread:
        for number in range(40):
            store.write(epoch, [(Table.META, b"m", b"%d" % number), (Table.MESSAGES, message_key(1, number), None)])
            assert thread.submit(reader.get, Table.META, b"m").result() == b"%d" % number
            rest = thread.submit(reader.scan, Table.MESSAGES, message_key(1, 0), message_key(1, 40), 100).result()
            assert [seq_of(key) for key, _ in rest] == list(range(number + 1, 40))
            left = thread.submit(reader.scan_runs, Table.MESSAGES, message_key(1, 0), 40).result()
            assert [value for run in left for value in run[:]] == [b"%d" % each for each in range(number + 1, 40)]
            kept = thread.submit(reader.get_many, Table.MESSAGES, [message_key(1, 0), message_key(1, 39)]).result()
            assert kept == [None, b"39" if number < 39 else None]


def test_a_reader_is_not_misled_when_the_store_is_opened_again(store: Store) -> None:
    store.write(store.acquire(), [(Table.READY, message_key(1, 0), RecordRun.of([b"v"] * 20))])
    with store.reader() as reader:
        assert len(reader.scan(Table.READY, b"", END, 100)) == 20
        store.reopen()
        store.write(store.acquire(), [(Table.READY, b"", DeleteUntil(END))])
        assert reader.scan(Table.READY, b"", END, 100) == []
        store.write(store.acquire(), [(Table.READY, message_key(1, 0), RecordRun.of([b"w"] * 20))])
        assert reader.get(Table.READY, message_key(1, 3)) == b"w"


def test_a_view_is_everything_written_so_far_at_one_moment(store: Store) -> None:
    epoch = store.acquire()
    run = RecordRun.of([b"%d" % number for number in range(40)])
    ops: list[Op] = [(table, b"k", b"old") for table in Table if table not in (Table.MESSAGES, Table.READY)]
    store.write(epoch, [*ops, (Table.MESSAGES, message_key(1, 0), run), (Table.READY, message_key(1, 0), run)])
    store.sync()
    store.write(epoch, [(Table.READY, message_key(1, 3), None), (Table.META, b"late", b"1")])
    with store.view() as view, ThreadPoolExecutor(1) as thread:
        store.write(epoch, [(table, b"", DeleteUntil(END)) for table in Table])
        store.sync()
        store.write(epoch, [(Table.META, b"k", b"new"), (Table.READY, message_key(1, 9), b"new")])
        assert rows(store) == [(message_key(1, 9), b"new")]
        ready = thread.submit(view.scan, Table.READY, b"", END, 100).result()
        assert [value for _, value in ready] == [b"%d" % number for number in range(40) if number != 3]
        assert [value for _, value in view.scan(Table.READY, b"", END, 2, reverse=True)] == [b"39", b"38"]
        assert thread.submit(view.get, Table.MESSAGES, message_key(1, 7)).result() == b"7"
        assert view.get_many(Table.META, [b"k", b"none", b"late"]) == [b"old", None, b"1"]
        assert view.read([Read(Table.META, b"k"), Read(Table.GROUPS, b"", END, 5)]) == [b"old", [(b"k", b"old")]]
        assert [value for part in view.scan_runs(Table.READY, message_key(1, 2), 3) for value in part[:]] == [
            b"2",
            b"4",
        ]


def test_a_store_that_was_viewed_can_be_closed_and_opened(opener: Opener) -> None:
    store = opener()
    store.write(store.acquire(), [(Table.READY, b"k", b"v")])
    with store.view() as view, store.reader() as reader:
        assert view.get(Table.READY, b"k") == reader.get(Table.READY, b"k") == b"v"
    store.close()
    store = opener()
    assert rows(store) == [(b"k", b"v")]
    store.close()


# --- durability -----------------------------------------------------------------------------------------------------


def test_what_was_synced_is_there_after_close_and_open(opener: Opener) -> None:
    store = opener()
    store.write(store.acquire(), [(Table.MESSAGES, b"k", b"v")])
    store.sync()
    store.close()
    store = opener()
    assert store.get(Table.MESSAGES, b"k") == b"v"
    store.close()


def test_close_syncs(opener: Opener) -> None:
    store = opener()
    store.write(store.acquire(), [(Table.MESSAGES, b"k", b"v")])
    store.close()
    store = opener()
    assert store.get(Table.MESSAGES, b"k") == b"v"
    store.close()


def test_reopen_brings_back_what_had_been_stored(store: Store) -> None:
    store.write(store.acquire(), [(Table.MESSAGES, b"k", b"v")])
    store.sync()
    store.reopen()
    assert store.get(Table.MESSAGES, b"k") == b"v"


def test_a_sync_may_run_on_another_thread_while_writes_and_reads_go_on(opener: Opener) -> None:
    store = opener()
    epoch = store.acquire()
    done = threading.Event()

    def sync_on_and_on() -> None:
        while not done.is_set():
            store.sync()

    syncer = threading.Thread(target=sync_on_and_on)
    syncer.start()
    try:
        for number in range(500):
            store.write(epoch, [(Table.MESSAGES, number.to_bytes(2, "big"), b"v" * 100)])
            assert store.get(Table.MESSAGES, number.to_bytes(2, "big")) is not None
    finally:
        done.set()
        syncer.join()
    store.close()
    store = opener()
    assert len(rows(store, Table.MESSAGES)) == 500
    store.close()


def test_syncs_that_are_begun_end_in_order_and_cover_what_was_written_before_each(opener: Opener) -> None:
    store = opener()
    epoch = store.acquire()
    ended: SimpleQueue[tuple[int, StoreError | None]] = SimpleQueue()
    for number in range(20):
        store.write(epoch, [(Table.MESSAGES, bytes([number]), b"v")])
        store.sync_soon(lambda error, number=number: ended.put((number, error)))  # type: ignore[misc]
    assert [ended.get(timeout=TIMEOUT_SECONDS) for _ in range(20)] == [(number, None) for number in range(20)]
    behind = store.behind()
    assert (behind.writes, behind.size_bytes, behind.seconds) == (0, 0, 0.0)
    assert store.in_flight_max >= 1
    store.close()
    store = opener()
    assert len(rows(store, Table.MESSAGES)) == 20
    store.close()


def test_what_was_written_survives_a_reopen_without_a_failure(store: Store) -> None:
    store.write(store.acquire(), [(Table.MESSAGES, b"k", b"v")])
    store.reopen()
    assert store.get(Table.MESSAGES, b"k") == b"v"


# --- fencing --------------------------------------------------------------------------------------------------------


def test_an_epoch_is_larger_than_any_before_also_after_opening_again(opener: Opener) -> None:
    store = opener()
    epochs = [store.acquire(), store.acquire()]
    store.reopen()
    epochs.append(store.acquire())
    store.close()
    store = opener()
    epochs.append(store.acquire())
    store.close()
    assert epochs == sorted(set(epochs))
    assert epochs[0] > 0


def test_a_write_under_an_older_epoch_is_refused_and_changes_nothing(store: Store) -> None:
    old = store.acquire()
    new = store.acquire()
    with pytest.raises(Fenced) as refused:
        store.write(old, [(Table.READY, b"k", b"v")])
    assert refused.value.details == {"epoch": old, "current": new}
    assert rows(store) == []
    store.write(new, [(Table.READY, b"k", b"v")])


@pytest.mark.parametrize("step", [0, 1])
def test_a_write_before_acquire_is_refused(store: Store, step: int) -> None:
    with pytest.raises(Fenced):
        store.write(step, [(Table.READY, b"k", b"v")])
    assert rows(store) == []


def test_a_write_under_an_epoch_never_given_is_refused(store: Store) -> None:
    epoch = store.acquire()
    with pytest.raises(Fenced):
        store.write(epoch + 1, [(Table.READY, b"k", b"v")])


def test_after_reopen_the_epoch_must_be_acquired_again(store: Store) -> None:
    epoch = store.acquire()
    store.reopen()
    with pytest.raises(Fenced):
        store.write(epoch, [(Table.READY, b"k", b"v")])
    store.write(store.acquire(), [(Table.READY, b"k", b"v")])


def test_after_close_and_open_the_epoch_must_be_acquired_again(opener: Opener) -> None:
    store = opener()
    epoch = store.acquire()
    store.close()
    store = opener()
    with pytest.raises(Fenced):
        store.write(epoch, [(Table.READY, b"k", b"v")])
    store.close()


# --- the rest -------------------------------------------------------------------------------------------------------


def test_a_second_close_does_nothing(opener: Opener) -> None:
    store = opener()
    store.close()
    store.close()
    opener().close()


def test_after_close_every_other_call_raises_a_store_error(opener: Opener) -> None:
    store = opener()
    epoch = store.acquire()
    store.close()
    calls: list[Callable[[], object]] = [
        store.acquire,
        lambda: store.write(epoch, [(Table.READY, b"k", b"v")]),
        store.sync,
        lambda: store.get(Table.READY, b"k"),
        lambda: store.get_many(Table.READY, [b"k"]),
        lambda: store.scan(Table.READY, b"", END, 1),
        lambda: store.read([Read(Table.READY, b"k")]),
        lambda: store.view().__enter__(),
        store.reader,
        store.behind,
        store.reclaim,
        store.disk_bytes,
        store.room,
        store.reopen,
    ]
    for call in calls:
        with pytest.raises(StoreError):
            call()


def test_reclaim_changes_no_record(store: Store) -> None:
    epoch = store.acquire()
    store.write(epoch, [(Table.READY, n.to_bytes(2, "big"), b"v") for n in range(5000)])
    store.write(epoch, [(Table.READY, n.to_bytes(2, "big"), None) for n in range(4000)])
    store.write(epoch, [(Table.READY, (4500).to_bytes(2, "big"), DeleteUntil(END))])
    store.reclaim(wait=True)
    store.reclaim(wait=True)
    assert [int.from_bytes(key, "big") for key, _ in rows(store)] == list(range(4000, 4500))


def test_the_store_says_what_it_is_what_it_occupies_and_what_room_is_left(store: Store) -> None:
    assert store.name
    assert store.disk_bytes() >= 0
    room = store.room()
    assert room is None or room > 0


# --- anything, in any order -----------------------------------------------------------------------------------------

# A small alphabet, so that keys collide, are prefixes of each other, and sit at both ends of the order.
keys = st.lists(st.sampled_from([0, 1, 0x61, 0xFE, 0xFF]), max_size=3).map(bytes)
values = st.one_of(st.binary(max_size=4), st.just(b"blob" * 2000))
tables = st.sampled_from([Table.META, Table.MESSAGES, Table.READY, Table.KEYED, Table.DEDUP, Table.JOURNAL])
ops = st.one_of(
    st.tuples(tables, keys, values),
    st.tuples(tables, keys, st.none()),
    st.tuples(tables, keys, keys.map(DeleteUntil)),
)
steps = st.one_of(
    st.tuples(st.just("write"), st.lists(ops, max_size=8)),
    st.tuples(st.just("scan"), st.tuples(tables, keys, keys, st.integers(0, 6), st.booleans())),
    st.tuples(st.just("get"), st.tuples(tables, st.lists(keys, max_size=4))),
    st.tuples(st.sampled_from(["sync", "reopen", "close", "reclaim"]), st.none()),
)
Model = dict[tuple[Table, bytes], bytes]


def apply_to_model(model: Model, batch: list[Op]) -> None:
    for table, key, value in batch:
        if value is None:
            model.pop((table, key), None)
        elif isinstance(value, DeleteUntil):
            for place in [place for place in model if place[0] == table and key <= place[1] < value.end]:
                del model[place]
        elif isinstance(value, DeleteRun):
            for one in value.keys(key):
                model.pop((table, one), None)
        elif isinstance(value, RecordRun):
            model.update(((table, one), content) for one, content in value.rows(key))
        else:
            model[table, key] = value


def scan_model(
    model: Model, table: Table, start: bytes, end: bytes, limit: int, reverse: bool
) -> list[tuple[bytes, bytes]]:
    found = sorted((key, value) for (place, key), value in model.items() if place == table and start <= key < end)
    return (found[::-1] if reverse else found)[:limit]


# The fixture opens one store for all examples; each begins by emptying it, which is one more thing to get right.
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(steps, max_size=20))
def test_a_store_behaves_like_a_dict(opener: Opener, script: list[tuple[str, object]]) -> None:
    store = opener()
    try:
        epoch = store.acquire()
        store.write(epoch, [(table, b"", DeleteUntil(END)) for table in Table])
        model: Model = {}
        for name, argument in script:
            if name == "close":
                store.close()
                store = opener()
                epoch = store.acquire()
            elif name == "reopen":
                store.reopen()
                epoch = store.acquire()
            else:
                play(store, epoch, model, name, argument)
        for table in Table:
            assert rows(store, table) == scan_model(model, table, b"", END, 1_000_000, False)
    finally:
        store.close()


def play(store: Store, epoch: int, model: Model, name: str, argument: object) -> None:
    match name, argument:
        case "write", list():
            store.write(epoch, argument)
            apply_to_model(model, argument)
        case "scan", (Table() as table, bytes() as start, bytes() as end, int() as limit, bool() as reverse):
            expected = scan_model(model, table, start, end, limit, reverse)
            assert store.scan(table, start, end, limit, reverse) == expected
        case "get", (Table() as table, list() as asked):
            expected_values = [model.get((table, key)) for key in asked]
            assert store.get_many(table, asked) == expected_values
            assert [store.get(table, key) for key in asked] == expected_values
        case "sync", _:
            store.sync()
        case "reclaim", _:
            store.reclaim(wait=True)
        case _:
            raise AssertionError(name)


def test_conformance_runs_over_every_kind_that_can_be_opened(tmp_path: Path) -> None:
    from holdfast.store import KINDS
    from tests.store.conftest import STORES

    assert set(KINDS) <= set(STORES)
    for kind in KINDS:
        store = STORES[kind](tmp_path)()
        assert store.name == kind
        store.close()


# --- copies ---------------------------------------------------------------------------------------------------------


def test_a_copy_holds_what_was_written_before_and_nothing_after(store: Store, tmp_path: Path) -> None:
    epoch = store.acquire()
    store.write(epoch, [(Table.READY, b"before", b"1"), (Table.META, b"m", b"2")])
    copy = tmp_path / "copies" / "one"
    try:
        store.copy_to(copy)
    except CopyUnsupported:
        assert store.name == "memory" or store.remote
        assert not copy.exists()
        return
    store.write(epoch, [(Table.READY, b"after", b"3")])
    other = open_store(store.name, copy)
    assert rows(other) == [(b"before", b"1")]
    assert other.get(Table.META, b"m") == b"2"
    other.write(other.acquire(), [(Table.READY, b"before", b"changed")])
    other.close()
    assert rows(store) == [(b"after", b"3"), (b"before", b"1")], "a copy is a store of its own"
    with pytest.raises(StoreError):
        store.copy_to(copy)  # it is there already
    store.write(epoch, [(Table.READY, b"still", b"works")])
