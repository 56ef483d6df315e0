"""What is done often has a fast path through the core; it must change exactly what the other path changes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core import enqueue
from holdfast.core.commands import Draft, HomogeneousDrafts, Settlement
from holdfast.core.enqueue import COLUMNAR_MIN
from holdfast.core.groups import LeaseGroup
from holdfast.core.ids import IDS_A_MS
from holdfast.core.records import NO_EXTRA, Extra, Origin, Table
from holdfast.core.runs import BytesColumn
from holdfast.core.windows import WINDOW
from tests.core.bench import NAME, Bench

EVERYTHING = b"\xff" * 32
SECOND = 1_000_000
HOUR = 3600 * SECOND

TYPED = Extra(content_type="text/plain")
SHARED = (NO_EXTRA, TYPED, Extra(properties=(("a", "b"),)), Extra(message_id="m"), Extra(reply_to="r" * 65_536))

draft = st.builds(
    Draft,
    st.binary(max_size=12),
    priority=st.sampled_from((128, 128, 128, 0, 255, 256)),
    deliver_at=st.sampled_from((0, 0, 0, 1 << 60)),
    ttl=st.sampled_from((-1, -1, -1, 0, 5)),
    extra=st.sampled_from((NO_EXTRA, NO_EXTRA, Extra(key="k"), Extra(key="l"), TYPED)),
)


def all_with(extra: Extra) -> st.SearchStrategy[list[Draft]]:
    return st.lists(
        st.builds(Draft, st.binary(max_size=12), priority=st.just(128), extra=st.just(extra)), min_size=1, max_size=20
    )


few, mixed = st.lists(draft, max_size=5), st.lists(draft, min_size=COLUMNAR_MIN, max_size=3 * COLUMNAR_MIN)
batches = st.lists(st.one_of(few, mixed, *map(all_with, SHARED)), min_size=1, max_size=4)
fields = st.sampled_from(({}, {"ordering": "strict"}, {"message_ttl": 0}, {"max_depth": 20}))


def group_state(group: LeaseGroup) -> tuple[object, ...]:
    windows = {
        priority: (window.frontier, window.reached, window.complete, list(window.loaded))
        for priority, window in group.windows.items()
    }
    keys = {key: (state.held, state.waiting, state.deferred, state.first) for key, state in group.keys.items()}
    deliveries = [(one.id, one.token, one.failures, one.ready_at) for one in group.deliveries.values()]
    ended = dict(group.ended.known)
    return windows, keys, deliveries, ended, group.leased, list(group.ready), list(group.backoffs), set(group.skips)


def everything(bench: Bench, *without: Table) -> list[object]:
    """All that is stored, and all that the shard has in memory, the cache of hot messages included."""
    bench.engine.write()
    shard = bench.shard
    stored = {
        table: bench.engine.store.scan(table, b"", EVERYTHING, 1 << 20) for table in Table if table not in without
    }
    groups = [group_state(group) for group in shard.groups.values()]
    return [stored, groups, dict(shard.cached_records), bench.engine.memory.cache_used_bytes, shard.masks.known]


def life(
    batches: Sequence[Sequence[Draft]],
    groups: tuple[str, ...],
    hot_bytes: int,
    ids_left: int = IDS_A_MS,
    **fields: object,
) -> list[object]:
    """Enqueue, lease and ack; what was answered, and everything after each of them. `ids_left`: so many ids are
    consecutive from the first on."""
    bench = Bench(groups, hot_bytes, **fields)
    bench.engine.ids.take(bench.now, (IDS_A_MS - ids_left - bench.engine.ids.floor) % IDS_A_MS)
    seen: list[object] = []
    for batch in batches:
        reply = bench.engine.enqueue(NAME, batch, "http", bench.now)
        seen.append((reply.ids, reply.first_seq, list(reply.errors), everything(bench)))
        bench.now -= 10  # the clock goes back: the next messages expire before the last ones
    for group in groups:
        leased = bench.lease(8, group)
        seen.append(everything(bench))
        settlements = [Settlement(item.message.id, item.token) for item in leased[::2]]
        bench.engine.settle(NAME, group, settlements, bench.now + HOUR // 60)
        seen.append(everything(bench))
    return seen


@given(
    batches,
    st.sampled_from((("g",), ("g", "h"), ())),
    st.sampled_from((1 << 20, 1_000, 200, 0)),
    st.one_of(st.just(IDS_A_MS), st.integers(0, 3 * COLUMNAR_MIN)),
    fields,
)
@example([[Draft(b"x" * 100)] * 20], ("g",), 1_000, 6, {})
@example([[Draft(b"x" * 100)] * 20], ("g",), 10_000, 6, {})
def test_a_columnar_enqueue_changes_what_the_other_one_does(
    batches: list[list[Draft]], groups: tuple[str, ...], hot_bytes: int, ids_left: int, fields: dict[str, object]
) -> None:
    columnar = life(batches, groups, hot_bytes, ids_left, **fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(enqueue, "_enqueue_columnar", lambda *_: False)
        assert life(batches, groups, hot_bytes, ids_left, **fields) == columnar


@pytest.mark.parametrize("count", [WINDOW, WINDOW + 1, 5 * WINDOW])
@pytest.mark.parametrize("groups", [(), ("g",)])
def test_a_columnar_enqueue_keeps_as_many_messages_hot(count: int, groups: tuple[str, ...]) -> None:
    batch = [Draft(b"%d" % number) for number in range(count)]
    columnar = life([batch], groups, 1 << 20, max_depth=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(enqueue, "_enqueue_columnar", lambda *_: False)
        assert life([batch], groups, 1 << 20, max_depth=0) == columnar


payloads = st.lists(st.binary(max_size=12), min_size=1, max_size=20)


@given(
    st.lists(payloads, min_size=1, max_size=4),
    st.sampled_from(SHARED),
    st.sampled_from(({}, {"ordering": "strict"}, {"message_ttl": 0}, {"max_depth": 30}, {"max_message_size": 8})),
)
def test_a_column_of_payloads_is_as_good_as_drafts(
    batches: list[list[bytes]], extra: Extra, fields: dict[str, object]
) -> None:
    one_by_one = life(
        [[Draft(payload, extra=extra) for payload in batch] for batch in batches], ("g",), 500, IDS_A_MS, **fields
    )
    columns = [HomogeneousDrafts(BytesColumn.of(batch), extra) for batch in batches]
    assert life(columns, ("g",), 500, IDS_A_MS, **fields) == one_by_one


# --- acks -------------------------------------------------------------------------------------------------------------

special = st.builds(
    Draft,
    st.binary(max_size=12),
    priority=st.sampled_from((128, 128, 0)),
    deliver_at=st.sampled_from((0, 0, 1)),
    ttl=st.sampled_from((-1, -1, HOUR)),
    extra=st.sampled_from((NO_EXTRA, NO_EXTRA, Extra(key="k"), Extra(key="l"))),
)


def acked(
    drafts: list[Draft], order: list[int], lost: set[int], groups: tuple[str, ...], together: bool
) -> tuple[list[bool], object]:
    """Ack deliveries of these drafts in this order, some under tokens that are not theirs; what was done, and what is
    left."""
    bench = Bench(groups)
    for index, one in enumerate(drafts):
        if one.deliver_at:
            one.deliver_at = bench.now + 1
        if index % 5 == 4:
            one.extra = Extra(key=one.extra.key, origin=Origin(index, "source", "group"))
    bench.engine.enqueue(NAME, drafts, "http", bench.now)
    bench.advance(SECOND)
    found = bench.lease(len(drafts)) + bench.lease(len(drafts))
    chosen = [found[index % len(found)] for index in order]
    ids = [item.message.id for item in chosen]
    tokens = [item.token + (100_000 if index in lost else 0) for index, item in enumerate(chosen)]
    if together:
        results = bench.engine.ack(NAME, "g", ids, tokens, bench.now)
    else:
        results = [
            result
            for message_id, token in zip(ids, tokens, strict=True)
            for result in bench.engine.ack(NAME, "g", [message_id], [token], bench.now)
        ]
    return [result is None for result in results], everything(bench, Table.JOURNAL, Table.META)


@given(
    st.lists(special, min_size=COLUMNAR_MIN, max_size=3 * COLUMNAR_MIN),
    st.lists(st.integers(0, 30), min_size=1, max_size=40),
    st.sets(st.integers(0, 39), max_size=5),
    st.sampled_from((("g",), ("g", "h"))),
)
def test_acks_together_change_what_acks_one_by_one_do(
    drafts: list[Draft], order: list[int], lost: set[int], groups: tuple[str, ...]
) -> None:
    together = acked(
        [Draft(d.payload, d.priority, d.deliver_at, d.ttl, d.extra) for d in drafts], order, lost, groups, True
    )
    assert acked(drafts, order, lost, groups, together=False) == together


# --- which path -------------------------------------------------------------------------------------------------------


def test_homogeneous_messages_are_stored_columnar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue, "_store", None)
    bench = Bench()
    for extra in (NO_EXTRA, TYPED):
        drafts = [Draft(b"%d" % number, extra=extra) for number in range(COLUMNAR_MIN)]
        assert len(bench.engine.enqueue(NAME, drafts, "", bench.now).ids) == COLUMNAR_MIN
        leased = bench.lease(COLUMNAR_MIN)
        assert [Draft(item.message.payload, extra=item.message.extra) for item in leased] == drafts
        assert bench.settle(leased) == [None] * COLUMNAR_MIN


@pytest.mark.parametrize("extra", [Extra(message_id="m"), Extra(reply_to="r" * 65_536)])
def test_what_must_be_remembered_or_is_too_large_is_looked_at(extra: Extra) -> None:
    bench = Bench()
    drafts = [Draft(b"a", extra=extra)] * COLUMNAR_MIN
    first = bench.engine.enqueue(NAME, drafts, "", bench.now)
    again = bench.engine.enqueue(NAME, drafts, "", bench.now)
    assert bool(again.duplicates) == (extra.message_id is not None)
    assert bool(first.errors) == (extra.reply_to is not None)


def test_a_priority_that_there_is_not_is_refused_in_a_large_batch_too() -> None:
    drafts = [Draft(b"a", priority=256)] * COLUMNAR_MIN
    reply = Bench().engine.enqueue(NAME, drafts, "", 1)
    assert reply.ids == [0] * COLUMNAR_MIN
    assert {str(error) for error in reply.errors.values()} == {"priority is 0 to 255, not 256."}


def test_a_batch_that_does_not_fit_into_memory_is_read_from_the_store() -> None:
    bench = Bench(hot_bytes=150)
    bench.enqueue("kept")
    bench.enqueue(*["large" * 10] * COLUMNAR_MIN)
    assert list(bench.shard.cached_records) == [1]
    assert [len(item.message.payload) for item in bench.lease(3)] == [4, 50, 50]
    assert bench.engine.memory.cache_used_bytes == 0
