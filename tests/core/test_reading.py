"""Where the records of a shard begin, and where those of a time do."""

from __future__ import annotations

import pytest

from holdfast.core.commands import Bounded, Bounds
from holdfast.core.queue import GroupKind
from holdfast.core.records import Table, message_key
from tests.core.bench import Bench

SECOND = 1_000_000


@pytest.fixture
def bench() -> Bench:
    """Four messages, a second apart, of which the first is gone."""
    bench = Bench()
    for payload in "abcd":
        bench.enqueue(payload)
        bench.advance(SECOND)
    bench.settle(bench.lease())
    bench.engine.add([(Table.MESSAGES, message_key(bench.shard.number, 1), None)])  # as the export does
    bench.engine.write()
    return bench


def test_the_bounds_of_an_empty_shard() -> None:
    assert Bench().step(Bounds()) == Bounded(1, 1)


def test_the_first_record_that_is_left(bench: Bench) -> None:
    assert bench.step(Bounds()) == Bounded(2, 5)


@pytest.mark.parametrize(("age", "first"), [(4, 2), (3, 2), (2, 3), (1, 4), (0, 5)])
def test_the_first_record_of_a_time(bench: Bench, age: int, first: int) -> None:
    assert bench.step(Bounds(bench.now - age * SECOND)) == Bounded(first, 5)


def test_where_a_cursor_group_is() -> None:
    bench = Bench(())
    bench.add_group("log", GroupKind.CURSOR)
    assert bench.shard.cursor_head("log").committed == 0
