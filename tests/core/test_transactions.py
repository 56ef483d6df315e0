"""Records of transactions, and what can be said of them without a store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import transactions
from holdfast.core.commands import Draft
from holdfast.core.transactions import Lot, Share, blocks, choose, read_block, route
from holdfast.errors import FormatUnknown, TransactionIncomplete
from tests.core.strategies import extras


@given(st.lists(st.builds(Draft, st.binary(max_size=20), st.integers(0, 255), extra=extras), max_size=12))
def test_what_is_staged_is_read_back_in_its_order(drafts: list[Draft]) -> None:
    made = list(blocks(enumerate(drafts)))
    assert [staged for value, _ in made for staged in read_block(value)] == list(enumerate(drafts))
    assert sum(count for _, count in made) == len(drafts)


def test_blocks_are_bounded_by_number_and_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "BLOCK_MESSAGES", 3)
    assert [count for _, count in blocks((i, Draft(b"x")) for i in range(7))] == [3, 3, 1]
    assert [count for _, count in blocks((i, Draft(b"x")) for i in range(6))] == [3, 3]
    monkeypatch.setattr(transactions, "BLOCK_BYTES", 10)
    assert [count for _, count in blocks((i, Draft(b"x" * 9)) for i in range(5))] == [2, 2, 1]


def test_a_block_of_an_unknown_version_is_not_guessed_at() -> None:
    with pytest.raises(FormatUnknown, match="format 9"):
        read_block(b"\x09rest")


def test_the_lots_that_count_come_in_the_order_in_which_they_began() -> None:
    lots = [Lot(0, "p", "1"), Lot(1, "q", "1"), Lot(2, "p", "2")]
    assert [lot.number for lot in choose("t", lots, {"q": "1", "p": "2"})] == [1, 2]
    assert [lot.number for lot in choose("t", lots[:2], None)] == [0, 1]
    assert choose("t", lots, {}) == []
    with pytest.raises(TransactionIncomplete, match="by attempts"):
        choose("t", lots, None)
    with pytest.raises(TransactionIncomplete, match="'r'"):
        choose("t", lots, {"r": "1"})


def test_the_way_of_a_move_goes_shard_by_shard() -> None:
    lots = [
        Lot(0, "p", "", shares={7: Share("a", 5, 2), 3: Share("b", 1, 1)}),
        Lot(1, "q", "", shares={3: Share("b", 2, 4)}),
    ]
    assert route(lots) == [(3, 0, 1), (3, 1, 4), (7, 0, 2)]
