"""The store over a remote table: what happens between a write and its confirmation, and when the network fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice
from queue import SimpleQueue
from random import Random
from threading import Thread
from weakref import WeakKeyDictionary

import pytest

from holdfast import threads
from holdfast.core.effects import DeleteUntil, Op, Read
from holdfast.core.records import Table, message_key
from holdfast.core.runs import RecordRun
from holdfast.errors import Fenced, StoreAway, StoreError, StoreUnavailable, StoreWentBack
from holdfast.store.contract import Store
from holdfast.store.memory import MemoryStore
from holdfast.store.remote.simulated import Fault, SimulatedServer, SimulatedTable
from holdfast.store.remote.store import RemoteStore
from tests.store.test_conformance import END, Model, apply_to_model, scan_model
from tests.store.test_runs import Writer
from tests.waiting import PATIENCE_SECONDS

RIGS: WeakKeyDictionary[RemoteStore, Rig] = WeakKeyDictionary()


class Rig:
    """A store whose table, and whose thread, do nothing until they are let: `run` lets them do the next thing."""

    def __init__(self, server: SimulatedServer | None = None) -> None:
        self.server = server or SimulatedServer()
        self.waiting: list[Callable[[], None]] = []
        self.now = 100.0
        self.back_at = 0.0  # when a server that is away answers again
        self.faults: list[Fault | None] = []
        self.table = SimulatedTable(
            self.server, later=self.waiting.append, plan=lambda: self.faults.pop(0) if self.faults else None
        )
        self.store = RemoteStore(self.table, patience_seconds=5, clock=lambda: self.now, pause=self._pass)
        RIGS[self.store] = self
        self.ended: list[StoreError | None] = []
        self.epoch = self.store.acquire()

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        self.server.away = self.server.away and self.now < self.back_at

    def run(self) -> None:
        self.waiting.pop(0)()

    def run_all(self) -> None:
        while self.waiting:
            self.run()

    def write(self, *ops: Op) -> None:
        self.store.write(self.epoch, ops)

    def sync(self) -> None:
        self.store.sync_soon(self.ended.append)

    def put(self, key: bytes, value: bytes = b"v") -> None:
        """Write a record and begin to sync it."""
        self.write((Table.META, key, value))
        self.sync()

    def stored(self, table: Table = Table.META) -> list[bytes]:
        return [key for key, _ in MemoryStore(self.server.disk).scan(table, b"", END, 1000)]


@pytest.fixture(autouse=True)
def inline_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is begun on a thread is done by the next `run_all` of a rig; by this thread, where there is none."""

    def start(_name: str, function: Callable[..., object], *args: object) -> None:
        store = getattr(function, "__self__")  # noqa: B009 - a bound method
        rig = RIGS.get(store)

        def work() -> None:
            function(*args)

        if rig is None:
            Thread(target=work).start()
        else:
            rig.waiting.append(work)

    monkeypatch.setattr(threads, "start_thread", start)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_write_asks_the_table_for_nothing_whatever_it_deletes(rig: Rig) -> None:
    run = RecordRun.of([b"v"] * 50)
    rig.write((Table.MESSAGES, message_key(1, 1), run), (Table.READY, message_key(1, 1), run))
    rig.sync()
    rig.run_all()
    other = Rig(rig.server)
    asked = other.table.reads
    other.write((Table.MESSAGES, message_key(1, 9), None), (Table.READY, message_key(1, 1), DeleteUntil(END)))
    other.write((Table.MESSAGES, message_key(1, 10), b"new"))
    assert other.table.reads == asked
    other.sync()
    other.run_all()
    assert other.ended == [None]
    assert len(other.store.scan(Table.MESSAGES, b"", END, 100)) == 49
    assert other.store.scan(Table.READY, b"", END, 100) == []


def test_what_is_written_ten_times_while_a_commit_is_under_way_is_sent_once(rig: Rig) -> None:
    rig.put(b"first")
    rig.put(b"second")
    for number in range(10):
        rig.put(b"head", b"%d" % number)
    run = RecordRun.of([b"v"] * 50)
    rig.write((Table.MESSAGES, message_key(1, 1), run), (Table.MESSAGES, message_key(1, 1), DeleteUntil(END)))
    rig.sync()
    rig.run_all()
    assert rig.ended == [None] * 13
    assert rig.server.commits == 3
    assert rig.stored() == [b"first", b"head", b"second"]
    assert rig.stored(Table.MESSAGE_RUNS) == []
    assert rig.store.get(Table.META, b"head") == b"9"


def test_no_more_commits_are_under_way_than_the_table_takes(rig: Rig) -> None:
    for number in range(6):
        rig.put(b"%d" % number)
    assert len(rig.waiting) == 2
    rig.run()
    assert rig.ended == [None]
    assert len(rig.waiting) == 2, "the next began when the first was confirmed"
    rig.run_all()
    assert rig.server.commits == 3


@pytest.mark.parametrize("done", range(3))
def test_a_crash_with_several_commits_under_way_loses_a_tail(rig: Rig, done: int) -> None:
    for number in range(3):
        rig.put(b"%d" % number)
    for _ in range(done):
        rig.run()
    other = Rig(rig.server)
    rig.run_all()  # too late: it was replaced
    assert rig.stored() == [b"0", b"1"][:done]
    assert [type(error) for error in rig.ended[done:]] == [Fenced] * (3 - done)
    assert [key for key, _ in other.store.scan(Table.META, b"", END, 9)] == [b"0", b"1"][:done]


def test_a_writer_that_was_frozen_stores_nothing_and_learns_it(rig: Rig) -> None:
    rig.put(b"mine")
    other = Rig(rig.server)
    other.put(b"theirs")
    other.run_all()
    rig.run_all()
    assert isinstance(rig.ended[0], Fenced)
    assert rig.ended[0].details == {"epoch": rig.epoch, "current": other.epoch}
    assert rig.stored() == [b"theirs"]
    with pytest.raises(Fenced):
        rig.write((Table.META, b"k", b"v"))
    with pytest.raises(Fenced):
        rig.store.sync()


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("which", range(3))
def test_a_lost_connection_neither_loses_nor_doubles_a_batch(rig: Rig, fault: Fault, which: int) -> None:
    rig.faults = [*[None] * which, fault]
    for number in range(4):
        rig.put(b"%d" % number)
        rig.write((Table.READY, b"%d" % number, b"v"))
    rig.run_all()
    assert rig.ended == [None] * 4
    rig.store.sync_soon(rig.ended.append)
    rig.run_all()
    assert rig.ended == [None] * 5
    assert rig.stored() == rig.stored(Table.READY) == [b"0", b"1", b"2", b"3"]
    assert rig.server.position.batch == 8


def test_reads_see_every_write_before_while_and_after_it_is_confirmed(rig: Rig) -> None:
    rig.put(b"a", b"1")
    rig.put(b"b", b"2")
    for _ in range(3):
        rig.write((Table.META, b"c", b"3"), (Table.META, b"a", None))
        assert rig.store.scan(Table.META, b"", END, 9) == [(b"b", b"2"), (b"c", b"3")]
        assert rig.store.read([Read(Table.META, b"a"), Read(Table.META, b"c")]) == [None, b"3"]
        if rig.waiting:
            rig.run()


def test_many_reads_are_one_round_trip(rig: Rig) -> None:
    run = RecordRun.of([b"%d" % number for number in range(300)])
    rig.write((Table.MESSAGES, message_key(1, 0), run), (Table.READY, message_key(1, 0), run))
    rig.sync()
    rig.run_all()
    before = rig.table.reads
    keys = [message_key(1, number) for number in (*range(100, 200), 3, 299)]
    found = rig.store.read(
        [Read(Table.READY, message_key(1, 0), message_key(2, 0), 256), *[Read(Table.MESSAGES, key) for key in keys]]
    )
    assert isinstance(found[0], list)
    assert [value for _, value in found[0]] == [b"%d" % number for number in range(256)]
    assert found[1:] == [b"%d" % number for number in (*range(100, 200), 3, 299)]
    assert rig.table.reads == before + 1


def test_a_store_that_is_away_for_a_while_is_waited_for(rig: Rig) -> None:
    rig.put(b"a")
    rig.server.away, rig.back_at = True, rig.now + 3
    rig.run()
    rig.put(b"b")
    assert rig.store.behind()[:2] == (2, 4)
    rig.run_all()
    assert rig.ended == [None, None]
    assert rig.stored() == [b"a", b"b"]


def test_one_that_is_away_for_too_long_has_failed_until_it_is_opened_again(rig: Rig) -> None:
    rig.put(b"kept")
    rig.run_all()
    rig.server.away, rig.back_at = True, rig.now + 60
    rig.put(b"a")
    rig.run_all()
    assert isinstance(rig.ended[1], StoreUnavailable)
    for call in (lambda: rig.write((Table.META, b"b", b"v")), rig.store.sync, rig.store.acquire, rig.store.reopen):
        with pytest.raises(StoreUnavailable):
            call()
    rig.server.away = False
    rig.store.reopen()
    assert rig.store.scan(Table.META, b"", END, 9) == [(b"kept", b"v")]
    rig.epoch = rig.store.acquire()
    rig.put(b"c")
    rig.run_all()
    assert rig.stored() == [b"c", b"kept"]


@pytest.mark.parametrize("lost_epochs", [0, 1], ids=["batches", "batches and the takeover"])
def test_a_server_that_has_lost_what_it_confirmed_is_written_no_more(rig: Rig, lost_epochs: int) -> None:
    for number in range(4):
        rig.put(b"%d" % number)
        rig.run_all()
    rig.server.go_back(2)
    rig.server.position = rig.server.position._replace(epoch=rig.epoch - lost_epochs)
    rig.put(b"more")
    rig.run_all()
    error = rig.ended[-1]
    assert isinstance(error, StoreWentBack)
    assert error.details == {"store": "simulated", "confirmed": 4, "found": 2}
    for call in (rig.store.acquire, rig.store.reopen, rig.store.sync):
        with pytest.raises(StoreWentBack):
            call()
    assert rig.stored() == [b"0", b"1"]


def test_it_says_how_far_it_is_behind(rig: Rig) -> None:
    rig.now += 3
    assert rig.store.behind() == (0, 0, 0.0, 3.0)
    rig.put(b"abc", b"de")
    rig.now += 2
    assert rig.store.behind() == (1, 5, 2.0, 5.0)
    rig.run_all()
    assert rig.store.behind() == (0, 0, 0.0, 0.0)


def test_a_read_while_the_store_is_away_fails_and_changes_nothing(rig: Rig) -> None:
    rig.put(b"a")
    rig.run_all()
    rig.write((Table.META, b"b", b"v"))
    rig.server.away, rig.back_at = True, math.inf
    with pytest.raises(StoreAway):
        rig.store.get(Table.META, b"a")
    assert rig.store.get(Table.META, b"b") == b"v", "it is in memory"
    answers: SimpleQueue[object] = SimpleQueue()
    rig.store.read_soon([Read(Table.META, b"a")], answers.put)
    rig.run()  # it asks again whether the store is there
    rig.run()
    assert isinstance(answers.get(timeout=PATIENCE_SECONDS), StoreUnavailable)
    rig.server.away = False
    asked = rig.table.reads
    with pytest.raises(StoreAway):
        rig.store.get(Table.META, b"a")
    assert rig.table.reads == asked, "nobody waits for a store that did not answer"
    rig.run_all()
    assert rig.store.get(Table.META, b"a") == b"v"


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_lost_on_the_way_the_records_are_those_that_were_written(seed: int) -> None:
    random = Random(seed)

    def plan() -> Fault | None:
        return random.choice((Fault.LOST, Fault.UNANSWERED)) if random.random() < 0.15 else None

    server = SimulatedServer()
    store: Store = RemoteStore(SimulatedTable(server, plan=plan), pause=lambda _seconds: None)
    ops, model = Writer(seed).ops(), Model()
    ended: SimpleQueue[StoreError | None] = SimpleQueue()
    epoch = store.acquire()
    syncs = 0
    for _ in range(60):
        batch = list(islice(ops, random.randint(1, 8)))
        store.write(epoch, batch)
        apply_to_model(model, batch)
        if random.random() < 0.5:
            store.sync_soon(ended.put)
            syncs += 1
        for table in (Table.MESSAGES, Table.READY):
            expected = scan_model(model, table, b"", END, 20, False)
            assert store.scan(table, b"", END, 20) == expected
    assert [ended.get(timeout=PATIENCE_SECONDS) for _ in range(syncs)] == [None] * syncs
    store.close()
    store = RemoteStore(SimulatedTable(server))
    for table in (Table.MESSAGES, Table.READY):
        assert store.scan(table, b"", END, 1_000_000) == scan_model(model, table, b"", END, 1_000_000, False)
    assert server.position.batch == 60
    store.close()
