"""Transactions: messages that become visible together, or never."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.wire.messages import Draft


class StagedMessage(Draft, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message to stage. It may name the message that it repeats: it is then stored as a replay of that one, with
    `replayed` as its origin's reason, also if there is such a replay already."""

    source_id: str = ""
    source_queue: str = ""


class StageBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages for one queue."""

    queue: str
    messages: list[StagedMessage]


class Stage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Messages to stage: invisible until the transaction is published. All are stored, or none if one is refused.

    A producer that stages in several requests numbers them with `chunk`; a repeated chunk is not stored again. A
    producer that may be started twice for the same work (a task of a job) names the work `part` and itself `attempt`.
    """

    batches: list[StageBatch]
    part: str = ""
    attempt: str = ""
    chunk: int = 0


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """What the transaction holds now. `repeated`: this chunk was staged before."""

    messages: int
    size_bytes: int
    expires_at: str
    repeated: bool = False


class Publish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to publish. Without `parts` every part counts, and each must have been staged by one attempt."""

    parts: dict[str, str] | None = None
    """For each part the attempt that counts; what other attempts staged is deleted."""


class TransactionPart(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt of a part has staged."""

    part: str
    attempt: str
    chunks: int
    messages: int
    size_bytes: int


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a transaction."""

    id: str
    state: Literal["open", "publishing", "published"]
    created_at: str
    ends_at: str
    """When it expires, or is forgotten once it is published."""
    messages: int
    size_bytes: int
    parts: list[TransactionPart] = []
    published_at: str | None = None
    published: int = 0
    duplicates: int = 0
    """Duplicates: messages that were already in their queue, by their `message_id`."""
    dropped: int = 0
    """Messages whose queue was deleted meanwhile."""
    repeated: bool = False
    """This call published nothing: it had been done before."""


class Aborted(msgspec.Struct, frozen=True):
    """Whether there was anything to delete."""

    aborted: bool
