"""Purge and deletion miss nothing: not what only a cursor group holds, not what falls due or is edited meanwhile.

`_ends` reads the journal as an export would, and `_left` what an export would leave of the messages.
"""

from __future__ import annotations

import pytest

from holdfast.core.codecs import read_message
from holdfast.core.commands import Draft, Verb
from holdfast.core.journal import read_block, removable, rows
from holdfast.core.queue import GroupKind
from holdfast.core.records import Message, Table, message_key, seq_of
from holdfast.core.states import ENDED
from holdfast.engine.cursors import cursor_commit, cursor_read
from holdfast.engine.groups import delete_group
from holdfast.engine.messages import edit_message
from holdfast.engine.queues import delete_queue, purge_queue
from holdfast.errors import QueueFull
from tests.engine.rig import TASKS, Rig

SECOND = 1_000_000
_ENDS = {state.value for state in ENDED}


def _left(cell: Rig) -> list[bytes]:
    """The payloads of the message records that no journal entry names as removable."""
    store, gone = cell.engine.store, set()
    for _, value in store.scan(Table.JOURNAL, b"", b"\xff" * 9, 1 << 20):
        for shard, seqs in removable(read_block(value)):
            for seq in seqs:
                assert (shard, seq) not in gone, f"message {seq} of shard {shard} is removed twice"
                gone.add((shard, seq))
    found = store.scan(Table.MESSAGES, b"", b"\xff" * 13, 1 << 20)
    return [
        read_message(seq_of(key), value).payload
        for key, value in found
        if (int.from_bytes(key[:4], "big"), seq_of(key)) not in gone
    ]


def _ends(cell: Rig) -> dict[tuple[bytes, str], str]:
    """By payload and group, how each message ended in the journal."""
    store = cell.engine.store
    payloads: dict[int, bytes] = {}
    found: dict[tuple[bytes, str], str] = {}

    def fetch(shard: int, first: int, count: int) -> list[Message]:
        records = store.scan(Table.MESSAGES, message_key(shard, first), message_key(shard, first + count), count)
        return [read_message(seq_of(key), value) for key, value in records]

    for _, value in store.scan(Table.JOURNAL, b"", b"\xff" * 9, 1 << 20):
        for row in rows(read_block(value), 1, fetch):
            if row.payload is not None:
                payloads[row.message_id] = row.payload
            if row.event.value in _ENDS:
                found[payloads[row.message_id], row.group or ""] = row.event.value
    return found


def _commit(cell: Rig, group: str, seq: int) -> None:
    cell.run(cursor_commit(cell.engine, TASKS, group, 0, seq, cell.clock))


def _read(cell: Rig, group: str) -> list[bytes]:
    found = cursor_read(cell.engine, TASKS, group, 0, 0, 100, 1 << 20, cell.now)
    return [message.payload for message in found.messages]


@pytest.fixture
def lagging(cell: Rig) -> Rig:
    """A cursor group has committed the first message, another all; the leasing group has acked all but the last."""
    cell.create_queue(partitions=1)
    cell.create_group("g")
    cell.create_group("log", kind=GroupKind.CURSOR)
    cell.create_group("fast", kind=GroupKind.CURSOR)
    cell.enqueue(b"a", b"b", b"c", b"d")
    _commit(cell, "log", 1)
    _commit(cell, "fast", 4)
    cell.consume(3)
    return cell


def test_a_deleted_queue_leaves_nothing_that_only_a_cursor_group_held(lagging: Rig) -> None:
    count = sum(lagging.run(delete_queue(lagging.engine, TASKS, lagging.clock)))
    assert count == 3
    assert _left(lagging) == []
    ends = _ends(lagging)
    assert [ends[payload, "log"] for payload in (b"a", b"b", b"c", b"d")] == ["acked", "purged", "purged", "purged"]
    assert {ends[payload, "fast"] for payload in (b"a", b"b", b"c", b"d")} == {"acked"}
    assert lagging.engine.store.scan(Table.SETTLED, b"", b"\xff" * 13, 9) == []


def test_a_purge_removes_what_only_a_cursor_group_held(lagging: Rig) -> None:
    assert sum(lagging.run(purge_queue(lagging.engine, TASKS, lagging.clock))) == 3
    assert (_left(lagging), lagging.queue().depth, lagging.queue().size_bytes) == ([], 0, 0)
    assert _read(lagging, "log") == []
    assert _ends(lagging)[b"c", "log"] == "purged"
    _commit(lagging, "log", 4)
    assert lagging.engine.store.scan(Table.SETTLED, b"", b"\xff" * 13, 9) == []
    lagging.enqueue(b"e")
    assert _read(lagging, "log") == [b"e"]


def test_a_purge_leaves_what_is_leased_for_the_cursor_group_too(lagging: Rig) -> None:
    leased = lagging.lease()
    assert sum(lagging.run(purge_queue(lagging.engine, TASKS, lagging.clock))) == 2
    assert _read(lagging, "log") == [b"d"]
    lagging.settle(leased)
    assert (_read(lagging, "log"), lagging.queue().depth) == ([b"d"], 1)
    _commit(lagging, "log", 4)
    assert (_left(lagging), lagging.queue().depth) == ([], 0)


def test_the_depth_counts_what_only_a_cursor_group_holds(lagging: Rig) -> None:
    queue = lagging.queue()
    assert (queue.depth, queue.size_bytes) == (3, 3)
    lagging.restart()
    assert (lagging.queue().depth, lagging.queue().size_bytes) == (3, 3)
    _commit(lagging, "log", 2)
    assert lagging.queue().depth == 2
    lagging.run(delete_group(lagging.engine, TASKS, "log", lagging.clock))
    assert (lagging.queue().depth, lagging.queue().size_bytes, _left(lagging)) == (1, 1, [b"d"])


def test_a_lagging_cursor_group_makes_the_queue_full(cell: Rig) -> None:
    cell.create_queue(partitions=2, max_depth=3)
    cell.create_group("g")
    cell.create_group("log", kind=GroupKind.CURSOR)
    for _ in range(3):
        cell.enqueue(b"m")
        cell.consume(1)
    reply = cell.enqueue(b"one too many")
    assert isinstance(reply.errors[0], QueueFull)
    for partition, shard in enumerate(cell.queue().shards):
        cell.run(cursor_commit(cell.engine, TASKS, "log", partition, shard.head.next_seq - 1, cell.clock))
    assert not cell.enqueue(b"room again").errors


def test_a_queue_whose_cursor_group_was_just_deleted_is_deleted_whole(cell: Rig) -> None:
    """The sweep for what the group left has not come yet."""
    cell.create_queue(partitions=1)
    cell.create_group("g")
    cell.create_group("log", kind=GroupKind.CURSOR)
    cell.enqueue(b"a", b"b")
    cell.consume(1)
    next(delete_group(cell.engine, TASKS, "log", cell.clock))
    cell.engine.write()
    cell.run(delete_queue(cell.engine, TASKS, cell.clock))
    assert _left(cell) == []


@pytest.mark.parametrize("deleted", [False, True], ids=["purged", "deleted"])
def test_what_falls_due_meanwhile_does_not_escape(cell: Rig, monkeypatch: pytest.MonkeyPatch, deleted: bool) -> None:
    monkeypatch.setattr("holdfast.core.admin.CHUNK", 2)
    cell.create_queue(partitions=1)
    cell.create_group("g")
    for number in range(4):
        # The urgent one is in the order of delivery before those that are removed first, once it is due.
        cell.enqueue(b"ready %d" % number, Draft(b"late %d" % number, 0, cell.now + (number + 1) * SECOND))
    work = (delete_queue if deleted else purge_queue)(cell.engine, TASKS, cell.clock)
    for _ in work:
        cell.engine.write()
        cell.advance(SECOND)
    assert _left(cell) == []
    assert set(_ends(cell).values()) == {"purged"}
    assert len(_ends(cell)) == 8


@pytest.mark.parametrize("delay", [None, SECOND], ids=["sooner", "later"])
def test_what_is_edited_meanwhile_is_purged_too(cell: Rig, monkeypatch: pytest.MonkeyPatch, delay: int | None) -> None:
    monkeypatch.setattr("holdfast.core.admin.CHUNK", 1)
    cell.create_queue(partitions=1)
    *_, last = cell.enqueue(b"first", b"second", b"last").ids
    work = purge_queue(cell.engine, TASKS, cell.clock)
    while next(work) == 0:
        cell.engine.write()
    cell.engine.write()
    edit_message(cell.engine, TASKS, last, 0, None if delay is None else cell.now + delay, cell.now)
    cell.run(work)
    assert cell.live() == []


def test_a_purge_reads_no_more_at_a_time_than_fits(memory: Rig) -> None:
    """Large messages are removed in small steps."""
    memory.create_queue(partitions=1)
    memory.enqueue(*[bytes(1 << 20)] * 20)
    counts = memory.run(purge_queue(memory.engine, TASKS, memory.clock))
    assert sum(counts) == 20
    assert max(counts) < 12


def test_dead_letters_of_what_expires_meanwhile_are_kept(cell: Rig) -> None:
    """A deletion does not reach into the dead queue."""
    cell.create_queue(partitions=1)
    cell.enqueue(b"a", b"b")
    cell.consume(1, Verb.REJECT)
    cell.run(delete_queue(cell.engine, TASKS, cell.clock))
    assert _left(cell) == [b"a"]
