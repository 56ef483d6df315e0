"""Attributes of queues: those that are settings of a queue here, and those that only SQS has.

What a queue's configuration can say is said there, so that every protocol sees the same queue: the visibility timeout
is `delivery_timeout`, the retention period `message_ttl`, a redrive policy is `dlq.queue` and `retry.max_retries`. The
rest, and the tags, are a note beside the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.broker.node import Node
from holdfast.core.queue import DEAD_PREFIX, Ordering, QueueConfig, QueueRecord, from_fields
from holdfast.engine.catalog import QueueName
from holdfast.http_api.dialects.sqs.identifiers import queue_arn, queue_in_arn
from holdfast.http_api.dialects.sqs.refusals import Refusal
from holdfast.units import KIB, MIB, MILLISECOND, SECOND

FRONT: Final = "sqs"
FIFO_SUFFIX: Final = ".fifo"
UNLIMITED_RETRIES: Final = 1_000_000
SOURCES_MAX: Final = 10
"""Queues that a redrive allow policy can name."""


class QueueNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What SQS alone knows of a queue."""

    delay_seconds: int = 0
    wait_seconds: int = 0
    content_based: bool = False
    deduplication_scope: str = "queue"
    throughput_limit: str = "perQueue"
    key_reuse_seconds: int = 300
    redrive_allow: str = ""
    modified_at: int = 0
    tags: dict[str, str] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(QueueNote).decode
NO_NOTE: Final = QueueNote()


def note_of(node: Node, name: QueueName) -> QueueNote:
    content = node.queue_notes.get(FRONT, name)
    return _decode(content) if content else NO_NOTE


def encode_note(note: QueueNote) -> bytes:
    return _encode(note)


def is_fifo(name: str) -> bool:
    return name.endswith(FIFO_SUFFIX)


# --- what a caller sets ---------------------------------------------------------------------------------------------


class AttributeChanges(NamedTuple):
    """What attributes that were given change: fields of the queue's configuration, and of its note."""

    config: dict[str, object]
    note: dict[str, object]


class RedrivePolicy(msgspec.Struct, frozen=True, rename="camel"):
    """`maxReceiveCount` is a number, or a number as a text."""

    dead_letter_target_arn: str
    max_receive_count: int


class RedriveAllowPolicy(msgspec.Struct, frozen=True, rename="camel"):
    redrive_permission: str
    source_queue_arns: list[str] = []


_redrive_policy = msgspec.json.Decoder(RedrivePolicy, strict=False).decode
_redrive_allow_policy = msgspec.json.Decoder(RedriveAllowPolicy).decode


def _number(low: int, high: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high):
            raise _wrong(name, f"It is a number from {low} to {high}.")
        return int(text)

    return read


def _choice(*allowed: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        if text not in allowed:
            raise _wrong(name, f"It is one of {', '.join(allowed)}.")
        return text

    return read


_flag = _choice("true", "false")

_IN_NOTE: Final[dict[str, tuple[str, Callable[[str, str], object]]]] = {
    "DelaySeconds": ("delay_seconds", _number(0, 900)),
    "ReceiveMessageWaitTimeSeconds": ("wait_seconds", _number(0, 20)),
    "ContentBasedDeduplication": ("content_based", lambda name, text: _flag(name, text) == "true"),
    "DeduplicationScope": ("deduplication_scope", _choice("queue", "messageGroup")),
    "FifoThroughputLimit": ("throughput_limit", _choice("perQueue", "perMessageGroupId")),
    "KmsDataKeyReusePeriodSeconds": ("key_reuse_seconds", _number(60, 86_400)),
}
_FIFO_ONLY: Final = ("ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit")

_visibility = _number(0, 43_200)
_size = _number(KIB, MIB)
_retention = _number(60, 1_209_600)


def visibility(seconds: int) -> int:
    """A visibility timeout as how long a lease lasts; one of 0 ends as soon as a lease can."""
    return seconds * SECOND or MILLISECOND


def read_attributes(queue: str, attributes: Mapping[str, str]) -> AttributeChanges:
    """Raises Refusal for what is unknown, wrong, or not for this kind of queue."""
    changes = AttributeChanges({}, {})
    for name, text in attributes.items():
        if name in _FIFO_ONLY and not is_fifo(queue):
            raise Refusal("InvalidAttributeName", f"Unknown Attribute {name}: it is for FIFO queues only.")
        if name in _IN_NOTE:
            field, read = _IN_NOTE[name]
            changes.note[field] = read(name, text)
        elif name == "VisibilityTimeout":
            changes.config["delivery_timeout"] = f"{visibility(_visibility(name, text)) // MILLISECOND}ms"
        elif name == "MaximumMessageSize":
            changes.config["max_message_size"] = _size(name, text)
        elif name == "MessageRetentionPeriod":
            changes.config["message_ttl"] = f"{_retention(name, text)}s"
        elif name == "RedrivePolicy":
            changes.config.update(_redrive_fields(queue, text))
        elif name == "RedriveAllowPolicy":
            changes.note["redrive_allow"] = _redrive_allow(text)
        else:
            _check_unsupported(queue, name, text)
    return changes


def _redrive_fields(queue: str, text: str) -> dict[str, object]:
    if not text:
        return {"dlq.enabled": False, "dlq.queue": "", "retry.max_retries": UNLIMITED_RETRIES}
    try:
        policy = _redrive_policy(text)
    except msgspec.DecodeError as error:
        raise _wrong("RedrivePolicy", f"It is JSON with deadLetterTargetArn and maxReceiveCount: {error}") from None
    if not 1 <= policy.max_receive_count <= 1_000:
        raise _wrong("RedrivePolicy", "maxReceiveCount is a number from 1 to 1000.")
    target = queue_in_arn(policy.dead_letter_target_arn, "deadLetterTargetArn")
    if is_fifo(target) != is_fifo(queue):
        raise _wrong("RedrivePolicy", "The dead-letter queue of a FIFO queue is a FIFO queue, and of no other.")
    return {"dlq.enabled": True, "dlq.queue": target, "retry.max_retries": policy.max_receive_count - 1}


def _redrive_allow(text: str) -> str:
    if not text:
        return ""
    try:
        policy = _redrive_allow_policy(text)
    except msgspec.DecodeError as error:
        raise _wrong("RedriveAllowPolicy", f"It is JSON with redrivePermission: {error}") from None
    by_queue = policy.redrive_permission == "byQueue"
    if policy.redrive_permission not in {"allowAll", "denyAll", "byQueue"}:
        raise _wrong("RedriveAllowPolicy", "redrivePermission is one of allowAll, denyAll, byQueue.")
    if by_queue != bool(policy.source_queue_arns) or len(policy.source_queue_arns) > SOURCES_MAX:
        raise _wrong("RedriveAllowPolicy", f"sourceQueueArns are 1 to {SOURCES_MAX} ARNs, with byQueue only.")
    for arn in policy.source_queue_arns:
        queue_in_arn(arn, "sourceQueueArns")
    return text


def _check_unsupported(queue: str, name: str, text: str) -> None:
    """Refuses what would not be done: nobody is to think that a policy protects a queue, or that it is encrypted."""
    if name == "FifoQueue":
        if _flag(name, text) != str(is_fifo(queue)).lower():
            raise _wrong(name, f"The names of FIFO queues, and of no others, end with {FIFO_SUFFIX}.")
    elif name == "Policy" and text:
        raise Refusal(
            "UnsupportedOperation", "Queues have no policies here: what a caller may do is what its user's scopes say."
        )
    elif (name == "KmsMasterKeyId" and text) or (name == "SqsManagedSseEnabled" and _flag(name, text) == "true"):
        raise Refusal("UnsupportedOperation", f"{name}: this server encrypts nothing at rest; use an encrypted disk.")
    elif name not in {"Policy", "KmsMasterKeyId", "SqsManagedSseEnabled"}:
        raise Refusal("InvalidAttributeName", f"Unknown Attribute {name[:100]}.")


def _wrong(name: str, reason: str) -> Refusal:
    return Refusal("InvalidAttributeValue", f"Invalid value for the parameter {name}. Reason: {reason}")


def check_allowed(node: Node, source: QueueName, config: Mapping[str, object]) -> None:
    """Refuses a dead-letter queue whose redrive allow policy does not name the queue."""
    target = config.get("dlq.queue")
    if not target or not node.queues.exists((source[0], str(target))):
        return
    allowed = note_of(node, (source[0], str(target))).redrive_allow
    if not allowed:
        return
    policy = _redrive_allow_policy(allowed)
    names = {queue_in_arn(arn, "sourceQueueArns") for arn in policy.source_queue_arns}
    if policy.redrive_permission == "denyAll" or (names and source[1] not in names):
        raise _wrong("RedrivePolicy", f"The redrive allow policy of {target} does not allow this queue.")


BASE_CONFIG: Final[Mapping[str, object]] = {
    "delivery_timeout": "30s",
    "max_message_size": MIB,
    "message_ttl": "4d",
    "max_depth": 0,
    "retry.max_retries": UNLIMITED_RETRIES,
    "retry.initial_backoff": 0,
    "retry.max_backoff": 0,
    "retry.total_timeout": 0,
    "dlq.enabled": False,
}
"""A queue as SQS makes one: what was not deleted in time is visible again immediately, as often as it takes."""


def new_config(name: str) -> dict[str, object]:
    """Of a queue that is created with no attributes."""
    ordering = Ordering.PARTITION if is_fifo(name) else Ordering.NONE
    return {**BASE_CONFIG, "ordering": ordering.value, "dedup_window": "5m"}


def changed_note(note: QueueNote, changes: Mapping[str, object], now: int) -> QueueNote:
    return replace(note, **changes, modified_at=now)


# --- what a caller is shown -----------------------------------------------------------------------------------------


def settings_of(record: QueueRecord, note: QueueNote, region: str) -> dict[str, str]:
    """All attributes of a queue but its counts."""
    config = record.config
    found = {
        "QueueArn": queue_arn(region, record.name),
        "CreatedTimestamp": str(record.created_at // SECOND),
        "LastModifiedTimestamp": str((note.modified_at or record.created_at) // SECOND),
        "VisibilityTimeout": str(config.delivery_timeout // SECOND),
        "MaximumMessageSize": str(config.max_message_size),
        "MessageRetentionPeriod": str(config.message_ttl // SECOND),
        "DelaySeconds": str(note.delay_seconds),
        "ReceiveMessageWaitTimeSeconds": str(note.wait_seconds),
        "SqsManagedSseEnabled": "false",
    }
    if policy := _redrive_policy_of(record.name, config, region):
        found["RedrivePolicy"] = policy
    if note.redrive_allow:
        found["RedriveAllowPolicy"] = note.redrive_allow
    if is_fifo(record.name):
        found |= {
            "FifoQueue": "true",
            "ContentBasedDeduplication": str(note.content_based).lower(),
            "DeduplicationScope": note.deduplication_scope,
            "FifoThroughputLimit": note.throughput_limit,
        }
    return found


def _redrive_policy_of(name: str, config: QueueConfig, region: str) -> str:
    if not config.dlq.enabled:
        return ""
    target = queue_arn(region, config.dlq.queue or DEAD_PREFIX + name)
    policy = {"deadLetterTargetArn": target, "maxReceiveCount": config.retry.max_retries + 1}
    return msgspec.json.encode(policy).decode()


def differs(record: QueueRecord, note: QueueNote, changes: AttributeChanges) -> bool:
    """Whether a queue that exists is otherwise than these changes say."""
    if from_fields(changes.config, record.config) != record.config:
        return True
    return any(getattr(note, field) != value for field, value in changes.note.items())
