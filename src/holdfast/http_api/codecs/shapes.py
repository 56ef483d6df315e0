"""Between the wire's shapes and the core's: messages, deliveries, queues, groups."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from msgspec import UNSET, Raw

from holdfast import wire
from holdfast.auth.principal import Principal
from holdfast.broker.history import History
from holdfast.core.commands import ERROR_LENGTH_MAX, NO_ID, DeliveryStatus, Draft, Leased, Settlement, Verb
from holdfast.core.queue import GroupRecord, QueueRecord, to_fields
from holdfast.core.records import NO_EXTRA, REPLAYED, Extra, Message, Origin
from holdfast.engine.stats import GroupStats, Histogram, QueueStats
from holdfast.errors import InvalidArgument
from holdfast.http_api.codecs.values import duration, instant, read_id
from holdfast.units import SECOND, format_duration, format_instant

TEXT = "text/plain; charset=utf-8"
CONSUMER_LENGTH_MAX = 255

_durations = lru_cache(1_024)(duration)
"""Producers use the same few values again and again."""

SHARED_TEXT_MAX = 64
"""Longer values are seldom repeated, and not cached."""

_raw_json = msgspec.json.Decoder(Raw).decode


# --- messages in ----------------------------------------------------------------------------------------------------


def read_draft(item: wire.Draft, now: int, correlation_id: str | None) -> Draft:
    """A message as the core takes it."""
    payload, content_type = _payload(item)
    deliver_at = 0
    if item.delay is not None:
        if item.deliver_at is not None:
            raise InvalidArgument(field="delay", problem="cannot stand beside deliver_at; give one of them")
        deliver_at = now + _durations(item.delay, "delay")
    elif item.deliver_at is not None:
        deliver_at = instant(item.deliver_at, "deliver_at")
    ttl = -1 if item.ttl is None else _durations(item.ttl, "ttl")
    if (
        correlation_id is None
        and (item.key is None or len(item.key) <= SHARED_TEXT_MAX)
        and (content_type is None or len(content_type) <= SHARED_TEXT_MAX)
        and item.message_id is None
        and item.correlation_id is None
        and item.reply_to is None
        and not item.properties
    ):
        plain = item.key is None and content_type is None
        return Draft(payload, item.priority, deliver_at, ttl, NO_EXTRA if plain else _shared(item.key, content_type))
    if item.message_id == "":
        raise InvalidArgument(field="message_id", problem=NO_ID)
    extra = Extra(
        item.key,
        item.message_id,
        read_properties(item.properties),
        item.correlation_id if item.correlation_id is not None else correlation_id,
        content_type,
        item.reply_to,
    )
    return Draft(payload, item.priority, deliver_at, ttl, extra)


@lru_cache(maxsize=1_024)
def _shared(key: str | None, content_type: str | None) -> Extra:
    """The same for all messages that bring nothing but this: such a batch is homogeneous, and stored as columns."""
    return Extra(key, content_type=content_type)


def _payload(item: wire.Draft) -> tuple[bytes, str | None]:
    if item.payload is not UNSET:
        if item.text is not UNSET or item.base64 is not UNSET:
            raise InvalidArgument(field="payload", problem="is given twice; give one of payload, text and base64")
        return bytes(item.payload), item.content_type
    if item.text is not UNSET:
        if item.base64 is not UNSET:
            raise InvalidArgument(field="payload", problem="is given twice; give one of payload, text and base64")
        return item.text.encode(), TEXT if item.content_type is None else item.content_type
    return b"" if item.base64 is UNSET else item.base64, item.content_type


def read_properties(properties: wire.Properties) -> tuple[tuple[str, str], ...]:
    if not properties:
        return ()
    pairs: list[tuple[str, str]] = []
    for name, value in properties.items():
        if isinstance(value, str):
            pairs.append((name, value))
        else:
            pairs += [(name, each) for each in value]
    return tuple(pairs)


def read_origin(origin: wire.Origin) -> Origin:
    return Origin(
        read_id(origin.source_id, "source_id"),
        origin.source_queue,
        origin.source_group,
        origin.reason,
        origin.error[:ERROR_LENGTH_MAX],
        origin.attempts,
        0 if origin.first_attempt_at is None else instant(origin.first_attempt_at, "first_attempt_at"),
        0 if origin.last_attempt_at is None else instant(origin.last_attempt_at, "last_attempt_at"),
    )


def read_staged(item: wire.StagedMessage, now: int, correlation_id: str | None) -> Draft:
    draft = read_draft(item, now, correlation_id)
    if not item.source_id:
        if item.source_queue:
            raise InvalidArgument(field="source_queue", problem="is the queue of source_id; give that too")
        return draft
    origin = Origin(read_id(item.source_id, "source_id"), item.source_queue, "", REPLAYED)
    return msgspec.structs.replace(draft, extra=msgspec.structs.replace(draft.extra, origin=origin))


def read_import(item: wire.ImportItem, now: int, correlation_id: str | None) -> Draft:
    draft = read_draft(item, now, correlation_id)
    extra = msgspec.structs.replace(draft.extra, origin=read_origin(item.origin))
    return msgspec.structs.replace(draft, extra=extra)


# --- messages out ---------------------------------------------------------------------------------------------------


def _is_json(payload: bytes) -> bool:
    try:
        if not payload.isascii():
            payload.decode()
        _raw_json(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


PayloadValue = Raw | str | bytes
"""A payload as its field has it."""

_BYTES, _TEXT, _JSON, _ANY = range(4)


@lru_cache(maxsize=256)
def _kind(content_type: str | None) -> int:
    """What a content type says of a payload; `_ANY`: nothing."""
    kind = "" if content_type is None else content_type.partition(";")[0].strip().lower()
    if not kind:
        return _ANY
    if kind == "application/json" or kind.endswith("+json"):
        return _JSON
    return _TEXT if kind.startswith("text/") else _BYTES


def payload_field(payload: bytes, content_type: str | None, encoding: str) -> tuple[str, PayloadValue]:
    """The field that a payload is sent in, and its value."""
    if encoding == "base64" or not payload:
        return "base64", payload
    kind = _kind(content_type)
    if kind >= _JSON and _is_json(payload):
        # On one line, for streams of lines; in server-sent events both characters end a line.
        broken = b"\n" in payload or b"\r" in payload
        return "payload", Raw(msgspec.json.format(payload, indent=-1) if broken else payload)
    if kind in (_TEXT, _ANY):
        try:
            return "text", payload.decode()
        except UnicodeDecodeError:
            pass
    return "base64", payload


def payload_fields(payloads: list[bytes], content_type: str | None, encoding: str) -> list[tuple[str, PayloadValue]]:
    """`payload_field` for many of one content type."""
    if _kind(content_type) == _TEXT and encoding != "base64" and all(payloads):
        try:
            return [("text", payload.decode()) for payload in payloads]
        except UnicodeDecodeError:
            pass
    return [payload_field(payload, content_type, encoding) for payload in payloads]


def _fill(wire_item: wire.Message, message: Message, encoding: str) -> None:
    """What a message has besides the fields that all have."""
    if message.deliver_at:
        wire_item.deliver_at = format_instant(message.deliver_at)
    if message.expires_at:
        wire_item.expires_at = instants(message.expires_at)
    extra = message.extra
    if extra is not NO_EXTRA:
        wire_item.content_type = extra.content_type
        wire_item.key = extra.key
        wire_item.message_id = extra.message_id
        wire_item.correlation_id = extra.correlation_id
        wire_item.reply_to = extra.reply_to
        wire_item.correlation_data = extra.correlation_data
        if extra.properties:
            wire_item.properties = properties_to_wire(extra.properties)
        if extra.origin is not None:
            wire_item.origin = origin_to_wire(extra.origin)
    setattr(wire_item, *payload_field(message.payload, extra.content_type, encoding))


def properties_to_wire(pairs: tuple[tuple[str, str], ...]) -> wire.Properties:
    wire_item: wire.Properties = {}
    for name, value in pairs:
        before = wire_item.get(name)
        if before is None:
            wire_item[name] = value
        elif isinstance(before, list):
            before.append(value)
        else:
            wire_item[name] = [before, value]
    return wire_item


def origin_to_wire(origin: Origin) -> wire.Origin:
    return wire.Origin(
        source_id=str(origin.source_id),
        source_queue=origin.source_queue,
        source_group=origin.source_group,
        reason=origin.reason,
        error=origin.error,
        attempts=origin.attempts,
        first_attempt_at=format_instant(origin.first_attempt_at) if origin.first_attempt_at else None,
        last_attempt_at=format_instant(origin.last_attempt_at) if origin.last_attempt_at else None,
    )


instants = lru_cache(4_096)(format_instant)
"""Messages of a batch share their times."""


def message_to_wire(message: Message, partition: int, encoding: str) -> wire.Message:
    wire_item = wire.Message(
        id=str(message.id),
        sequence=message.seq,
        partition=partition,
        enqueued_at=instants(message.enqueued_at),
        priority=message.priority,
    )
    _fill(wire_item, message, encoding)
    return wire_item


def view_to_wire(message: Message, partition: int, statuses: list[DeliveryStatus], encoding: str) -> wire.MessageView:
    wire_item = wire.MessageView(
        id=str(message.id),
        sequence=message.seq,
        partition=partition,
        enqueued_at=instants(message.enqueued_at),
        priority=message.priority,
        deliveries=[status_to_wire(status) for status in statuses],
    )
    _fill(wire_item, message, encoding)
    return wire_item


def history_to_wire(history: History, *, related: bool = False) -> wire.History:
    steps = [
        wire.HistoryStep(
            lsn=step.lsn,
            at=format_instant(step.at),
            event=step.event,
            group=step.group,
            attempt=step.attempt,
            reason=step.reason,
            error=step.error,
            consumer=step.consumer,
            protocol=step.protocol,
            queue=step.queue if related else "",
            message_id=str(step.message_id) if related else "",
        )
        for step in history.steps
    ]
    return wire.History(steps, history.complete)


def status_to_wire(status: DeliveryStatus) -> wire.DeliveryStatus:
    return wire.DeliveryStatus(
        group=status.group,
        state=status.state,
        attempt=status.attempt,
        consumer=status.consumer,
        lease_deadline=format_instant(status.deadline) if status.deadline else None,
        ready_at=format_instant(status.ready_at) if status.ready_at else None,
        error=status.error,
    )


def delivery_to_wire(leased: Leased, queue: str, encoding: str) -> wire.Delivery:
    message = leased.message
    wire_item = wire.Delivery(
        id=str(message.id),
        sequence=message.seq,
        partition=leased.partition,
        enqueued_at=instants(message.enqueued_at),
        priority=message.priority,
        queue=queue,
        group=leased.group,
        attempt=leased.attempt,
        lease_token=str(leased.token),
        lease_deadline=instants(leased.deadline),
    )
    _fill(wire_item, message, encoding)
    return wire_item


# --- settling -------------------------------------------------------------------------------------------------------

_VERBS = {verb.value: verb for verb in Verb}


def read_settlement(item: wire.Settlement, principal: Principal) -> Settlement:
    return Settlement(
        read_id(item.id, "id"),
        read_id(item.lease_token, "lease_token") if item.lease_token else 0,
        _VERBS[item.action],
        -1 if item.delay is None else _durations(item.delay, "delay"),
        item.error[:ERROR_LENGTH_MAX],
        -1 if item.timeout is None else _durations(item.timeout, "timeout"),
        read_consumer(item.consumer, principal),
        item.partition,
    )


def read_consumer(name: str, principal: Principal) -> str:
    """The name under which the caller's consumer holds leases."""
    if len(name) > CONSUMER_LENGTH_MAX:
        raise InvalidArgument(field="consumer", problem=f"is at most {CONSUMER_LENGTH_MAX} characters")
    return principal.consumer(name)


# --- queues and groups ----------------------------------------------------------------------------------------------


def queue_to_wire(record: QueueRecord, depth: int) -> wire.Queue:
    return wire.Queue(
        name=record.name,
        namespace=record.namespace,
        created_at=format_instant(record.created_at),
        automatic=record.automatic,
        depth=depth,
        config=config_to_wire(record),
        groups=[group_to_wire(group) for group in record.groups],
    )


def config_to_wire(record: QueueRecord) -> wire.QueueConfig:
    nested: dict[str, object] = {}
    for name, value in to_fields(record.config).items():
        section, dot, field = name.partition(".")
        if dot:
            inner = nested.setdefault(section, {})
            assert isinstance(inner, dict)
            inner[field] = value
        else:
            nested[name] = value
    return msgspec.convert(nested, wire.QueueConfig)


def group_to_wire(group: GroupRecord) -> wire.Group:
    return wire.Group(
        name=group.name,
        kind=group.kind.value,
        created_at=format_instant(group.created_at),
        max_lag_messages=group.max_lag_messages,
        max_lag_age=format_duration(group.max_lag_age),
    )


# --- stats ----------------------------------------------------------------------------------------------------------


def stats_to_wire(stats: QueueStats) -> wire.QueueStats:
    return wire.QueueStats(
        namespace=stats.namespace,
        name=stats.name,
        partitions=stats.partitions,
        depth=stats.depth,
        ready=stats.ready,
        scheduled=stats.scheduled,
        size_bytes=stats.size_bytes,
        enqueued=stats.enqueued,
        duplicates=stats.duplicates,
        refused=stats.refused,
        rates=stats.rates,
        oldest_message_age_seconds=stats.oldest_age / SECOND,
        groups=[_group_stats_to_wire(group) for group in stats.groups],
        max_depth=stats.max_depth,
        paused=stats.paused,
    )


def _group_stats_to_wire(stats: GroupStats) -> wire.GroupStats:
    return wire.GroupStats(
        name=stats.name,
        kind=stats.kind.value,
        ready=stats.ready,
        scheduled=stats.scheduled,
        leased=stats.leased,
        lag=stats.lag,
        acked=stats.acked,
        leases=stats.leases,
        redelivered=stats.redelivered,
        released=stats.released,
        extended=stats.extended,
        failures=stats.failures,
        dead=stats.dead,
        dropped=stats.dropped,
        expired=stats.expired,
        purged=stats.purged,
        oldest_message_age_seconds=stats.oldest_age / SECOND,
        delivery_latency=_latency_to_wire(stats.delivery_latency),
        processing_latency=_latency_to_wire(stats.processing_latency),
        members=stats.members,
        in_flight=stats.in_flight,
        consumers=stats.consumers,
        waiting=stats.waiting,
        unattended_seconds=stats.unattended / SECOND,
    )


def _latency_to_wire(histogram: Histogram) -> wire.Latency:
    return wire.Latency(
        count=sum(histogram.counts),
        p50_ms=histogram.quantile_ms(0.5),
        p95_ms=histogram.quantile_ms(0.95),
        p99_ms=histogram.quantile_ms(0.99),
        bounds_ms=histogram.bounds_ms,
        counts=histogram.counts,
    )
