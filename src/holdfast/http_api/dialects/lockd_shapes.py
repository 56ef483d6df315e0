"""What lockd's queue API takes and gives, field by field."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Seconds = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Wait = Annotated[int, msgspec.Meta(ge=-1, le=10**9)]
"""-1: do not wait; 0: as long as the server allows."""


class LockdPlace(msgspec.Struct, frozen=True):
    """Which queue."""

    namespace: str = ""
    queue: str = ""


class LockdEnqueueMeta(LockdPlace, frozen=True, kw_only=True):
    """The `meta` part of an enqueue."""

    delay_seconds: Seconds = 0
    visibility_timeout_seconds: Seconds = 0
    ttl_seconds: Seconds = 0
    max_attempts: Annotated[int, msgspec.Meta(ge=0)] = 0
    attributes: dict[str, Any] = {}
    payload_content_type: str = ""


class LockdEnqueued(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is stored."""

    namespace: str
    queue: str
    message_id: str
    attempts: int
    max_attempts: int
    not_visible_until_unix: int
    visibility_timeout_seconds: int
    payload_bytes: int
    correlation_id: str


class LockdDequeue(LockdPlace, frozen=True, kw_only=True):
    """What to be given."""

    owner: str = ""
    visibility_timeout_seconds: Seconds = 0
    wait_seconds: Wait = 0
    page_size: Annotated[int, msgspec.Meta(ge=0)] = 0
    start_after: str = ""


class LockdMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A delivery."""

    namespace: str
    queue: str
    message_id: str
    attempts: int
    max_attempts: int
    failure_attempts: int = 0
    not_visible_until_unix: int
    visibility_timeout_seconds: int
    attributes: dict[str, Any] = {}
    payload_content_type: str = ""
    payload_bytes: int
    correlation_id: str = ""
    lease_id: str
    lease_expires_at_unix: int
    fencing_token: int
    meta_etag: str
    state_etag: str = ""
    state_lease_id: str = ""
    state_lease_expires_at_unix: int = 0
    state_fencing_token: int = 0


class LockdDequeued(msgspec.Struct, frozen=True):
    """The `meta` part of a delivery."""

    message: LockdMessage


class LockdLease(LockdPlace, frozen=True, kw_only=True):
    """Which delivery, by the lease under which it is held."""

    message_id: str
    lease_id: str
    fencing_token: int = 0
    meta_etag: str = ""
    state_etag: str = ""
    state_lease_id: str = ""
    state_fencing_token: int = 0


class LockdNack(LockdLease, frozen=True, kw_only=True):
    """Nack a delivery. `defer` is no failure: no attempt is spent."""

    delay_seconds: Seconds = 0
    intent: Literal["failure", "defer"] = "failure"
    last_error: Any = None


class LockdExtend(LockdLease, frozen=True, kw_only=True):
    """Hold a delivery for longer."""

    extend_by_seconds: Seconds = 0


class LockdAcked(msgspec.Struct, frozen=True):
    """That it is done."""

    acked: bool
    correlation_id: str


class LockdRequeued(msgspec.Struct, frozen=True):
    """That it goes back to its queue."""

    requeued: bool
    meta_etag: str
    correlation_id: str


class LockdExtended(msgspec.Struct, frozen=True):
    """Until when the lease holds now."""

    lease_expires_at_unix: int
    visibility_timeout_seconds: int
    meta_etag: str
    correlation_id: str


class LockdStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The status of a queue."""

    namespace: str
    queue: str
    waiting_consumers: int
    pending_candidates: int
    total_consumers: int
    has_active_watcher: bool
    available: bool
    head_message_id: str = ""
    head_enqueued_at_unix: int = 0
    head_not_visible_until_unix: int = 0
    head_age_seconds: int = 0
    correlation_id: str


class LockdWatched(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of `watch`."""

    namespace: str
    queue: str
    available: bool
    head_message_id: str = ""
    changed_at_unix: int
    correlation_id: str


class LockdRefusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """lockd's envelope of errors."""

    error: str
    detail: str
    retry_after_seconds: int = 0
