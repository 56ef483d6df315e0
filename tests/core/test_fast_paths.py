"""What is done often has a short way through the core; it must leave what the long way leaves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import enqueue, leasing
from holdfast.core.commands import Draft, HomogeneousDrafts, Settlement
from holdfast.core.effects import RUN_MIN
from holdfast.core.records import NO_EXTRA, Extra, Table
from holdfast.core.runs import BytesColumn
from tests.core.bench import NAME, Bench

EVERYTHING = b"\xff" * 32
HOUR = 3_600_000_000

TYPED = Extra(content_type="text/plain")
SHARED = (NO_EXTRA, TYPED, Extra(properties=(("a", "b"),)), Extra(message_id="m"), Extra(reply_to="r" * 65_536))

drafts = st.lists(
    st.builds(
        Draft,
        st.binary(max_size=12),
        priority=st.sampled_from((128, 128, 128, 0, 255, 256)),
        deliver_at=st.sampled_from((0, 0, 0, 1 << 60)),
        ttl=st.sampled_from((-1, -1, -1, 0, 5)),
        extra=st.sampled_from((NO_EXTRA, NO_EXTRA, Extra(key="k"), TYPED)),
    ),
    max_size=5,
)


def all_with(extra: Extra) -> st.SearchStrategy[list[Draft]]:
    return st.lists(
        st.builds(Draft, st.binary(max_size=12), priority=st.just(128), extra=st.just(extra)), min_size=1, max_size=20
    )


batches = st.lists(st.one_of(drafts, *map(all_with, SHARED)), min_size=1, max_size=4)


def stored(bench: Bench) -> dict[str, list[tuple[bytes, bytes]]]:
    bench.engine.write()
    return {table.name: bench.engine.store.scan(table, b"", EVERYTHING, 1 << 20) for table in Table}


def life(batches: Sequence[Sequence[Draft]], fields: dict[str, object]) -> tuple[list[object], object]:
    """Enqueue, lease and ack; what was answered, and what stands in the store after each of them."""
    bench = Bench(("g",), 1 << 20, **fields)
    seen: list[object] = []
    for batch in batches:
        reply = bench.engine.enqueue(NAME, batch, "http", bench.now)
        seen.append((reply.ids, reply.first_seq, list(reply.errors)))
        bench.now -= 10  # the clock goes back: what comes next expires before what came before
    seen.append(stored(bench))
    leased = bench.lease(8)
    seen.append(stored(bench))
    bench.now += HOUR // 60
    settlements = [Settlement(item.message.id, item.token) for item in leased[::2]]
    bench.engine.settle(NAME, "g", settlements, bench.now)
    return seen, stored(bench)


@given(batches, st.sampled_from(({}, {"ordering": "strict"}, {"message_ttl": 0}, {"max_depth": 6})))
def test_the_short_ways_leave_what_the_long_ones_do(batches: list[list[Draft]], fields: dict[str, object]) -> None:
    short = life(batches, fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(enqueue, "_enqueue_fast_path", lambda *_: False)
        patch.setattr(leasing, "_ack_fast_path", lambda *_: False)
        assert life(batches, fields) == short


payloads = st.lists(st.binary(max_size=12), min_size=1, max_size=20)


@given(
    st.lists(payloads, min_size=1, max_size=4),
    st.sampled_from(SHARED),
    st.sampled_from(({}, {"ordering": "strict"}, {"message_ttl": 0}, {"max_depth": 30}, {"max_message_size": 8})),
)
def test_payloads_that_lie_together_are_drafts(
    batches: list[list[bytes]], extra: Extra, fields: dict[str, object]
) -> None:
    one_by_one = life([[Draft(payload, extra=extra) for payload in batch] for batch in batches], fields)
    assert life([HomogeneousDrafts(BytesColumn.of(batch), extra) for batch in batches], fields) == one_by_one


def test_plain_messages_take_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue, "_store", None)
    monkeypatch.setattr(leasing, "_ack", None)
    bench = Bench()
    for extra in (NO_EXTRA, TYPED):
        drafts = [Draft(b"%d" % number, extra=extra) for number in range(RUN_MIN)]
        bench.engine.enqueue(NAME, drafts, "", bench.now)
        leased = bench.lease(RUN_MIN)
        assert [Draft(item.message.payload, extra=item.message.extra) for item in leased] == drafts
        assert bench.settle(leased) == [None] * RUN_MIN


@pytest.mark.parametrize("extra", [Extra(message_id="m"), Extra(reply_to="r" * 65_536)])
def test_what_must_be_remembered_or_is_too_large_goes_the_long_way(extra: Extra) -> None:
    bench = Bench()
    drafts = [Draft(b"a", extra=extra)] * RUN_MIN
    first = bench.engine.enqueue(NAME, drafts, "", bench.now)
    again = bench.engine.enqueue(NAME, drafts, "", bench.now)
    assert bool(again.duplicates) == (extra.message_id is not None)
    assert bool(first.errors) == (extra.reply_to is not None)


def test_a_priority_that_there_is_not_is_refused_in_a_large_batch_too() -> None:
    drafts = [Draft(b"a", priority=256)] * RUN_MIN
    reply = Bench().engine.enqueue(NAME, drafts, "", 1)
    assert reply.ids == [0] * RUN_MIN
    assert {str(error) for error in reply.errors.values()} == {"priority is 0 to 255, not 256."}


def test_a_batch_that_does_not_fit_into_memory_is_read_from_the_store() -> None:
    bench = Bench(hot_bytes=150)
    bench.enqueue("kept")
    bench.enqueue(*["large" * 10] * RUN_MIN)
    assert list(bench.shard.bodies) == [1]
    assert [len(item.message.payload) for item in bench.lease(3)] == [4, 50, 50]
    assert bench.engine.hot.used_bytes == 0
