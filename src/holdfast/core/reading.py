"""Reading messages without leasing them: browse, peek, find by id, and which message records are live."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from holdfast.core.codecs import read_message, read_messages
from holdfast.core.commands import (
    Bounded,
    Bounds,
    Browse,
    Browsed,
    DeliveryStatus,
    Find,
    Peek,
)
from holdfast.core.effects import Effects, Outcome, Read
from holdfast.core.records import (
    PRIORITY_END,
    Message,
    Table,
    due_key,
    message_key,
    ready_key,
    scheduled_key,
    seq_of,
)
from holdfast.core.shard import RANGE_READ_MIN, Shard, handles
from holdfast.core.states import DeliveryState
from holdfast.errors import MessageNotFound

CHUNK = 256  # messages a step of a long command handles


class Live(Enum):
    """Whether a message record is live, or only kept for the journal."""

    READY = auto()
    SCHEDULED = auto()
    GONE = auto()


class LiveState(NamedTuple):
    """Whether a message is live, and its stamp if it is ready."""

    live: Live
    stamp: int = 0


GONE_STATE = LiveState(Live.GONE)


def liveness(shard: Shard, messages: list[Message]) -> dict[int, LiveState]:
    """By sequence, whether messages are live."""
    number = shard.number
    ready = {
        message.seq: ready_key(number, message.priority, message.id) for message in messages if not message.deliver_at
    }
    there = _ready(shard, list(ready.values()))
    delayed = [message for message in messages if message.deliver_at]
    due = [(Table.DUE, due_key(number, message.seq)) for message in delayed]
    scheduled = [(Table.SCHEDULED, scheduled_key(number, message.deliver_at, message.seq)) for message in delayed]
    shard.require([Read(*place) for place in (*due, *scheduled)])
    found = {
        message.seq: LiveState(Live.READY, message.id) if ready[message.seq] in there else GONE_STATE
        for message in messages
        if not message.deliver_at
    }
    for message, place, before in zip(delayed, due, scheduled, strict=True):
        value = shard.get(*place)
        if value is not None:
            found[message.seq] = LiveState(Live.READY, int.from_bytes(value, "big"))
        else:
            found[message.seq] = LiveState(Live.SCHEDULED) if shard.get(*before) is not None else GONE_STATE
    return found


def _ready(shard: Shard, keys: list[bytes]) -> set[bytes]:
    """Those of these keys that are in the order of delivery.

    Neighbours are read as a range, which costs a third of a lookup each. Messages that were delayed may be between
    them; where these are many, the keys behind them are looked up one by one.
    """
    there: set[bytes] = set()
    alone: list[bytes] = []
    by_priority: dict[bytes, list[bytes]] = {}
    for key in keys:
        by_priority.setdefault(key[:PRIORITY_END], []).append(key)
    runs = [sorted(own) for own in by_priority.values() if len(own) >= RANGE_READ_MIN]
    reads = [Read(Table.READY, own[0], _after(own[-1]), 2 * len(own)) for own in runs]
    shard.require(reads)
    for own, read in zip(runs, reads, strict=True):
        rows = shard.scan(*read)  # type: ignore[arg-type]
        there.update([key for key, _ in rows])
        if len(rows) == read.limit:
            alone += [key for key in own if key > rows[-1][0]]
    alone += [key for own in by_priority.values() if len(own) < RANGE_READ_MIN for key in own]
    shard.require([Read(Table.READY, key) for key in alone])
    there.update([key for key in alone if shard.get(Table.READY, key) is not None])
    return there


def _after(key: bytes) -> bytes:
    """The key behind this one."""
    return (int.from_bytes(key, "big") + 1).to_bytes(len(key), "big")


def log_read(shard: Shard, first: int, last: int, limit: int) -> Read:
    """The read of `log`."""
    return Read(Table.MESSAGES, message_key(shard.number, first), message_key(shard.number, last + 1), limit)


def log(shard: Shard, first: int, last: int, limit: int) -> list[Message]:
    """Message records by sequence, whether live or not."""
    read = log_read(shard, first, last, limit)
    known = shard.logs.get(read)  # a step that started again has read them already
    if known is None:
        rows = shard.scan(*read)  # type: ignore[arg-type]
        known = shard.logs[read] = read_messages([seq_of(key) for key, _ in rows], [value for _, value in rows])
    return known


def chunk_for(shard: Shard, limit: int, max_bytes: int) -> int:
    """How many records to read at a time so that about `max_bytes` are read."""
    count, size_bytes = shard.counted()
    average = size_bytes // max(count, 1) + 1
    return max(1, min(limit, CHUNK, max_bytes // average + 1))


def unschedule(shard: Shard, message: Message, effects: Effects) -> None:
    """A delayed message leaves the schedule."""
    effects.ops.append((Table.SCHEDULED, scheduled_key(shard.number, message.deliver_at, message.seq), None))
    shard.head.scheduled -= 1
    shard.head.size_bytes -= len(message.payload)


# --- looking --------------------------------------------------------------------------------------------------------


@handles(Browse)
def browse(shard: Shard, command: Browse, _now: int, effects: Outcome[Browsed]) -> None:
    end = shard.head.next_seq
    last = (min(end, command.until) if command.until else end) - 1
    found: list[tuple[Message, list[DeliveryStatus]]] = []
    size = 0
    at = max(command.first, 1)
    left = command.scan_limit or last
    while at <= last and len(found) < command.limit and size < command.max_bytes and left > 0:
        chunk = chunk_for(
            shard, left, command.max_bytes - size
        )  # not by how many are still wanted: many may not be live
        messages = log(shard, at, last, chunk)
        left -= chunk
        live_states = liveness(shard, messages)
        shard.require_masks(message.seq for message in messages)
        at = messages[-1].seq + 1 if len(messages) == chunk else last + 1
        wanted = [message for message in messages if command.gone or live_states[message.seq].live is not Live.GONE]
        room = command.limit - len(found)
        if len(wanted) > room:
            at = wanted[room].seq
        for message in wanted[:room]:
            live = live_states[message.seq].live
            found.append((message, [] if live is Live.GONE else delivery_statuses(shard, message, live)))
            size += len(message.payload)
    effects.reply = Browsed(found, at if at <= last else 0)


@handles(Peek)
def peek(shard: Shard, command: Peek, _now: int, effects: Outcome[Browsed]) -> None:
    shard.require_records(command.seqs)
    records = [(seq, shard.find_record(seq)) for seq in command.seqs]
    messages = [read_message(seq, value) for seq, value in records if value is not None]
    live_states = liveness(shard, messages)
    shard.require_masks(message.seq for message in messages)
    live = [
        (message, live_states[message.seq].live)
        for message in messages
        if live_states[message.seq].live is not Live.GONE
    ]
    effects.reply = Browsed([(message, delivery_statuses(shard, message, where)) for message, where in live], 0)


def delivery_statuses(shard: Shard, message: Message, live: Live) -> list[DeliveryStatus]:
    """The delivery status of a live message in each leasing group it is for."""
    waits = DeliveryState.SCHEDULED if live is Live.SCHEDULED else DeliveryState.READY
    mask = shard.mask(message.seq) if shard.shared() else 0
    found: list[DeliveryStatus] = []
    for group in shard.groups.values():
        if group.head.start > message.seq:
            continue
        delivery = group.deliveries.get(message.id)
        if mask & group.bit:
            found.append(DeliveryStatus(group.name, "settled", 0))
        elif delivery is None:
            found.append(DeliveryStatus(group.name, waits, 1, ready_at=message.deliver_at))
        else:
            state = (
                DeliveryState.LEASED
                if delivery.token
                else DeliveryState.SCHEDULED
                if delivery.ready_at
                else DeliveryState.READY
            )
            found.append(
                DeliveryStatus(
                    group.name,
                    state,
                    delivery.failures + 1,
                    delivery.consumer,
                    delivery.deadline,
                    delivery.ready_at,
                    delivery.error,
                )
            )
    return found


@handles(Bounds)
def bounds(shard: Shard, command: Bounds, _now: int, effects: Outcome[Bounded]) -> None:
    end = shard.head.next_seq
    if command.since:
        first = _first_from(shard, lambda message: message.enqueued_at < command.since)
    else:
        first = next(iter(log(shard, 1, end - 1, 1)), None)
    effects.reply = Bounded(first.seq if first is not None else end, end)


def _first_from(shard: Shard, before: Callable[[Message], bool]) -> Message | None:
    """The first record that is not `before`: in the order of sequences all others come first. Found by a search that
    reads as many records at a time as `CellMemory.probes` says."""
    low, high = 1, shard.head.next_seq
    found: Message | None = None
    while low < high:
        end, parts = high, shard.memory.probes + 1
        middles = sorted({low + (high - low) * part // parts for part in range(1, parts)})
        shard.require(log_read(shard, middle, end - 1, 1) for middle in middles)
        for middle in middles:
            messages = log(shard, middle, end - 1, 1)
            if messages and before(messages[0]):
                low = messages[0].seq + 1
                continue
            high = middle
            found = messages[0] if messages else found
            break
    return found


@handles(Find)
def find(shard: Shard, command: Find, _now: int, effects: Outcome[tuple[Message, list[DeliveryStatus]] | None]) -> None:
    try:
        message, live_state = locate(shard, command.id)
    except MessageNotFound:
        return
    shard.require_masks([message.seq])
    effects.reply = (message, delivery_statuses(shard, message, live_state.live))


def locate(shard: Shard, message_id: int) -> tuple[Message, LiveState]:
    """A live message by its id. Ids grow with sequences."""
    message = _first_from(shard, lambda one: one.id < message_id)
    if message is not None and message.id == message_id:
        live_state = liveness(shard, [message])[message.seq]
        if live_state.live is not Live.GONE:
            return message, live_state
    raise MessageNotFound(message_id=message_id, queue=shard.queue)
