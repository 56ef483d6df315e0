"""Records read back as they were written; keys sort as what they are made of; heads may gain fields."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import records
from holdfast.core.codecs import (
    HomogeneousBatch,
    homogeneous_messages,
    keyed_value,
    read_cursor_head,
    read_delivery,
    read_group_head,
    read_keyed,
    read_leases,
    read_message,
    read_messages,
    read_ready,
    read_run,
    read_scheduled,
    read_shard_head,
    read_state,
    ready_value,
    scheduled_value,
    write_bits,
    write_delivery,
    write_head,
    write_leases,
    write_message,
    write_state,
)
from holdfast.core.deliveries import Delivery, LeaseBatch, first_leases
from holdfast.core.effects import DeleteUntil
from holdfast.core.records import (
    NO_EXTRA,
    CursorHead,
    Extra,
    GroupHead,
    Message,
    Place,
    ShardHead,
    WorkflowState,
    delivery_key,
    keyed_key,
    leases_key,
    ready_key,
    scheduled_key,
    seq_of,
)
from holdfast.core.runs import BytesColumn, RecordRun
from holdfast.errors import FormatUnknown
from tests.core.strategies import (
    cursor_heads,
    deliveries,
    group_heads,
    key_hashes,
    messages,
    shard_heads,
    text,
    u8,
    u32,
    u63,
    u64,
)


def stored(message: Message) -> bytes:
    return write_message(
        message.id,
        message.enqueued_at,
        message.deliver_at,
        message.expires_at,
        message.priority,
        message.extra,
        message.payload,
    )


@given(messages)
def test_a_message_reads_back(message: Message) -> None:
    assert read_message(message.seq, stored(message)) == message


def test_a_plain_message_costs_its_head_and_its_payload() -> None:
    message = Message(1, 2, 3, 4, 5, 6, NO_EXTRA, b"payload")
    assert len(stored(message)) == 38 + len(b"payload")
    assert read_message(2, stored(message)).extra is NO_EXTRA


@given(deliveries, u32, u32)
def test_a_delivery_reads_back(delivery: Delivery, shard: int, group: int) -> None:
    key = delivery_key(shard, group, delivery.id)
    assert read_delivery(key, write_delivery(delivery)) == delivery


@given(
    st.lists(
        st.tuples(messages, u63, key_hashes, u8, u32, u63), min_size=1, max_size=12, unique_by=lambda one: one[0].id
    ),
    u63,
    u63,
    text,
    text,
    st.integers(0, (1 << 12) - 2),
)
def test_leases_read_back_but_for_those_that_are_over(
    leases: list[tuple[Message, int, bytes, int, int, int]],
    now: int,
    deadline: int,
    consumer: str,
    protocol: str,
    over: int,
) -> None:
    given = [message for message, *_ in leases]
    places = [Place(stamp, m.seq, key, flags, m.priority, size) for m, stamp, key, flags, size, _ in leases]
    tokens = [token for *_, token in leases]
    gone = over & ((1 << len(leases)) - 1)
    rows = [
        (leases_key(1, 2, 99, 0), write_leases(first_leases(places, given, tokens, now, deadline, consumer, protocol)))
    ]
    rows += [(leases_key(1, 2, 99, 1), write_bits(gone))] if gone else []
    expected = [
        Delivery(
            message.id,
            message.seq,
            message.priority,
            stamp,
            stamp,
            key,
            flags,
            0,
            message.enqueued_at,
            message.expires_at,
            first_at=now,
            leased_at=now,
            deadline=deadline,
            token=token,
            size_bytes=size,
            consumer=consumer,
            protocol=protocol,
            index=index,
        )
        for index, (message, stamp, key, flags, size, token) in enumerate(leases)
        if not gone >> index & 1
    ]
    ((group, first_token, found, ended),) = read_leases(rows)
    batch = LeaseBatch(first_token, found, ended)
    assert (group, batch.token, batch.left) == (2, 99, len(expected))
    views = [batch.view(index) for index in batch.held()]
    assert [msgspec.structs.replace(delivery, batch=None) for delivery in views] == expected
    assert all(delivery.batch is batch for delivery in views)


def test_records_of_a_version_nobody_knows_are_refused() -> None:
    message = bytearray(stored(Message(1, 2, 3, 4, 5, 6, NO_EXTRA, b"")))
    message[0] = 99
    with pytest.raises(FormatUnknown, match="written in format 99"):
        read_message(2, bytes(message))
    with pytest.raises(FormatUnknown, match="written in format 99"):
        read_messages([2], [bytes(message)])
    delivery = bytearray(write_delivery(Delivery(1, 2, 3, 4, 5, b"", 0, 0, 0, 0)))
    delivery[0] = 99
    with pytest.raises(FormatUnknown, match="written in format 99"):
        read_delivery(delivery_key(1, 1, 1), bytes(delivery))
    leases = msgspec.msgpack.decode(write_leases(first_leases([], [], [], 1, 2, "", "")))
    rows = [(leases_key(1, 1, 1, 0), msgspec.msgpack.encode([99, *leases[1:]]))]
    with pytest.raises(FormatUnknown, match="written in format 99"):
        list(read_leases(rows))
    state = bytearray(write_state(WorkflowState(1, b"half")))
    state[0] = 99
    with pytest.raises(FormatUnknown, match="written in format 99"):
        read_state(bytes(state))


@given(u32, u8, u64, u63, key_hashes, u8, u32)
def test_a_ready_record_reads_back(
    shard: int, priority: int, stamp: int, seq: int, key: bytes, flags: int, size: int
) -> None:
    found = read_ready(ready_key(shard, priority, stamp), ready_value(seq, key, flags, size))
    assert found == Place(stamp, seq, key, flags, priority, size)


@given(u32, u64, u63, u63, u8, key_hashes, u8, u32)
def test_a_scheduled_record_reads_back(
    shard: int, due: int, seq: int, message_id: int, priority: int, key: bytes, flags: int, size: int
) -> None:
    value = scheduled_value(message_id, priority, key, flags, size)
    found = read_scheduled(scheduled_key(shard, due, seq), value)
    assert found == (due, message_id, Place(0, seq, key, flags, priority, size))


@given(u32, st.binary(min_size=8, max_size=8), u8, u64, u63, u63)
def test_a_keyed_record_reads_back(
    shard: int, key: bytes, priority: int, stamp: int, seq: int, message_id: int
) -> None:
    found = read_keyed(keyed_key(shard, key, priority, stamp), keyed_value(seq, message_id))
    assert found == (priority, stamp, seq, message_id)


@given(shard_heads, group_heads, cursor_heads)
def test_heads_read_back(shard: ShardHead, group: GroupHead, cursor: CursorHead) -> None:
    assert read_shard_head(write_head(shard)) == shard
    assert read_group_head(write_head(group)) == group
    assert read_cursor_head(write_head(cursor)) == cursor


@given(shard_heads, st.integers(1, len(ShardHead.__struct_fields__)))
def test_a_head_that_lacks_the_newest_fields_reads_with_their_defaults(head: ShardHead, lacking: int) -> None:
    fields = msgspec.msgpack.decode(write_head(head))
    old = read_shard_head(msgspec.msgpack.encode(fields[:-lacking]))
    names = ShardHead.__struct_fields__
    kept = len(names) - lacking
    assert [getattr(old, name) for name in names[:kept]] == [getattr(head, name) for name in names[:kept]]
    assert [getattr(old, name) for name in names[kept:]] == [getattr(ShardHead(), name) for name in names[kept:]]


KEYS: list[tuple[Callable[..., bytes], tuple[st.SearchStrategy[object], ...]]] = [
    (records.shard_key, (u32,)),
    (records.group_key, (u32, u32)),
    (records.message_key, (u32, u64)),
    (records.ready_key, (u32, u8, u64)),
    (records.scheduled_key, (u32, u64, u64)),
    (records.keyed_key, (u32, st.binary(min_size=8, max_size=8), u8, u64)),
    (records.delivery_key, (u32, u32, u64)),
    (records.leases_key, (u32, u32, u64, u8)),
    (records.journal_key, (u64,)),
    (records.dedup_end_key, (u32, u64, text)),
    (records.source_key, (u32, u64, text)),
    (records.dedup_key, (u32, text)),
]


@pytest.mark.parametrize("index", range(len(KEYS)))
@given(data=st.data())
def test_keys_sort_as_what_they_are_made_of(index: int, data: st.DataObject) -> None:
    make, parts = KEYS[index]
    one, other = data.draw(st.tuples(*parts)), data.draw(st.tuples(*parts))
    assert (make(*one) < make(*other)) == (one < other)
    assert (make(*one) == make(*other)) == (one == other)


names = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), min_size=1, max_size=9)


@given(st.tuples(names, names), st.tuples(names, names))
def test_queues_sort_by_namespace_and_then_by_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (records.queue_key(*one) < records.queue_key(*other)) == (one < other)


@given(u32, u64)
def test_the_sequence_of_a_key(shard: int, seq: int) -> None:
    assert seq_of(records.message_key(shard, seq)) == seq_of(records.settled_key(shard, seq)) == seq


def test_no_two_tables_have_one_number() -> None:
    assert len({int(table) for table in records.Table}) == len(records.Table)


def test_a_range_to_delete_is_a_value() -> None:
    assert DeleteUntil(b"\x01") == DeleteUntil(b"\x01") != DeleteUntil(b"\x02")
    assert len({DeleteUntil(b"\x01"), DeleteUntil(b"\x01")}) == 1
    assert repr(DeleteUntil(b"\x01")) == "DeleteUntil(01)"


# --- messages in runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [NO_EXTRA, Extra(content_type="text/plain")])
def test_a_homogeneous_run_reads_back_columnar(extra: Extra) -> None:
    payloads = [b"a", b"", b"ccc"]
    run = homogeneous_messages(100, 7, 9, 5, extra, BytesColumn.of(payloads))
    batch = read_run(3, run)
    assert isinstance(batch, HomogeneousBatch)
    assert batch.first == Message(100, 3, 5, 7, 0, 9, extra, b"")
    assert batch.payloads[:] == payloads
    part = batch.part(1, 3)
    assert (part.first.id, part.first.seq, part.payloads[:]) == (101, 4, payloads[1:])
    one_by_one = [Message(100 + index, 3 + index, 5, 7, 0, 9, extra, one) for index, one in enumerate(payloads)]
    assert read_run(3, RecordRun.of(run[:])) == one_by_one


@pytest.mark.parametrize("state", [WorkflowState(7, b"half"), WorkflowState(8, b""), WorkflowState(9, None)])
def test_a_workflow_state_reads_back(state: WorkflowState) -> None:
    assert read_state(write_state(state)) == state
