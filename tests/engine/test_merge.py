"""How many of the next deliveries each partition has: merged in runs as one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.records import Place
from holdfast.engine.merge import Items, OrderKey, quotas

END = (256, 0)


def place(priority: int, stamp: int, size_bytes: int = 1) -> Place:
    return Place(stamp, stamp, b"", 0, priority, size_bytes)


def one_by_one(
    lists: dict[int, Items], limit: int, known: OrderKey, max_bytes: int, one_at_least: bool
) -> dict[int, int]:
    """What `quotas` says, written as simply as possible."""
    together = sorted((item.priority, item.stamp, name, item.size_bytes) for name in lists for item in lists[name])
    counts: dict[int, int] = {}
    for priority, stamp, name, size_bytes in together[:limit]:
        max_left = max_bytes - size_bytes
        if (priority, stamp) > known or (max_bytes and max_left < 0 and (counts or not one_at_least)):
            break
        max_bytes = max_left or -1 if max_bytes else 0
        counts[name] = counts.get(name, 0) + 1
    return counts


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=12
    ),
    st.integers(1, 40),
    st.one_of(st.just(END), st.tuples(st.integers(0, 2), st.integers(0, 60))),
    st.sampled_from([0, 1, 7, 30, 1_000]),
    st.booleans(),
)
def test_by_stretches_as_one_by_one(
    stretches: list[tuple[int, int, int, int]], limit: int, known: OrderKey, max_bytes: int, one_at_least: bool
) -> None:
    lists: dict[int, Items] = {name: [] for name in range(5)}
    stamp = 0
    for priority, name, length, size_bytes in stretches:
        lists[name] += [place(priority, stamp + index, size_bytes) for index in range(length)]
        stamp += length
    for items in lists.values():
        items.sort(key=lambda item: (item.priority, item.stamp))
    expected = one_by_one(lists, limit, known, max_bytes, one_at_least)
    assert quotas(lists, limit, known, max_bytes, one_at_least) == expected


def test_the_first_goes_out_however_large_it_is() -> None:
    lists: dict[int, Items] = {0: [place(1, 1, 50)], 1: [place(1, 2, 1)]}
    assert quotas(lists, 10, END, 10, one_at_least=True) == {0: 1}
    assert quotas(lists, 10, END, 10, one_at_least=False) == {}


def test_two_at_the_same_place_both_go() -> None:
    lists: dict[int, Items] = {0: [place(1, 5), place(1, 6)], 1: [place(1, 5)]}
    assert quotas(lists, 10, END, 0, one_at_least=True) == {0: 2, 1: 1}
