"""Columns of byte strings, homogeneous runs and homogeneous drafts are what they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.commands import Draft, HomogeneousDrafts, payload_bytes
from holdfast.core.records import Extra
from holdfast.core.runs import BytesColumn, HomogeneousRun, RecordRun

lists = st.lists(st.binary(max_size=5), max_size=12)
places = st.one_of(st.none(), st.integers(-15, 15))
parts = st.builds(slice, places, places)


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[bytes], BytesColumn]:
    """Values, and the same as a column: by itself, or somewhere in a buffer with others."""
    values, before, after = draw(lists), draw(lists), draw(lists)
    whole = BytesColumn.of([*before, *values, *after])
    if draw(st.booleans()):
        whole.packed_sizes()
    return values, BytesColumn(memoryview(whole.data), whole.bounds).part(len(before), len(before) + len(values))


@given(columns(), parts)
def test_a_column_is_its_values(pair: tuple[list[bytes], BytesColumn], part: slice) -> None:
    values, column = pair
    assert len(column) == len(values)
    assert column[:] == values
    assert column[part] == values[part]
    assert column.sizes() == list(map(len, values))
    assert column.size_bytes == sum(map(len, values))
    assert column.packed_sizes() == b"".join(len(value).to_bytes(4, "big") for value in values)
    assert column.content(0, len(values)) == b"".join(values)


@given(columns(), st.data())
def test_a_part_of_a_column_is_one(pair: tuple[list[bytes], BytesColumn], data: st.DataObject) -> None:
    values, column = pair
    start = data.draw(st.integers(0, len(values)))
    end = data.draw(st.integers(start, len(values)))
    column.packed_sizes()
    part = column.part(start, end)
    assert part[:] == values[start:end]
    assert part.packed_sizes() == BytesColumn.of(values[start:end]).packed_sizes()


@given(columns(), parts, st.integers(0, 1 << 60))
def test_a_series_is_its_values(pair: tuple[list[bytes], BytesColumn], part: slice, number: int) -> None:
    tails, column = pair
    values = [b"<" + at.to_bytes(8, "big") + b"-" + tail for at, tail in enumerate(tails, number)]
    series, run = HomogeneousRun(b"<", number, b"-", column), RecordRun.of(values)
    assert series == run
    assert len(series) == len(run)
    assert series.size_bytes == run.size_bytes == sum(map(len, values))
    assert series[part] == run[part]
    start, end = sorted(slice(part.start, part.stop).indices(len(tails))[:2])
    assert series.part(start, end) == run.part(start, end) == RecordRun.of(values[start:end])
    key = b"k" + bytes(8)
    assert series.rows(key) == run.rows(key)


def test_runs_are_the_same_if_their_values_are() -> None:
    whole, joined = RecordRun.of([b"ab", b"c"]), RecordRun(BytesColumn(b"abc", [0, 2, 3]))
    assert whole == joined != RecordRun.of([b"ab"])
    assert len({whole, joined}) == 1
    assert whole.column[:] == joined[:]
    assert repr(whole) == "RecordRun(2)"
    assert whole.column.sizes() == joined.column.sizes() == [2, 1]


@given(columns(), parts)
def test_a_bulk_is_its_drafts(pair: tuple[list[bytes], BytesColumn], part: slice) -> None:
    payloads, column = pair
    extra = Extra(content_type="text/plain")
    assert list(HomogeneousDrafts(column, extra)) == [Draft(payload, extra=extra) for payload in payloads]
    drafts, bulk = list(map(Draft, payloads)), HomogeneousDrafts(column)
    assert len(bulk) == len(drafts)
    assert list(bulk) == drafts
    assert bulk[part] == drafts[part]
    assert [bulk[at] for at in range(-len(drafts), len(drafts))] == drafts * 2
    assert payload_bytes(bulk) == payload_bytes(drafts) == sum(map(len, payloads))
    with pytest.raises(IndexError):
        bulk[len(drafts)]
