"""Blocks give back the rows they were made of, as rows and as columns."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.journal import EntryKind, Row, ShardName, decoded, read_block, removable, rows, write_block
from holdfast.core.queue import JournalMode
from holdfast.core.records import NO_EXTRA, Extra, Message, Origin
from holdfast.core.states import JournalEvent
from holdfast.errors import FormatUnknown
from holdfast.journal.columns import CELLS, RUNS, Columns
from tests.core.strategies import messages, text, u63

NAMES = {
    1: ShardName("default", "tasks", 0, JournalMode.PAYLOAD),
    2: ShardName("other", "mail/in", 3, JournalMode.METADATA),
}
Written = tuple[object, ...]

shards = st.sampled_from(sorted(NAMES))
groups = st.text(min_size=1, max_size=9)
batches = st.lists(st.tuples(u63, st.integers(1, 99)), min_size=1, max_size=4)
details = st.none() | st.fixed_dictionaries(
    {}, optional={"source_id": u63, "deliver_at": u63, "priority": st.integers(0, 255)}
)
stored = st.lists(messages | messages.map(lambda m: msgspec.structs.replace(m, extra=NO_EXTRA)), min_size=1, max_size=4)


@st.composite
def journals(draw: st.DrawFn) -> tuple[list[Written], int, dict[tuple[int, int], list[Message]]]:
    """Entries, their number of rows, and the messages that they refer to."""
    entries: list[Written] = []
    count = 0
    bodies: dict[tuple[int, int], list[Message]] = {}
    for index in range(draw(st.integers(0, 6))):
        shard = draw(shards)
        kind = draw(st.sampled_from(EntryKind))
        if kind is EntryKind.ENQUEUED:
            found = bodies[shard, index] = draw(stored)
            size = sum(len(message.payload) for message in found)
            entries.append((kind, shard, index, len(found), draw(text), size))
            count += len(found)
        elif kind in (EntryKind.LEASED, EntryKind.ACKED):
            ids, attempts = zip(*draw(batches), strict=True)
            entries.append((kind, shard, draw(groups), draw(text), draw(text), ids, attempts))
            count += len(ids)
        elif kind is EntryKind.ONE:
            event = draw(st.sampled_from(JournalEvent))
            texts = [draw(text) for _ in range(4)]
            entries.append((kind, shard, draw(text), event, draw(u63), draw(st.integers(0, 9)), *texts, draw(details)))
            count += 1
        elif kind is EntryKind.MANY:
            ids = tuple(draw(st.lists(u63, min_size=1, max_size=4)))
            entries.append((kind, shard, draw(text), draw(st.sampled_from(JournalEvent)), draw(text), ids))
            count += len(ids)
        else:
            entries.append((kind, shard, draw(st.lists(u63, max_size=4))))
    return entries, count, bodies


@given(journals(), u63, st.integers(0, 1023))
def test_rows_and_columns_say_the_same(
    journal: tuple[list[Written], int, dict[tuple[int, int], list[Message]]], first: int, node: int
) -> None:
    entries, count, bodies = journal

    def fetch(shard: int, seq: int, _count: int) -> list[Message]:
        return bodies[shard, seq]

    block = read_block(write_block(first, count, 1234, NAMES, entries))
    found = list(rows(block, node, fetch))
    assert [row.lsn for row in found] == list(range(first, first + count))
    assert {row.node for row in found} <= {node}
    assert block.size_bytes == sum(len(m.payload) for held in bodies.values() for m in held)
    columns = Columns()
    columns.add(block, list(decoded(block)), lambda *place: [fetch(*place)])
    assert _as_dicts(columns) == [{name: getattr(row, name) for name in ("message_id", *RUNS, *CELLS)} for row in found]
    given_up = dict.fromkeys(NAMES, 0)
    for shard, seqs in removable(block):
        given_up[shard] += len(seqs)
    assert {shard: len(columns.removable.get(shard, [])) for shard in NAMES} == given_up


def _as_dicts(columns: Columns) -> list[dict[str, object]]:
    cells = {name: columns.cell(name) for name in CELLS}
    found: list[dict[str, object]] = []
    for run in columns.runs:
        for index in range(len(found), run[0]):
            common = dict(zip(RUNS, run[1:], strict=True))
            own = {name: cell[index] for name, cell in cells.items()}
            found.append({"message_id": columns.message_ids[index], **common, **own})
    return found


def test_an_enqueued_row_says_what_the_message_is() -> None:
    extra = Extra(
        key="k", message_id="order-1", properties=(("a", "b"),), correlation_id="c", origin=Origin(9, "old", "g")
    )
    message = Message(41, 7, 9, 100, 150, 500, extra, b"payload")
    block = read_block(write_block(5, 1, 1234, NAMES, [(EntryKind.ENQUEUED, 1, 7, 1, "http", 7)]))
    assert list(rows(block, 3, lambda *_: [message])) == [
        Row(
            lsn=5,
            at=1234,
            node=3,
            namespace="default",
            queue="tasks",
            partition=0,
            message_id=41,
            client_message_id="order-1",
            event=JournalEvent.ENQUEUED,
            protocol="http",
            priority=9,
            key="k",
            deliver_at=150,
            size_bytes=7,
            source_id=9,
            source_queue="old",
            correlation_id="c",
            properties=(("a", "b"),),
            payload=b"payload",
        )
    ]


def test_a_block_of_only_what_may_go_has_no_rows() -> None:
    block = read_block(write_block(5, 0, 1234, NAMES, [(EntryKind.REMOVABLE, 1, [3, 4])]))
    assert list(rows(block, 1, lambda *_: [])) == []
    assert list(removable(block)) == [(1, [3, 4])]


def test_a_block_of_a_version_nobody_knows_is_refused() -> None:
    with pytest.raises(FormatUnknown, match="written in format 99"):
        read_block(msgspec.msgpack.encode((99, 1, 0, 1, {}, [])))


@pytest.mark.parametrize(
    ("entry", "count", "problem"),
    [
        ((EntryKind.ENQUEUED, 1, 7, 2, "", 0), 2, "shard 1 lacks messages of the sequences 7 to 8"),
        ((EntryKind.ACKED, 1, "g", "", "", [1, 2], [1]), 2, "2 ids and 1 attempts"),
        ((EntryKind.MANY, 1, "g", "purged", "", [1, 2]), 3, "has 2 rows, not 3"),
    ],
)
def test_a_block_that_does_not_add_up_is_refused(entry: Written, count: int, problem: str) -> None:
    block = read_block(write_block(1, count, 1234, NAMES, [entry]))
    with pytest.raises(ValueError, match=problem):
        Columns().add(block, list(decoded(block)), lambda *_: [])


def test_when_the_first_of_some_blocks_happened() -> None:
    columns = Columns()
    for first, at in ((10, 77), (11, 99)):
        block = read_block(write_block(first, 1, at, NAMES, [(EntryKind.MANY, 1, "g", "purged", "", [first])]))
        columns.add(block, list(decoded(block)), lambda *_: [])
    assert (columns.first_lsn, columns.rows, columns.at) == (10, 2, 77)
