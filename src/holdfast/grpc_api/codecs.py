"""Between protobuf's shapes and the core's: messages, deliveries, settlements, times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from holdfast.auth.principal import Principal
from holdfast.core.commands import ERROR_LENGTH_MAX, NO_ID, Draft, Leased, Settlement, Verb
from holdfast.core.queue import PRIORITY_DEFAULT
from holdfast.core.records import NO_EXTRA, Extra, Message, Origin
from holdfast.errors import InvalidArgument
from holdfast.grpc_api.generated import queue_pb2 as pb
from holdfast.units import DURATION_MAX, INSTANT_MAX, SECOND

CONSUMER_LENGTH_MAX = 255

_NANOS = 1_000  # in a microsecond


# --- times ----------------------------------------------------------------------------------------------------------


def duration(value: Duration, field: str) -> int:
    """Microseconds."""
    found = value.seconds * SECOND + value.nanos // _NANOS
    if not 0 <= found <= DURATION_MAX:
        raise InvalidArgument(field=field, problem="is negative, or longer than a duration can be (36500d)")
    return found


def instant(value: Timestamp, field: str) -> int:
    """Epoch microseconds."""
    found = value.seconds * SECOND + value.nanos // _NANOS
    if not 0 <= found <= INSTANT_MAX:
        raise InvalidArgument(field=field, problem="is before 1970, or later than the year 9999")
    return found


def to_duration(microseconds: int) -> Duration:
    return Duration(seconds=microseconds // SECOND, nanos=microseconds % SECOND * _NANOS)


@lru_cache(maxsize=4_096)
def to_timestamp(microseconds: int) -> Timestamp:
    """Messages of a batch share their times, and so do their protobuf forms: nobody changes them."""
    return Timestamp(seconds=microseconds // SECOND, nanos=microseconds % SECOND * _NANOS)


# --- messages in ----------------------------------------------------------------------------------------------------


def read_draft(item: pb.Draft, now: int, correlation_id: str | None) -> Draft:
    """A message as the core takes it."""
    payload = item.payload
    if correlation_id is None and item.ByteSize() <= len(payload) + _framing(len(payload)):
        return Draft(payload)  # it has nothing else
    has = item.HasField
    deliver_at = 0
    if has("delay"):
        if has("deliver_at"):
            raise InvalidArgument(field="delay", problem="cannot stand beside deliver_at; give one of them")
        deliver_at = now + duration(item.delay, "delay")
    elif has("deliver_at"):
        deliver_at = instant(item.deliver_at, "deliver_at")
    if has("message_id") and not item.message_id:
        raise InvalidArgument(field="message_id", problem=NO_ID)
    own = item.correlation_id if has("correlation_id") else correlation_id
    properties = tuple([(pair.name, pair.value) for pair in item.properties]) if item.properties else ()
    key = item.key if has("key") else None
    content_type = item.content_type if has("content_type") else None
    if own is None and not properties and not has("message_id") and not has("reply_to"):
        extra = NO_EXTRA if key is None and content_type is None else _shared(key, content_type)
    else:
        extra = Extra(
            key,
            item.message_id if has("message_id") else None,
            properties,
            own,
            content_type,
            item.reply_to if has("reply_to") else None,
        )
    return Draft(
        payload,
        item.priority if has("priority") else PRIORITY_DEFAULT,
        deliver_at,
        duration(item.ttl, "ttl") if has("ttl") else -1,
        extra,
    )


def _framing(size: int) -> int:
    """The tag and the length before a payload of this size, in protobuf."""
    return 0 if not size else 2 if size < 1 << 7 else 3 if size < 1 << 14 else 4 if size < 1 << 21 else 5


SHARED_TEXT_MAX = 64


def _shared(key: str | None, content_type: str | None) -> Extra:
    """The same for all messages that bring nothing but this: such a batch is homogeneous, and stored as columns."""
    if len(key or "") > SHARED_TEXT_MAX or len(content_type or "") > SHARED_TEXT_MAX:
        return Extra(key, content_type=content_type)  # long ones are seldom repeated, and not cached
    return _cached(key, content_type)


@lru_cache(maxsize=1_024)
def _cached(key: str | None, content_type: str | None) -> Extra:
    return Extra(key, content_type=content_type)


def read_consumer(name: str, principal: Principal) -> str:
    """The name under which the caller's consumer holds leases."""
    if len(name) > CONSUMER_LENGTH_MAX:
        raise InvalidArgument(field="consumer", problem=f"is at most {CONSUMER_LENGTH_MAX} characters")
    return principal.consumer(name)


_VERBS = {
    pb.SETTLE_ACTION_UNSPECIFIED: Verb.ACK,
    pb.SETTLE_ACTION_ACK: Verb.ACK,
    pb.SETTLE_ACTION_NACK: Verb.NACK,
    pb.SETTLE_ACTION_REJECT: Verb.REJECT,
    pb.SETTLE_ACTION_RELEASE: Verb.RELEASE,
    pb.SETTLE_ACTION_EXTEND: Verb.EXTEND,
}


def read_settlement(item: pb.Settlement) -> Settlement:
    verb = _VERBS.get(item.action)
    if verb is None:
        raise InvalidArgument(field="action", problem=f"is not known: {item.action}")
    if item.id <= 0 or item.lease_token <= 0:
        raise InvalidArgument(field="id and lease_token", problem="are numbers as this server gave them")
    return Settlement(
        item.id,
        item.lease_token,
        verb,
        duration(item.delay, "delay") if item.HasField("delay") else -1,
        item.error[:ERROR_LENGTH_MAX],
        duration(item.timeout, "timeout") if item.HasField("timeout") else -1,
        "",
        item.partition if item.HasField("partition") else -1,
    )


def plain_acks(items: Sequence[pb.Settlement]) -> tuple[list[int], list[int], int] | None:
    """Ids, tokens and partition of settlements that are all acks of one partition (-1: not known); None: some are not.
    An ack has no fields beside these, so that nothing is left out."""
    if not items or max([item.action for item in items]) > pb.SETTLE_ACTION_ACK:
        return None
    first = items[0]
    partition = first.partition if first.HasField("partition") else -1
    ids = [item.id for item in items]
    tokens = [item.lease_token for item in items]
    if min(ids) <= 0 or min(tokens) <= 0:
        return None
    if any((item.partition if item.HasField("partition") else -1) != partition for item in items):
        return None
    return ids, tokens, partition


# --- messages out ---------------------------------------------------------------------------------------------------


def fill_message(out: pb.Message, message: Message, partition: int) -> None:
    """What a message has, into its protobuf form, which is new."""
    out.id = message.id
    out.sequence = message.seq
    out.partition = partition
    out.payload = message.payload
    out.priority = message.priority
    out.enqueued_at.CopyFrom(to_timestamp(message.enqueued_at))
    if message.deliver_at:
        out.deliver_at.CopyFrom(to_timestamp(message.deliver_at))
    if message.expires_at:
        out.expires_at.CopyFrom(to_timestamp(message.expires_at))
    extra = message.extra
    if extra is not NO_EXTRA:
        _fill_extra(out, extra)


def _fill_extra(out: pb.Message, extra: Extra) -> None:
    for field in ("key", "message_id", "correlation_id", "content_type", "reply_to", "correlation_data"):
        value = getattr(extra, field)
        if value is not None:
            setattr(out, field, value)
    for name, value in extra.properties:
        out.properties.add(name=name, value=value)
    if extra.origin is not None:
        _fill_origin(out.origin, extra.origin)


def _fill_origin(out: pb.Origin, origin: Origin) -> None:
    out.source_id = origin.source_id
    out.source_queue = origin.source_queue
    out.source_group = origin.source_group
    out.reason = origin.reason
    out.error = origin.error
    out.attempts = origin.attempts
    if origin.first_attempt_at:
        out.first_attempt_at.CopyFrom(to_timestamp(origin.first_attempt_at))
    if origin.last_attempt_at:
        out.last_attempt_at.CopyFrom(to_timestamp(origin.last_attempt_at))


def fill_deliveries(out: pb.LeaseResponse | pb.DeliveryBatch, deliveries: Iterable[Leased]) -> None:
    add = out.deliveries.add
    for leased in deliveries:
        delivery = add(lease_token=leased.token, attempt=leased.attempt)
        delivery.lease_deadline.CopyFrom(to_timestamp(leased.deadline))
        fill_message(delivery.message, leased.message, leased.partition)
