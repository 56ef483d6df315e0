"""A cursor that moves on takes with it exactly what nobody needs any more, in large steps as in small ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import cursors
from holdfast.core.commands import CursorCommit, Draft, Progress, RemoveGroup
from holdfast.core.effects import DeleteRun
from holdfast.core.queue import GroupKind
from holdfast.core.records import NO_EXTRA, Extra, Origin, Table
from holdfast.engine.messages import delete_message
from tests.core.bench import NAME, Bench

EVERYTHING = b"\xff" * 32
SECOND = 1_000_000
OF_LIVE_MESSAGES = (
    Table.READY,
    Table.KEYED,
    Table.SCHEDULED,
    Table.DUE,
    Table.SETTLED,
    Table.EXPIRIES,
    Table.SOURCES,
)

extras = st.sampled_from((NO_EXTRA, Extra(key="a"), Extra(key="a"), Extra(key="b"), Extra(key="c")))
drafts = st.lists(
    st.builds(
        Draft,
        st.binary(max_size=12),
        priority=st.sampled_from((128, 128, 128, 0)),
        deliver_at=st.sampled_from((0, 0, 0, 5 * SECOND, 500 * SECOND)),
        ttl=st.sampled_from((-1, -1, -1, 60 * SECOND)),
        extra=extras,
    ),
    min_size=1,
    max_size=30,
)


class Scene:
    """A queue with a cursor group, messages of all kinds, and what has happened to some of them."""

    def __init__(self, batch: list[Draft], deleted: set[int], leasing: bool, second: int) -> None:
        self.bench = bench = Bench(())
        bench.add_group("log", GroupKind.CURSOR)
        if second:
            bench.add_group("other", GroupKind.CURSOR)
        if leasing:
            bench.add_group("g")
        dead_letter = Extra(origin=Origin(7, "elsewhere", "g"))
        for draft in (*batch, Draft(b"letter", extra=dead_letter)):
            later = bench.now + draft.deliver_at if draft.deliver_at else 0
            made = Draft(draft.payload, draft.priority, later, draft.ttl, draft.extra)
            self.ids = [*getattr(self, "ids", []), *bench.engine.enqueue(NAME, [made], "", bench.now).ids]
        bench.advance(10 * SECOND)  # some fall due
        for index in sorted(deleted):
            if index < len(self.ids):
                delete_message(bench.engine, NAME, self.ids[index], bench.now)
        if leasing:
            bench.settle(bench.lease(3))
        self.last = len(self.ids)
        if second:
            self.commit([second], "other", min(second, self.last))

    def commit(self, sizes: list[int], group: str = "log", last: int = 0) -> int:
        """Commit to the end, by so many at a time."""
        at = count = turn = 0
        last = last or self.last
        while at < last:
            reply = self.bench.step(CursorCommit(group, min(last, at + sizes[turn % len(sizes)])))
            at, count, turn = reply.at, count + reply.count, turn + 1
        return count

    def stored(self) -> dict[str, list[tuple[bytes, bytes]]]:
        return {table.name: self.bench.engine.store.scan(table, b"", EVERYTHING, 1 << 20) for table in OF_LIVE_MESSAGES}


@given(
    drafts,
    st.sets(st.integers(0, 30), max_size=4),
    st.booleans(),
    st.integers(0, 40),
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.sampled_from((1, 3, 100)),
)
def test_large_steps_leave_what_single_ones_do(
    batch: list[Draft], deleted: set[int], leasing: bool, second: int, sizes: list[int], chunk: int
) -> None:
    one_by_one = Scene(batch, deleted, leasing, second)
    count = one_by_one.commit([1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursors, "SPAN", 7)
        patch.setattr(cursors, "CHUNK", chunk)
        together = Scene(batch, deleted, leasing, second)
        assert together.commit(sizes) == count
    assert together.stored() == one_by_one.stored()
    assert together.bench.shard.head == one_by_one.bench.shard.head
    assert together.bench.engine.memory.cache_used_bytes == one_by_one.bench.engine.memory.cache_used_bytes


@given(drafts, st.sets(st.integers(0, 30), max_size=4), st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_of_what_the_last_reader_has_passed_nothing_is_left(
    batch: list[Draft], deleted: set[int], sizes: list[int]
) -> None:
    scene = Scene(batch, deleted, leasing=False, second=0)
    assert scene.commit(sizes) == scene.last - len([index for index in deleted if index < scene.last])
    assert not any(scene.stored().values())
    head = scene.bench.shard.head
    assert (head.ready, head.scheduled, head.size_bytes, head.priorities) == (0, 0, 0, {})
    assert not scene.bench.shard.cached_records
    assert scene.bench.engine.memory.cache_used_bytes == 0


def test_neighbours_go_by_one_deletion() -> None:
    bench = Bench(())
    bench.add_group("log", GroupKind.CURSOR)
    bench.enqueue(*["x"] * 100, key="k")
    reply = bench.shard.step(CursorCommit("log", 90), bench.now)
    while reply.reads:
        bench.shard.supply(reply.reads, bench.engine.store.read(reply.reads))
        reply = bench.shard.step(CursorCommit("log", 90), bench.now)
    assert [(table, type(value)) for table, _, value in reply.ops] == [
        (Table.READY, DeleteRun),
        (Table.KEYED, DeleteRun),
    ]


def test_where_many_that_were_delayed_stand_between_each_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "SPAN", 2)
    bench = Bench(())
    bench.add_group("log", GroupKind.CURSOR)
    bench.add_group("other", GroupKind.CURSOR)
    for number in range(6):
        bench.enqueue(f"late {number}", delay=SECOND)
    bench.enqueue("at once")
    bench.advance(2 * SECOND)  # their places are between these two
    bench.enqueue("last")
    for group in ("log", "other"):
        count = 0
        while bench.shard.cursors[group].head.committed < 8:
            reply = bench.step(CursorCommit(group, 8))
            count += reply.count
        assert count == 8
        assert bench.shard.head.ready == (8 if group == "log" else 0)
    assert not bench.engine.store.scan(Table.READY, b"", EVERYTHING, 10)


def test_a_cursor_passes_by_what_is_long_gone_without_reading_it() -> None:
    bench = Bench()
    for _ in range(3):
        bench.enqueue(*["x"] * 100)
        bench.settle(bench.lease(100))
    bench.enqueue("live")
    blocks = bench.engine.store.scan(Table.MESSAGES, b"", EVERYTHING, 1_000)
    bench.engine.add([(Table.MESSAGES, key, None) for key, _ in blocks[:300]])  # as the export does
    bench.engine.write()
    bench.add_group("log", GroupKind.CURSOR)
    reply = bench.step(CursorCommit("log", 301))
    assert reply == Progress(1, done=True, at=301)


def test_what_a_group_was_to_skip_is_forgotten_with_the_message() -> None:
    bench = Bench(("g", "h"))
    bench.add_group("log", GroupKind.CURSOR)
    bench.enqueue("x", ttl=SECOND)
    bench.lease(group="h")
    bench.advance(2 * SECOND)  # it expires in the group that has not leased it
    assert bench.group.skips == {1}
    bench.step(RemoveGroup("h"))
    bench.step(CursorCommit("log", 1))
    assert bench.group.skips == set()
    assert bench.shard.head.ready == 0
