"""Records of transactions, and what can be said of them without a store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import transactions
from holdfast.core.commands import Draft, Enqueue, Packed, PublishStaged
from holdfast.core.queue import GroupKind
from holdfast.core.records import NO_EXTRA, Extra, Origin, Table, WorkflowState
from holdfast.core.transactions import ShardPart, StagedPart, blocks, choose, read_block, route
from holdfast.errors import FormatUnknown, TransactionIncomplete
from tests.core.bench import Bench
from tests.core.strategies import extras

plain = st.builds(Draft, st.binary(max_size=20), extra=st.sampled_from((NO_EXTRA, Extra(key="a"), Extra(key="b"))))
any_kind = st.builds(
    Draft,
    st.binary(max_size=20),
    st.integers(0, 255),
    st.sampled_from((0, 1 << 50)),
    st.sampled_from((-1, 5)),
    extra=extras,
)


@given(st.one_of(st.lists(plain, max_size=12), st.lists(any_kind, max_size=12)))
def test_what_is_staged_is_read_back_in_its_order(drafts: list[Draft]) -> None:
    made = list(blocks((3 * place, draft) for place, draft in enumerate(drafts)))
    found = [read_block(value) for value, _ in made]
    assert [draft for block in found for draft in block.drafts()] == drafts
    assert [order for block in found for order in block.orders] == list(range(0, 3 * len(drafts), 3))
    assert sum(count for _, count in made) == len(drafts)


@pytest.mark.parametrize(
    "odd",
    [
        Draft(b"x", 7),
        Draft(b"x", deliver_at=1 << 50),
        Draft(b"x", ttl=5),
        Draft(b"x", extra=Extra(message_id="m")),
        Draft(b"x", extra=Extra(origin=Origin(1, "q", "g"))),
        Draft(b"x", extra=Extra(state=WorkflowState(1, b"s"))),
        Draft(b"x", extra=Extra(flags=1)),
    ],
)
def test_messages_are_packed_only_if_they_differ_in_nothing_but_keys(odd: Draft) -> None:
    keyed = [Draft(b"a", extra=Extra(key="k")), Draft(b"b"), Draft(b"c", extra=Extra(key="k", content_type="t"))]
    ((packed, _),) = blocks(enumerate(keyed))
    ((drafts, _),) = blocks(enumerate([*keyed, odd]))
    ((unkeyed, _),) = blocks(enumerate([Draft(b"a"), Draft(b"b")]))
    kinds = [isinstance(read_block(value).messages, Packed) for value in (packed, drafts, unkeyed)]
    assert kinds == [True, False, False]


def tables(bench: Bench) -> dict[str, list[tuple[bytes, bytes]]]:
    bench.engine.write()
    return {table.name: bench.engine.store.scan(table, b"", b"\xff" * 32, 1 << 20) for table in Table}


@given(
    st.lists(plain, min_size=1, max_size=12),
    st.sampled_from(({}, {"ordering": "strict"}, {"ordering": "none"}, {"message_ttl": 0}, {"journal": "off"})),
    st.booleans(),
    st.sampled_from((0, 150, 1 << 20)),
    st.sampled_from((0, 1, -1)),
)
def test_what_is_packed_is_published_as_if_it_were_enqueued(
    drafts: list[Draft], fields: dict[str, object], leasing: bool, hot_bytes: int, later: int
) -> None:
    """`later` is -1: the clock goes back, so that these expire before those that were there."""
    packed = read_block(next(blocks(enumerate([*drafts, Draft(b"", extra=Extra(key="k"))])))[0])
    assert isinstance(packed.messages, Packed)
    found: list[tuple[object, ...]] = []
    for published in (True, False):
        bench = Bench(("g",) if leasing else (), hot_bytes, **fields)
        bench.add_group("log", GroupKind.CURSOR)
        bench.enqueue("before")
        now = bench.now + later
        ids = bench.engine.ids.take(now, len(packed.orders))
        command = (
            PublishStaged(packed.messages, ids, "http")
            if published
            else Enqueue(packed.drafts(), -1, "http", ids, validated=True)
        )
        reply = bench.engine.step(bench.queue, bench.shard, command, now)
        stored = tables(bench)
        leased = bench.lease(20) if leasing else []
        found.append((reply, stored, bench.shard.head, leased, tables(bench)))
    assert found[0] == found[1]


@pytest.mark.parametrize("groups", [(), ("g",)])
def test_what_is_published_is_cached_for_groups_only(groups: tuple[str, ...]) -> None:
    packed = read_block(next(blocks(enumerate([Draft(b"a", extra=Extra(key="k")), Draft(b"b")])))[0])
    assert isinstance(packed.messages, Packed)
    bench = Bench(groups)
    bench.step(PublishStaged(packed.messages, bench.engine.ids.take(bench.now, 2), "http"))
    assert list(bench.shard.cached_records) == ([1, 2] if groups else [])
    assert bool(bench.shard.memory.cache_used_bytes) == bool(groups)


def test_blocks_are_bounded_by_number_and_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "BLOCK_MESSAGES", 3)
    assert [count for _, count in blocks((i, Draft(b"x")) for i in range(7))] == [3, 3, 1]
    assert [count for _, count in blocks((i, Draft(b"x")) for i in range(6))] == [3, 3]
    monkeypatch.setattr(transactions, "BLOCK_BYTES", 10)
    assert [count for _, count in blocks((i, Draft(b"x" * 9)) for i in range(5))] == [2, 2, 1]


def test_a_block_of_an_unknown_version_is_not_guessed_at() -> None:
    with pytest.raises(FormatUnknown, match="format 9"):
        read_block(b"\x09rest")


def test_staged_parts_come_in_the_order_in_which_they_began() -> None:
    staged_parts = [StagedPart(0, "p", "1"), StagedPart(1, "q", "1"), StagedPart(2, "p", "2")]
    assert [staged_part.number for staged_part in choose("t", staged_parts, {"q": "1", "p": "2"})] == [1, 2]
    assert [staged_part.number for staged_part in choose("t", staged_parts[:2], None)] == [0, 1]
    assert choose("t", staged_parts, {}) == []
    with pytest.raises(TransactionIncomplete, match="by attempts"):
        choose("t", staged_parts, None)
    with pytest.raises(TransactionIncomplete, match="'r'"):
        choose("t", staged_parts, {"r": "1"})


def test_the_way_of_a_move_goes_shard_by_shard() -> None:
    staged_parts = [
        StagedPart(0, "p", "", shard_parts={7: ShardPart("a", 5, 2), 3: ShardPart("b", 1, 1)}),
        StagedPart(1, "q", "", shard_parts={3: ShardPart("b", 2, 4)}),
    ]
    assert route(staged_parts) == [(3, 0, 1), (3, 1, 4), (7, 0, 2)]
