"""Looking at messages: what is next, pages over partitions, ranges of one partition, where partitions begin."""

from __future__ import annotations

import pytest

from holdfast.core.commands import Browse, Draft, Verb
from holdfast.core.queue import GroupKind
from holdfast.core.records import Extra, Table, message_key
from holdfast.engine.browse import (
    browse_messages,
    browse_range,
    finish,
    head_message,
    partition_bounds,
)
from holdfast.errors import GroupNotFound, InvalidArgument
from holdfast.units import SECOND
from tests.engine.rig import TASKS, Rig


def head(cell: Rig, group: str) -> bytes | None:
    message = head_message(cell.engine, TASKS, group, cell.now)
    return None if message is None else message.payload


def test_the_head_is_the_best_of_all_partitions(cell: Rig) -> None:
    cell.create_queue(partitions=3)
    assert head(cell, "g") is None
    cell.enqueue(b"late", b"later")
    cell.enqueue(Draft(b"second", priority=5))
    cell.enqueue(Draft(b"first", priority=1))
    cell.enqueue(Draft(b"delayed", priority=0, deliver_at=cell.now + SECOND))
    assert head(cell, "g") == b"first", "a first group would begin with all that is stored"
    cell.create_group("g")
    assert head(cell, "g") == b"first"
    assert head(cell, "other") is None, "a second group would begin with nothing"
    cell.lease()
    assert head(cell, "g") == b"second"
    cell.lease(9)
    assert head(cell, "g") is None


def test_the_head_of_a_group_that_reads_what_it_has_not_written_yet(memory: Rig) -> None:
    memory.create_queue(partitions=1)
    memory.engine.enqueue(TASKS, [Draft(b"new")], "test", memory.now)
    assert head(memory, "g") == b"new"


def test_there_is_no_head_if_its_record_is_not_found(memory: Rig) -> None:
    memory.create_queue(partitions=1)
    [shard] = memory.queue().shards
    memory.enqueue(b"m")
    shard.evict_records()
    memory.engine.add([(Table.MESSAGES, message_key(shard.number, 1), None)])
    memory.engine.write()
    assert head(memory, "g") is None


def test_pages_go_through_all_partitions_from_the_oldest(cell: Rig) -> None:
    cell.create_queue(partitions=3)
    for number in range(7):
        cell.enqueue(b"%d" % number)
    seen: list[bytes] = []
    cursor = ""
    while True:
        page = browse_messages(cell.engine, TASKS, 3, cursor, "", "", cell.now)
        seen += [message.payload for _, message, _ in page.messages]
        cursor = page.cursor
        if not cursor:
            break
    assert seen == [b"%d" % number for number in range(7)]


def test_a_page_can_be_of_one_state_in_one_group(cell: Rig) -> None:
    cell.create_queue(partitions=1)
    cell.create_group("g")
    cell.create_group("h")
    cell.enqueue(b"a", b"b")
    [leased] = cell.lease()

    def found(state: str, group: str) -> list[int]:
        page = browse_messages(cell.engine, TASKS, 10, "", state, group, cell.now)
        return [message.id for _, message, _ in page.messages]

    both = found("", "")
    assert found("leased", "g") == [leased.message.id]
    assert found("leased", "h") == []
    assert found("leased", "") == [leased.message.id]
    assert found("", "h") == both
    with pytest.raises(GroupNotFound):
        found("", "nobody")


@pytest.mark.parametrize("cursor", ["x", "-1", "1,1,1", ","])
def test_a_cursor_of_another_queue_is_refused(memory: Rig, cursor: str) -> None:
    memory.create_queue(partitions=2)
    with pytest.raises(InvalidArgument, match="cursor"):
        browse_messages(memory.engine, TASKS, 10, cursor, "", "", memory.now)


def test_a_cursor_from_before_partitions_were_added_goes_on_with_all_of_them(memory: Rig) -> None:
    memory.create_queue(partitions=2)
    memory.enqueue(b"a")
    memory.enqueue(b"b")
    [[_, last, _]] = browse_messages(memory.engine, TASKS, 10, "0", "", "", memory.now).messages
    assert last.payload == b"a", "the first partition was over, the second begins"


def test_a_range_is_bounded_by_records_bytes_and_sequences(cell: Rig) -> None:
    cell.create_queue(partitions=1)
    cell.enqueue(*[b"%02d" % number for number in range(10)])
    cell.consume(2)

    def found(first: int = 0, until: int = 0, limit: int = 100, max_bytes: int = 100) -> tuple[list[int], int]:
        page = browse_range(cell.engine, TASKS, 0, first, until, limit, max_bytes, cell.now)
        return [message.seq for message, _ in page.messages], page.next_seq

    assert found() == ([3, 4, 5, 6, 7, 8, 9, 10], 0)
    everything = browse_range(cell.engine, TASKS, 0, 0, 0, 100, 100, cell.now, gone=True)
    assert [(message.seq, len(statuses)) for message, statuses in everything.messages] == [
        (seq, int(seq > 2)) for seq in range(1, 11)
    ], "what is settled is there until the journal has it"
    assert found(limit=4) == ([3, 4], 5), "records that are not live are read too"
    assert found(first=5, until=7) == ([5, 6], 0)
    assert found(max_bytes=4) == ([3, 4], 5)
    with pytest.raises(InvalidArgument, match="partition"):
        browse_range(cell.engine, TASKS, 1, 0, 0, 10, 10, cell.now)


def test_a_range_is_read_in_chunks(memory: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.reading.CHUNK", 3)
    memory.create_queue(partitions=1)
    memory.enqueue(*[b"%02d" % number for number in range(10)])
    page = browse_range(memory.engine, TASKS, 0, 0, 0, 7, 100, memory.now)
    assert ([message.seq for message, _ in page.messages], page.next_seq) == ([1, 2, 3, 4, 5, 6, 7], 8)
    assert [message.seq for message in memory.live()] == list(range(1, 11))


def test_bounds_are_those_of_all_messages_or_of_the_young_ones(cell: Rig) -> None:
    cell.create_queue(partitions=2)
    cell.create_group("log", kind=GroupKind.CURSOR)
    cell.enqueue(Draft(b"old", extra=Extra(key="k")), Draft(b"old", extra=Extra(key="k")))
    then = cell.now = cell.now + SECOND
    cell.enqueue(Draft(b"young", extra=Extra(key="k")))
    bounds = {one.end: one.first for one in finish(partition_bounds(cell.engine, TASKS, 0, cell.clock))}
    assert bounds == {4: 1, 1: 1}
    bounds = {one.end: one.first for one in finish(partition_bounds(cell.engine, TASKS, then, cell.clock))}
    assert bounds == {4: 3, 1: 1}


def test_a_dead_message_is_browsed_in_its_dead_queue(memory: Rig) -> None:
    memory.enqueue(b"bad")
    memory.consume(1, Verb.REJECT)
    assert memory.live() == []
    [dead] = memory.live(("default", "dlq/tasks"))
    assert dead.payload == b"bad"


def test_states_are_those_that_a_group_would_see_where_there_is_none(cell: Rig) -> None:
    cell.create_queue(partitions=2)
    cell.enqueue(b"now", Draft(b"later", deliver_at=cell.now + SECOND))

    def bodies(state: str) -> list[bytes]:
        page = browse_messages(cell.engine, TASKS, 10, "", state, "", cell.now)
        return [message.payload for _, message, _ in page.messages]

    assert (bodies("ready"), bodies("scheduled"), bodies("leased")) == ([b"now"], [b"later"], [])
    cell.now += 2 * SECOND
    assert sorted(bodies("ready")) == [b"later", b"now"]


def test_a_step_reads_no_more_messages_than_it_may_return(memory: Rig) -> None:
    memory.create_queue(partitions=1)
    memory.enqueue(b"a", b"b", b"c")
    [shard] = memory.queue().shards
    page = memory.engine.step(memory.queue(), shard, Browse(1, 2, 100), memory.now)
    assert ([message.payload for message, _ in page.messages], page.next_seq) == ([b"a", b"b"], 3)
