"""Columns say exactly what rows say."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.codecs import HomogeneousBatch
from holdfast.core.journal import EntryKind, ShardName, decoded, read_block, removable, rows, write_block
from holdfast.core.queue import JournalMode
from holdfast.core.records import NO_EXTRA, Extra, Message, Origin
from holdfast.core.runs import BytesColumn
from holdfast.errors import FormatUnknown
from holdfast.journal.columns import CELLS, RUNS, Columns

NAMES = {
    1: ShardName("default", "tasks", 0, JournalMode.PAYLOAD),
    2: ShardName("other", "tasks/image", 3, JournalMode.METADATA),
}
EXTRAS = (
    NO_EXTRA,
    Extra(key="k"),
    Extra(message_id="mine", correlation_id="c", properties=(("a", "1"), ("a", "2"))),
    Extra(origin=Origin(7, "source", "group")),
    Extra(enqueued_as=(201, 0)),
    Extra(key="k", enqueued_as=(202, 5)),
)


def message(shard: int, seq: int) -> Message:
    """A message whose fields follow from where it stands, and differ from its neighbours'."""
    return Message(
        id=shard * 1_000_000 + seq,
        seq=seq,
        priority=seq % 256,
        enqueued_at=5,
        deliver_at=seq * 100 if seq % 3 == 0 else 0,
        expires_at=0,
        extra=EXTRAS[seq % len(EXTRAS)] if seq > 20 else NO_EXTRA,
        payload=b"x" * (seq % 7),
    )


def fetch(shard: int, first: int, count: int) -> list[Message]:
    return [message(shard, seq) for seq in range(first, first + count)]


def fetch_in_parts(shard: int, first: int, count: int) -> list[list[Message] | HomogeneousBatch]:
    """The same, some of them as such that are alike."""
    found: list[list[Message] | HomogeneousBatch] = []
    for message in fetch(shard, first, count):
        plain = HomogeneousBatch(msgspec.structs.replace(message, payload=b""), BytesColumn.of([message.payload]))
        found.append([message] if message.seq % 5 == 0 else plain)
    return found


shards = st.sampled_from(sorted(NAMES))
texts = st.sampled_from(["", "some", "text"])
ids = st.lists(st.integers(1, 1 << 62), min_size=1, max_size=4)
details = st.sampled_from(
    [None, {"deliver_at": 5}, {"priority": 0, "deliver_at": None}, {"client_message_id": "m"}, {"source_id": 9}]
)
one = st.tuples(
    st.just(EntryKind.ONE),
    shards,
    texts,
    st.sampled_from(["failed", "dead", "edited", "extended"]),
    st.integers(1, 1 << 62),
    st.integers(0, 3),
    texts,
    texts,
    texts,
    texts,
    details,
)
entries = st.lists(
    st.one_of(
        st.tuples(st.just(EntryKind.ENQUEUED), shards, st.integers(1, 40), st.integers(1, 5), texts, st.just(10)),
        st.tuples(st.sampled_from([EntryKind.LEASED, EntryKind.ACKED]), shards, st.just("g"), texts, texts, ids).map(
            lambda entry: (*entry, [1] * len(entry[5]))
        ),
        one,
        st.tuples(st.just(EntryKind.MANY), shards, texts, st.just("purged"), texts, ids),
        st.tuples(st.just(EntryKind.REMOVABLE), shards, ids),
    ),
    max_size=8,
)


def count_rows(entry: tuple[Any, ...]) -> int:
    match entry[0]:
        case EntryKind.ENQUEUED:
            return int(entry[3])
        case EntryKind.ONE:
            return 1
        case EntryKind.REMOVABLE:
            return 0
        case _:
            return len(entry[5])


def as_rows(columns: Columns, node: int) -> list[dict[str, Any]]:
    """Columns turned back into rows, the slow way."""
    found: list[dict[str, Any]] = []
    start = 0
    for end, *shared in columns.runs:
        for index in range(start, end):
            cells = {name: columns.cell(name)[index] for name in CELLS}
            common = dict(zip(RUNS, shared, strict=True))
            found.append(
                {"lsn": columns.first_lsn + index, "node": node, "message_id": columns.message_ids[index]}
                | common
                | cells
            )
        start = end
    return found


@given(st.lists(entries, min_size=1, max_size=4))
def test_columns_of_blocks_hold_the_rows_of_the_blocks(blocks: list[list[tuple[object, ...]]]) -> None:
    columns = Columns()
    expected: list[dict[str, Any]] = []
    freed: dict[int, list[int]] = {}
    lsn = 11
    for number, block_entries in enumerate(blocks):
        count = sum(count_rows(entry) for entry in block_entries)
        block = read_block(write_block(lsn, count, 1000 + number, NAMES, block_entries))
        lsn += count
        columns.add(block, list(decoded(block)), fetch_in_parts)
        expected += [msgspec.structs.asdict(row) for row in rows(block, 3, fetch)]
        for shard, sequences in removable(block):
            freed.setdefault(shard, []).extend(sequences)

    assert as_rows(columns, 3) == expected
    assert columns.rows == len(expected)
    assert columns.removable == freed
    if expected:
        assert columns.at == expected[0]["at"]


def add(entry: tuple[object, ...], count: int) -> None:
    block = read_block(write_block(1, count, 1000, NAMES, [entry]))
    Columns().add(block, list(decoded(block)), lambda _shard, _first, _count: [])


def test_a_block_that_has_fewer_rows_than_it_says_is_refused() -> None:
    with pytest.raises(ValueError, match="has 1 rows, not 2"):
        add((EntryKind.MANY, 1, "g", "purged", "", [5]), 2)


def test_messages_that_are_not_there_are_an_error() -> None:
    with pytest.raises(ValueError, match="lacks messages of the sequences 4 to 6"):
        add((EntryKind.ENQUEUED, 1, 4, 3, "http", 30), 3)


def test_an_entry_needs_an_attempt_for_every_id() -> None:
    with pytest.raises(ValueError, match="2 ids and 1 attempts"):
        add((EntryKind.ACKED, 1, "g", "c", "http", [1, 2], [1]), 2)


def test_a_block_knows_the_bytes_that_it_refers_to() -> None:
    given_entries = [
        (EntryKind.ENQUEUED, 1, 1, 2, "http", 30),
        (EntryKind.REMOVABLE, 1, [1]),
        (EntryKind.ENQUEUED, 2, 1, 1, "mqtt", 12),
    ]
    assert read_block(write_block(1, 3, 1000, NAMES, list(given_entries))).size_bytes == 42


def test_a_block_of_a_version_to_come_is_refused() -> None:
    value = msgspec.msgpack.encode((99, 1, 0, 1000, {}, []))
    with pytest.raises(FormatUnknown, match="written in format"):
        read_block(value)
