import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Durability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DURABILITY_UNSPECIFIED: _ClassVar[Durability]
    DURABILITY_FSYNC: _ClassVar[Durability]
    DURABILITY_BUFFERED: _ClassVar[Durability]

class SettleAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SETTLE_ACTION_UNSPECIFIED: _ClassVar[SettleAction]
    SETTLE_ACTION_ACK: _ClassVar[SettleAction]
    SETTLE_ACTION_NACK: _ClassVar[SettleAction]
    SETTLE_ACTION_REJECT: _ClassVar[SettleAction]
    SETTLE_ACTION_RELEASE: _ClassVar[SettleAction]
    SETTLE_ACTION_EXTEND: _ClassVar[SettleAction]

class OnDisconnect(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_DISCONNECT_UNSPECIFIED: _ClassVar[OnDisconnect]
    ON_DISCONNECT_RELEASE: _ClassVar[OnDisconnect]
    ON_DISCONNECT_FAIL: _ClassVar[OnDisconnect]
    ON_DISCONNECT_KEEP: _ClassVar[OnDisconnect]

class Ordering(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORDERING_UNSPECIFIED: _ClassVar[Ordering]
    ORDERING_NONE: _ClassVar[Ordering]
    ORDERING_PARTITION: _ClassVar[Ordering]
    ORDERING_STRICT: _ClassVar[Ordering]

class Journal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOURNAL_UNSPECIFIED: _ClassVar[Journal]
    JOURNAL_PAYLOAD: _ClassVar[Journal]
    JOURNAL_METADATA: _ClassVar[Journal]
    JOURNAL_OFF: _ClassVar[Journal]

class GroupKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_KIND_UNSPECIFIED: _ClassVar[GroupKind]
    GROUP_KIND_LEASE: _ClassVar[GroupKind]
    GROUP_KIND_CURSOR: _ClassVar[GroupKind]

class GroupStart(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_START_UNSPECIFIED: _ClassVar[GroupStart]
    GROUP_START_EARLIEST: _ClassVar[GroupStart]
    GROUP_START_LATEST: _ClassVar[GroupStart]
DURABILITY_UNSPECIFIED: Durability
DURABILITY_FSYNC: Durability
DURABILITY_BUFFERED: Durability
SETTLE_ACTION_UNSPECIFIED: SettleAction
SETTLE_ACTION_ACK: SettleAction
SETTLE_ACTION_NACK: SettleAction
SETTLE_ACTION_REJECT: SettleAction
SETTLE_ACTION_RELEASE: SettleAction
SETTLE_ACTION_EXTEND: SettleAction
ON_DISCONNECT_UNSPECIFIED: OnDisconnect
ON_DISCONNECT_RELEASE: OnDisconnect
ON_DISCONNECT_FAIL: OnDisconnect
ON_DISCONNECT_KEEP: OnDisconnect
ORDERING_UNSPECIFIED: Ordering
ORDERING_NONE: Ordering
ORDERING_PARTITION: Ordering
ORDERING_STRICT: Ordering
JOURNAL_UNSPECIFIED: Journal
JOURNAL_PAYLOAD: Journal
JOURNAL_METADATA: Journal
JOURNAL_OFF: Journal
GROUP_KIND_UNSPECIFIED: GroupKind
GROUP_KIND_LEASE: GroupKind
GROUP_KIND_CURSOR: GroupKind
GROUP_START_UNSPECIFIED: GroupStart
GROUP_START_EARLIEST: GroupStart
GROUP_START_LATEST: GroupStart

class Property(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("payload", "key", "message_id", "properties", "priority", "delay", "deliver_at", "ttl", "correlation_id", "content_type", "reply_to")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    REPLY_TO_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    key: str
    message_id: str
    properties: _containers.RepeatedCompositeFieldContainer[Property]
    priority: int
    delay: _duration_pb2.Duration
    deliver_at: _timestamp_pb2.Timestamp
    ttl: _duration_pb2.Duration
    correlation_id: str
    content_type: str
    reply_to: str
    def __init__(self, payload: _Optional[bytes] = ..., key: _Optional[str] = ..., message_id: _Optional[str] = ..., properties: _Optional[_Iterable[_Union[Property, _Mapping]]] = ..., priority: _Optional[int] = ..., delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., deliver_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., correlation_id: _Optional[str] = ..., content_type: _Optional[str] = ..., reply_to: _Optional[str] = ...) -> None: ...

class Origin(_message.Message):
    __slots__ = ("source_id", "source_queue", "source_group", "reason", "error", "attempts", "first_attempt_at", "last_attempt_at")
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_QUEUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_GROUP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_ATTEMPT_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_ATTEMPT_AT_FIELD_NUMBER: _ClassVar[int]
    source_id: int
    source_queue: str
    source_group: str
    reason: str
    error: str
    attempts: int
    first_attempt_at: _timestamp_pb2.Timestamp
    last_attempt_at: _timestamp_pb2.Timestamp
    def __init__(self, source_id: _Optional[int] = ..., source_queue: _Optional[str] = ..., source_group: _Optional[str] = ..., reason: _Optional[str] = ..., error: _Optional[str] = ..., attempts: _Optional[int] = ..., first_attempt_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_attempt_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("id", "sequence", "partition", "payload", "key", "message_id", "properties", "priority", "enqueued_at", "deliver_at", "expires_at", "correlation_id", "content_type", "reply_to", "origin", "correlation_data")
    ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_AT_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    REPLY_TO_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_DATA_FIELD_NUMBER: _ClassVar[int]
    id: int
    sequence: int
    partition: int
    payload: bytes
    key: str
    message_id: str
    properties: _containers.RepeatedCompositeFieldContainer[Property]
    priority: int
    enqueued_at: _timestamp_pb2.Timestamp
    deliver_at: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    correlation_id: str
    content_type: str
    reply_to: str
    origin: Origin
    correlation_data: bytes
    def __init__(self, id: _Optional[int] = ..., sequence: _Optional[int] = ..., partition: _Optional[int] = ..., payload: _Optional[bytes] = ..., key: _Optional[str] = ..., message_id: _Optional[str] = ..., properties: _Optional[_Iterable[_Union[Property, _Mapping]]] = ..., priority: _Optional[int] = ..., enqueued_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., deliver_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., correlation_id: _Optional[str] = ..., content_type: _Optional[str] = ..., reply_to: _Optional[str] = ..., origin: _Optional[_Union[Origin, _Mapping]] = ..., correlation_data: _Optional[bytes] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("message", "lease_token", "lease_deadline", "attempt")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LEASE_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    message: Message
    lease_token: int
    lease_deadline: _timestamp_pb2.Timestamp
    attempt: int
    def __init__(self, message: _Optional[_Union[Message, _Mapping]] = ..., lease_token: _Optional[int] = ..., lease_deadline: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., attempt: _Optional[int] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("code", "message", "retryable", "details", "retry_after")
    class DetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    retryable: bool
    details: _containers.ScalarMap[str, str]
    retry_after: _duration_pb2.Duration
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retryable: _Optional[bool] = ..., details: _Optional[_Mapping[str, str]] = ..., retry_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ItemError(_message.Message):
    __slots__ = ("index", "problem")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    index: int
    problem: Problem
    def __init__(self, index: _Optional[int] = ..., problem: _Optional[_Union[Problem, _Mapping]] = ...) -> None: ...

class EnqueueRequest(_message.Message):
    __slots__ = ("queue", "messages", "atomic")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ATOMIC_FIELD_NUMBER: _ClassVar[int]
    queue: str
    messages: _containers.RepeatedCompositeFieldContainer[Draft]
    atomic: bool
    def __init__(self, queue: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[Draft, _Mapping]]] = ..., atomic: _Optional[bool] = ...) -> None: ...

class EnqueueResponse(_message.Message):
    __slots__ = ("ids", "duplicates", "errors", "durability")
    IDS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    duplicates: _containers.RepeatedScalarFieldContainer[int]
    errors: _containers.RepeatedCompositeFieldContainer[ItemError]
    durability: Durability
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., duplicates: _Optional[_Iterable[int]] = ..., errors: _Optional[_Iterable[_Union[ItemError, _Mapping]]] = ..., durability: _Optional[_Union[Durability, str]] = ...) -> None: ...

class ProduceRequest(_message.Message):
    __slots__ = ("batch", "queue", "messages", "atomic")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ATOMIC_FIELD_NUMBER: _ClassVar[int]
    batch: int
    queue: str
    messages: _containers.RepeatedCompositeFieldContainer[Draft]
    atomic: bool
    def __init__(self, batch: _Optional[int] = ..., queue: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[Draft, _Mapping]]] = ..., atomic: _Optional[bool] = ...) -> None: ...

class ProduceResponse(_message.Message):
    __slots__ = ("batch", "stored", "refused")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    batch: int
    stored: EnqueueResponse
    refused: Problem
    def __init__(self, batch: _Optional[int] = ..., stored: _Optional[_Union[EnqueueResponse, _Mapping]] = ..., refused: _Optional[_Union[Problem, _Mapping]] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("queue", "group", "limit", "wait", "timeout", "consumer", "max_bytes", "must_exist")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MUST_EXIST_FIELD_NUMBER: _ClassVar[int]
    queue: str
    group: str
    limit: int
    wait: _duration_pb2.Duration
    timeout: _duration_pb2.Duration
    consumer: str
    max_bytes: int
    must_exist: bool
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., limit: _Optional[int] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., consumer: _Optional[str] = ..., max_bytes: _Optional[int] = ..., must_exist: _Optional[bool] = ...) -> None: ...

class LeaseResponse(_message.Message):
    __slots__ = ("deliveries",)
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    def __init__(self, deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ...) -> None: ...

class Settlement(_message.Message):
    __slots__ = ("id", "lease_token", "action", "delay", "error", "timeout", "partition")
    ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    id: int
    lease_token: int
    action: SettleAction
    delay: _duration_pb2.Duration
    error: str
    timeout: _duration_pb2.Duration
    partition: int
    def __init__(self, id: _Optional[int] = ..., lease_token: _Optional[int] = ..., action: _Optional[_Union[SettleAction, str]] = ..., delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., error: _Optional[str] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., partition: _Optional[int] = ...) -> None: ...

class SettleRequest(_message.Message):
    __slots__ = ("queue", "group", "settlements")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SETTLEMENTS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    group: str
    settlements: _containers.RepeatedCompositeFieldContainer[Settlement]
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., settlements: _Optional[_Iterable[_Union[Settlement, _Mapping]]] = ...) -> None: ...

class SettleResponse(_message.Message):
    __slots__ = ("settled", "errors", "deadlines")
    class DeadlinesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: _timestamp_pb2.Timestamp
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    DEADLINES_FIELD_NUMBER: _ClassVar[int]
    settled: int
    errors: _containers.RepeatedCompositeFieldContainer[ItemError]
    deadlines: _containers.MessageMap[int, _timestamp_pb2.Timestamp]
    def __init__(self, settled: _Optional[int] = ..., errors: _Optional[_Iterable[_Union[ItemError, _Mapping]]] = ..., deadlines: _Optional[_Mapping[int, _timestamp_pb2.Timestamp]] = ...) -> None: ...

class LeaseKey(_message.Message):
    __slots__ = ("id", "lease_token")
    ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    id: int
    lease_token: int
    def __init__(self, id: _Optional[int] = ..., lease_token: _Optional[int] = ...) -> None: ...

class ExtendRequest(_message.Message):
    __slots__ = ("queue", "group", "leases", "timeout")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    queue: str
    group: str
    leases: _containers.RepeatedCompositeFieldContainer[LeaseKey]
    timeout: _duration_pb2.Duration
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., leases: _Optional[_Iterable[_Union[LeaseKey, _Mapping]]] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ExtendResponse(_message.Message):
    __slots__ = ("extended", "errors", "deadlines")
    class DeadlinesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: _timestamp_pb2.Timestamp
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
    EXTENDED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    DEADLINES_FIELD_NUMBER: _ClassVar[int]
    extended: int
    errors: _containers.RepeatedCompositeFieldContainer[ItemError]
    deadlines: _containers.MessageMap[int, _timestamp_pb2.Timestamp]
    def __init__(self, extended: _Optional[int] = ..., errors: _Optional[_Iterable[_Union[ItemError, _Mapping]]] = ..., deadlines: _Optional[_Mapping[int, _timestamp_pb2.Timestamp]] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ("queue", "group", "credit", "timeout", "consumer", "on_disconnect", "must_exist")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    ON_DISCONNECT_FIELD_NUMBER: _ClassVar[int]
    MUST_EXIST_FIELD_NUMBER: _ClassVar[int]
    queue: str
    group: str
    credit: int
    timeout: _duration_pb2.Duration
    consumer: str
    on_disconnect: OnDisconnect
    must_exist: bool
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., credit: _Optional[int] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., consumer: _Optional[str] = ..., on_disconnect: _Optional[_Union[OnDisconnect, str]] = ..., must_exist: _Optional[bool] = ...) -> None: ...

class SettleBatch(_message.Message):
    __slots__ = ("batch", "settlements")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    SETTLEMENTS_FIELD_NUMBER: _ClassVar[int]
    batch: int
    settlements: _containers.RepeatedCompositeFieldContainer[Settlement]
    def __init__(self, batch: _Optional[int] = ..., settlements: _Optional[_Iterable[_Union[Settlement, _Mapping]]] = ...) -> None: ...

class SettledBatch(_message.Message):
    __slots__ = ("batch", "settled")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    batch: int
    settled: SettleResponse
    def __init__(self, batch: _Optional[int] = ..., settled: _Optional[_Union[SettleResponse, _Mapping]] = ...) -> None: ...

class ConsumeRequest(_message.Message):
    __slots__ = ("subscribe", "settle", "credit")
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    subscribe: Subscribe
    settle: SettleBatch
    credit: int
    def __init__(self, subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., settle: _Optional[_Union[SettleBatch, _Mapping]] = ..., credit: _Optional[int] = ...) -> None: ...

class Subscribed(_message.Message):
    __slots__ = ("consumer",)
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    def __init__(self, consumer: _Optional[str] = ...) -> None: ...

class DeliveryBatch(_message.Message):
    __slots__ = ("deliveries",)
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    def __init__(self, deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ...) -> None: ...

class ConsumeResponse(_message.Message):
    __slots__ = ("subscribed", "deliveries", "settled")
    SUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    subscribed: Subscribed
    deliveries: DeliveryBatch
    settled: SettledBatch
    def __init__(self, subscribed: _Optional[_Union[Subscribed, _Mapping]] = ..., deliveries: _Optional[_Union[DeliveryBatch, _Mapping]] = ..., settled: _Optional[_Union[SettledBatch, _Mapping]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("queue", "group", "partition", "first", "until", "limit", "follow")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    queue: str
    group: str
    partition: int
    first: int
    until: int
    limit: int
    follow: bool
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., partition: _Optional[int] = ..., first: _Optional[int] = ..., until: _Optional[int] = ..., limit: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("messages", "next", "committed", "high", "lost_from", "lost_to")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    LOST_FROM_FIELD_NUMBER: _ClassVar[int]
    LOST_TO_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    next: int
    committed: int
    high: int
    lost_from: int
    lost_to: int
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., next: _Optional[int] = ..., committed: _Optional[int] = ..., high: _Optional[int] = ..., lost_from: _Optional[int] = ..., lost_to: _Optional[int] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("queue", "group", "sequences")
    class SequencesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    queue: str
    group: str
    sequences: _containers.ScalarMap[int, int]
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., sequences: _Optional[_Mapping[int, int]] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class RetryConfig(_message.Message):
    __slots__ = ("max_retries", "initial_backoff", "max_backoff", "multiplier", "jitter", "total_timeout")
    MAX_RETRIES_FIELD_NUMBER: _ClassVar[int]
    INITIAL_BACKOFF_FIELD_NUMBER: _ClassVar[int]
    MAX_BACKOFF_FIELD_NUMBER: _ClassVar[int]
    MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    JITTER_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    max_retries: int
    initial_backoff: _duration_pb2.Duration
    max_backoff: _duration_pb2.Duration
    multiplier: float
    jitter: float
    total_timeout: _duration_pb2.Duration
    def __init__(self, max_retries: _Optional[int] = ..., initial_backoff: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_backoff: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., multiplier: _Optional[float] = ..., jitter: _Optional[float] = ..., total_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DeadLetterConfig(_message.Message):
    __slots__ = ("enabled", "queue", "alert_webhook")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ALERT_WEBHOOK_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    queue: str
    alert_webhook: str
    def __init__(self, enabled: _Optional[bool] = ..., queue: _Optional[str] = ..., alert_webhook: _Optional[str] = ...) -> None: ...

class ThrottleConfig(_message.Message):
    __slots__ = ("concurrency", "rate", "burst", "key_concurrency", "key_rate", "key_burst", "fair")
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    BURST_FIELD_NUMBER: _ClassVar[int]
    KEY_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    KEY_RATE_FIELD_NUMBER: _ClassVar[int]
    KEY_BURST_FIELD_NUMBER: _ClassVar[int]
    FAIR_FIELD_NUMBER: _ClassVar[int]
    concurrency: int
    rate: float
    burst: int
    key_concurrency: int
    key_rate: float
    key_burst: int
    fair: bool
    def __init__(self, concurrency: _Optional[int] = ..., rate: _Optional[float] = ..., burst: _Optional[int] = ..., key_concurrency: _Optional[int] = ..., key_rate: _Optional[float] = ..., key_burst: _Optional[int] = ..., fair: _Optional[bool] = ...) -> None: ...

class BreakerConfig(_message.Message):
    __slots__ = ("dead_letters", "window")
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    dead_letters: int
    window: _duration_pb2.Duration
    def __init__(self, dead_letters: _Optional[int] = ..., window: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class TopicFilters(_message.Message):
    __slots__ = ("filters",)
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    filters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, filters: _Optional[_Iterable[str]] = ...) -> None: ...

class QueueConfig(_message.Message):
    __slots__ = ("partitions", "ordering", "max_message_size", "max_depth", "message_ttl", "delivery_timeout", "batch_size", "dedup_window", "journal", "durability", "topics", "paused", "retry", "dlq", "throttle", "breaker")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ORDERING_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TTL_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    DEDUP_WINDOW_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    DLQ_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_FIELD_NUMBER: _ClassVar[int]
    BREAKER_FIELD_NUMBER: _ClassVar[int]
    partitions: int
    ordering: Ordering
    max_message_size: int
    max_depth: int
    message_ttl: _duration_pb2.Duration
    delivery_timeout: _duration_pb2.Duration
    batch_size: int
    dedup_window: _duration_pb2.Duration
    journal: Journal
    durability: Durability
    topics: TopicFilters
    paused: bool
    retry: RetryConfig
    dlq: DeadLetterConfig
    throttle: ThrottleConfig
    breaker: BreakerConfig
    def __init__(self, partitions: _Optional[int] = ..., ordering: _Optional[_Union[Ordering, str]] = ..., max_message_size: _Optional[int] = ..., max_depth: _Optional[int] = ..., message_ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., delivery_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., batch_size: _Optional[int] = ..., dedup_window: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., journal: _Optional[_Union[Journal, str]] = ..., durability: _Optional[_Union[Durability, str]] = ..., topics: _Optional[_Union[TopicFilters, _Mapping]] = ..., paused: _Optional[bool] = ..., retry: _Optional[_Union[RetryConfig, _Mapping]] = ..., dlq: _Optional[_Union[DeadLetterConfig, _Mapping]] = ..., throttle: _Optional[_Union[ThrottleConfig, _Mapping]] = ..., breaker: _Optional[_Union[BreakerConfig, _Mapping]] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("name", "kind", "created_at", "max_lag_messages", "max_lag_age")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    MAX_LAG_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_LAG_AGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: GroupKind
    created_at: _timestamp_pb2.Timestamp
    max_lag_messages: int
    max_lag_age: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[GroupKind, str]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., max_lag_messages: _Optional[int] = ..., max_lag_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Queue(_message.Message):
    __slots__ = ("name", "namespace", "created_at", "automatic", "depth", "config", "groups")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    AUTOMATIC_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    created_at: _timestamp_pb2.Timestamp
    automatic: bool
    depth: int
    config: QueueConfig
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., automatic: _Optional[bool] = ..., depth: _Optional[int] = ..., config: _Optional[_Union[QueueConfig, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ...) -> None: ...

class CreateQueueRequest(_message.Message):
    __slots__ = ("name", "config")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    name: str
    config: QueueConfig
    def __init__(self, name: _Optional[str] = ..., config: _Optional[_Union[QueueConfig, _Mapping]] = ...) -> None: ...

class CreateQueueResponse(_message.Message):
    __slots__ = ("queue",)
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: Queue
    def __init__(self, queue: _Optional[_Union[Queue, _Mapping]] = ...) -> None: ...

class GetQueueRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetQueueResponse(_message.Message):
    __slots__ = ("queue",)
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: Queue
    def __init__(self, queue: _Optional[_Union[Queue, _Mapping]] = ...) -> None: ...

class ListQueuesRequest(_message.Message):
    __slots__ = ("prefix", "page_size", "page_token")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    page_size: int
    page_token: str
    def __init__(self, prefix: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListQueuesResponse(_message.Message):
    __slots__ = ("queues", "next_page_token")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[Queue]
    next_page_token: str
    def __init__(self, queues: _Optional[_Iterable[_Union[Queue, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateQueueRequest(_message.Message):
    __slots__ = ("name", "config")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    name: str
    config: QueueConfig
    def __init__(self, name: _Optional[str] = ..., config: _Optional[_Union[QueueConfig, _Mapping]] = ...) -> None: ...

class UpdateQueueResponse(_message.Message):
    __slots__ = ("queue",)
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: Queue
    def __init__(self, queue: _Optional[_Union[Queue, _Mapping]] = ...) -> None: ...

class DeleteQueueRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteQueueResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class GetQueueStatsRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetQueueStatsResponse(_message.Message):
    __slots__ = ("stats",)
    STATS_FIELD_NUMBER: _ClassVar[int]
    stats: QueueStats
    def __init__(self, stats: _Optional[_Union[QueueStats, _Mapping]] = ...) -> None: ...

class QueueStats(_message.Message):
    __slots__ = ("name", "total_messages", "inflight_messages", "dlq_messages", "enqueue_rate", "ack_rate", "active_consumers", "partitions_assigned", "namespace", "partitions", "ready_messages", "scheduled_messages", "size_bytes", "enqueued", "duplicates", "refused", "oldest_message_age", "groups")
    class PartitionsAssignedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DLQ_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ENQUEUE_RATE_FIELD_NUMBER: _ClassVar[int]
    ACK_RATE_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    READY_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    OLDEST_MESSAGE_AGE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    total_messages: int
    inflight_messages: int
    dlq_messages: int
    enqueue_rate: float
    ack_rate: float
    active_consumers: int
    partitions_assigned: _containers.ScalarMap[str, int]
    namespace: str
    partitions: int
    ready_messages: int
    scheduled_messages: int
    size_bytes: int
    enqueued: int
    duplicates: int
    refused: int
    oldest_message_age: _duration_pb2.Duration
    groups: _containers.RepeatedCompositeFieldContainer[GroupStats]
    def __init__(self, name: _Optional[str] = ..., total_messages: _Optional[int] = ..., inflight_messages: _Optional[int] = ..., dlq_messages: _Optional[int] = ..., enqueue_rate: _Optional[float] = ..., ack_rate: _Optional[float] = ..., active_consumers: _Optional[int] = ..., partitions_assigned: _Optional[_Mapping[str, int]] = ..., namespace: _Optional[str] = ..., partitions: _Optional[int] = ..., ready_messages: _Optional[int] = ..., scheduled_messages: _Optional[int] = ..., size_bytes: _Optional[int] = ..., enqueued: _Optional[int] = ..., duplicates: _Optional[int] = ..., refused: _Optional[int] = ..., oldest_message_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[GroupStats, _Mapping]]] = ...) -> None: ...

class GroupStats(_message.Message):
    __slots__ = ("name", "kind", "ready", "scheduled", "leased", "lag", "acked", "redelivered", "failures", "dead", "consumers", "oldest_message_age", "unattended")
    class FailuresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class DeadEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_MESSAGE_AGE_FIELD_NUMBER: _ClassVar[int]
    UNATTENDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: GroupKind
    ready: int
    scheduled: int
    leased: int
    lag: int
    acked: int
    redelivered: int
    failures: _containers.ScalarMap[str, int]
    dead: _containers.ScalarMap[str, int]
    consumers: int
    oldest_message_age: _duration_pb2.Duration
    unattended: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[GroupKind, str]] = ..., ready: _Optional[int] = ..., scheduled: _Optional[int] = ..., leased: _Optional[int] = ..., lag: _Optional[int] = ..., acked: _Optional[int] = ..., redelivered: _Optional[int] = ..., failures: _Optional[_Mapping[str, int]] = ..., dead: _Optional[_Mapping[str, int]] = ..., consumers: _Optional[int] = ..., oldest_message_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., unattended: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PurgeQueueRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class PurgeQueueResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("queue",)
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: str
    def __init__(self, queue: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ...) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("queue", "group", "kind", "start", "max_lag_messages", "max_lag_age")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    MAX_LAG_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_LAG_AGE_FIELD_NUMBER: _ClassVar[int]
    queue: str
    group: str
    kind: GroupKind
    start: GroupStart
    max_lag_messages: int
    max_lag_age: _duration_pb2.Duration
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., kind: _Optional[_Union[GroupKind, str]] = ..., start: _Optional[_Union[GroupStart, str]] = ..., max_lag_messages: _Optional[int] = ..., max_lag_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class CreateGroupResponse(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: Group
    def __init__(self, group: _Optional[_Union[Group, _Mapping]] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("queue", "group")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    queue: str
    group: str
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeadLetterFilter(_message.Message):
    __slots__ = ("ids", "group", "reason", "error", "older_than", "newer_than", "properties")
    IDS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OLDER_THAN_FIELD_NUMBER: _ClassVar[int]
    NEWER_THAN_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    group: str
    reason: str
    error: str
    older_than: _duration_pb2.Duration
    newer_than: _duration_pb2.Duration
    properties: _containers.RepeatedCompositeFieldContainer[Property]
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., group: _Optional[str] = ..., reason: _Optional[str] = ..., error: _Optional[str] = ..., older_than: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., newer_than: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., properties: _Optional[_Iterable[_Union[Property, _Mapping]]] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("queue", "filter", "page_size", "page_token")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    queue: str
    filter: DeadLetterFilter
    page_size: int
    page_token: str
    def __init__(self, queue: _Optional[str] = ..., filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("dead_letters", "next_page_token")
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    dead_letters: _containers.RepeatedCompositeFieldContainer[Message]
    next_page_token: str
    def __init__(self, dead_letters: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class RedriveRequest(_message.Message):
    __slots__ = ("queue", "filter", "to", "group", "all_groups", "rate", "limit", "dry_run")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ALL_GROUPS_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    queue: str
    filter: DeadLetterFilter
    to: str
    group: str
    all_groups: bool
    rate: float
    limit: int
    dry_run: bool
    def __init__(self, queue: _Optional[str] = ..., filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ..., to: _Optional[str] = ..., group: _Optional[str] = ..., all_groups: _Optional[bool] = ..., rate: _Optional[float] = ..., limit: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class RedriveJob(_message.Message):
    __slots__ = ("id", "queue", "dead_queue", "to", "dry_run", "state", "looked_at", "matched", "moved", "skipped", "problem", "started_at", "ended_at")
    ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    DEAD_QUEUE_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LOOKED_AT_FIELD_NUMBER: _ClassVar[int]
    MATCHED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    id: str
    queue: str
    dead_queue: str
    to: str
    dry_run: bool
    state: str
    looked_at: int
    matched: int
    moved: int
    skipped: int
    problem: str
    started_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., queue: _Optional[str] = ..., dead_queue: _Optional[str] = ..., to: _Optional[str] = ..., dry_run: _Optional[bool] = ..., state: _Optional[str] = ..., looked_at: _Optional[int] = ..., matched: _Optional[int] = ..., moved: _Optional[int] = ..., skipped: _Optional[int] = ..., problem: _Optional[str] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class RedriveResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: RedriveJob
    def __init__(self, job: _Optional[_Union[RedriveJob, _Mapping]] = ...) -> None: ...

class GetRedriveRequest(_message.Message):
    __slots__ = ("queue", "id")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    queue: str
    id: str
    def __init__(self, queue: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class GetRedriveResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: RedriveJob
    def __init__(self, job: _Optional[_Union[RedriveJob, _Mapping]] = ...) -> None: ...

class CancelRedriveRequest(_message.Message):
    __slots__ = ("queue", "id")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    queue: str
    id: str
    def __init__(self, queue: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class CancelRedriveResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: RedriveJob
    def __init__(self, job: _Optional[_Union[RedriveJob, _Mapping]] = ...) -> None: ...
