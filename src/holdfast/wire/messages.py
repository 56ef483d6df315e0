"""Messages: as producers send them, and as the API returns them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from holdfast.wire.numbers import Count32, Int64
from holdfast.wire.problems import ItemError
from holdfast.wire.times import Duration, Instant

Properties = dict[str, str | list[str]]
"""The producer's own fields. A list of values where a name occurs more than once (MQTT allows that)."""

JsonPayload = Annotated[Raw, Meta(description="Any JSON value.")]


class Draft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message to enqueue. Its payload is exactly one of `payload`, `text` and `base64`; none of them: empty."""

    payload: JsonPayload | UnsetType = UNSET
    """Any JSON value, stored as it is written here."""
    text: str | UnsetType = UNSET
    """Text, stored as UTF-8, with the content type `text/plain` unless `content_type` is given."""
    base64: bytes | UnsetType = UNSET
    """Bytes."""
    content_type: str | None = None
    key: str | None = None
    """Messages of one key are delivered one after another."""
    message_id: str | None = None
    """The producer's id: a second enqueue with it inside the queue's `dedup_window` stores nothing."""
    priority: Int64 = 128
    """0 to 255; a lower value is delivered sooner."""
    delay: Duration | None = None
    deliver_at: Instant | None = None
    """Deliver not before this instant. Not together with `delay`."""
    ttl: Duration | None = None
    """How long it may wait; `0`: for ever. Without it: the queue's `message_ttl`."""
    properties: Properties = {}
    correlation_id: str | None = None
    """Stored with the message. Without it: the request's `X-Correlation-Id`, if it has one."""
    reply_to: str | None = None


class Enqueue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Messages to store, as one commit. `atomic`: all or none."""

    messages: list[Draft]
    atomic: bool = False


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an enqueue. It is sent when the messages are as durable as the queue is configured.

    `ids` has an id for each message, in order: null where it was refused (`errors` says why), the first one's where it
    is a duplicate (`duplicates` has its index).
    """

    ids: list[str | None]
    duplicates: list[int] = []
    errors: list[ItemError] = []
    durability: str = "fsync"


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a dead letter, a redriven or an imported message comes from, and why."""

    source_id: str
    source_queue: str = ""
    source_group: str = ""
    reason: str = ""
    """`max_retries`, `total_timeout`, `rejected` or `expired`; `replayed` for a replay of the source."""
    error: str = ""
    attempts: Count32 = 0
    first_attempt_at: Instant | None = None
    last_attempt_at: Instant | None = None


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A stored message. Absent fields are empty.

    The payload is in one of three fields. With `encoding=base64` it is always `base64`. With `auto` it follows the
    content type: JSON is in `payload`, text in `text`, anything else in `base64`; without a content type it is in
    `payload` if it is JSON, else in `text` if it is UTF-8, else in `base64`.
    """

    id: str
    sequence: int
    partition: int
    enqueued_at: str
    payload: JsonPayload | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: bytes | UnsetType = UNSET
    content_type: str | None = None
    key: str | None = None
    message_id: str | None = None
    """The producer's own. It stays the same through death, redrive and replay: work that must not be done twice is
    remembered by it, not by `id`."""
    priority: int = 128
    deliver_at: str | None = None
    expires_at: str | None = None
    properties: Properties = {}
    correlation_id: str | None = None
    reply_to: str | None = None
    correlation_data: bytes | None = None
    origin: Origin | None = None

    def body(self) -> bytes:
        """The payload's bytes, in whichever field it is."""
        if isinstance(self.payload, Raw):
            return bytes(self.payload)
        if isinstance(self.text, str):
            return self.text.encode()
        return self.base64 if isinstance(self.base64, bytes) else b""


class DeliveryStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The delivery status of a message in one group."""

    group: str
    state: str
    """`ready`, `scheduled`, `leased` or `settled`."""
    attempt: int = 0
    consumer: str = ""
    lease_deadline: str | None = None
    ready_at: str | None = None
    error: str = ""


class HistoryStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a message's life, as the journal has it."""

    lsn: int
    """Its lsn in the journal of the node."""
    at: str
    event: str
    """`enqueued`, `duplicate`, `leased`, `extended`, `acked`, `failed`, `released`, `dead`, `dropped`, `expired`,
    `purged` or `edited`."""
    group: str = ""
    attempt: int = 0
    reason: str = ""
    error: str = ""
    consumer: str = ""
    protocol: str = ""
    queue: str = ""
    """With `related`: the queue of the message whose step it is."""
    message_id: str = ""
    """With `related`: the id of the message whose step it is."""


class History(msgspec.Struct, frozen=True):
    """Every step of a message's life. Not `complete`: the lake has more segments than were searched."""

    steps: list[HistoryStep]
    complete: bool = True


class MessageView(Message, kw_only=True, omit_defaults=True):
    """A message and its delivery status in each group."""

    deliveries: list[DeliveryStatus] = []
    history: list[HistoryStep] = []
    """Only if it was requested."""


class MessagePage(msgspec.Struct, frozen=True):
    """Live messages, oldest first; nothing is leased. Continue with `cursor`; empty: there are no more."""

    messages: list[MessageView]
    cursor: str = ""


class MessageRange(msgspec.Struct, frozen=True):
    """Live messages of one partition by sequence; nothing is leased. Continue at `next`; 0: there are no more."""

    messages: list[MessageView]
    next: int = 0


class Partition(msgspec.Struct, frozen=True):
    """Sequences `first` to `end - 1` of a partition; some may have been settled already."""

    partition: int
    first: int
    end: int


class PartitionList(msgspec.Struct, frozen=True):
    """The partitions of a queue."""

    partitions: list[Partition]


class MessageEdit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Changes to a waiting message."""

    priority: Int64 | None = None
    deliver_at: Instant | None = None


class ImportItem(Draft, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message with its origin. Importing the same `source_id` and `source_group` again stores nothing."""

    origin: Origin


class Import(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Items to import, as one commit."""

    items: list[ImportItem]
    atomic: bool = False
