"""Moving the messages of a queue to another queue."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.wire.numbers import Count
from holdfast.wire.times import Duration


class MoveFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Selects messages; all given conditions must hold. None given: all messages."""

    ids: list[str] = []
    """These."""
    older_than: Duration | None = None
    """It was enqueued at least this long ago."""
    newer_than: Duration | None = None
    """It was enqueued at most this long ago."""
    properties: dict[str, str] = {}
    """It has these properties with these values."""


class Move(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Messages to move. Those that are enqueued after the move was started are not part of it."""

    to: str
    """The queue to move them to, which must exist."""
    filter: MoveFilter = MoveFilter()
    rate: float = 0.0
    """How many a second at most; 0: no limit."""
    limit: Count = 0
    """How many at most; 0: all that match."""
    dry_run: bool = False
    """Only count; nothing is moved."""


class MoveJob(msgspec.Struct, frozen=True, kw_only=True):
    """A move and its progress. With `dry_run`, `matched` is how many would be moved."""

    id: str
    queue: str
    to: str
    dry_run: bool = False
    state: Literal["running", "done", "cancelled", "failed"]
    looked_at: int = 0
    matched: int = 0
    moved: int = 0
    skipped: int = 0
    """Matched, but leased by a consumer, or refused by the destination; they stay."""
    problem: str = ""
    """Why it waits, skipped something or failed."""
    started_at: str
    ended_at: str | None = None


class MoveList(msgspec.Struct, frozen=True):
    """Moves of a queue's messages, newest first."""

    moves: list[MoveJob]
