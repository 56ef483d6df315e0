"""Dead letters: looking at them, and bringing them back."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.wire.times import Duration


class DeadFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which dead letters are meant; all that is given must hold. Nothing given: all of them."""

    ids: list[str] = []
    """These (ids of dead letters, not of their sources)."""
    reason: str = ""
    """Why it died: `max_retries`, `total_timeout`, `rejected` or `expired`."""
    error: str = ""
    """The last error contains this text, in upper or lower case."""
    older_than: Duration | None = None
    """It died at least so long ago."""
    newer_than: Duration | None = None
    """It died at most so long ago."""
    properties: dict[str, str] = {}
    """It has these properties with these values."""
    group: str = ""
    """It died in this group."""


class Redrive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Dead letters to bring back. Those that die after the redrive was started are not part of it."""

    filter: DeadFilter = DeadFilter()
    to: str = ""
    """The queue to bring them to. Empty: each to the queue it came from."""
    rate: float = 0
    """Messages a second at most; `0`: as fast as it goes."""
    limit: int = 0
    """How many at most; `0`: all that match."""
    dry_run: bool = False
    """Change nothing, only count what matches."""


class RedriveJob(msgspec.Struct, frozen=True, kw_only=True):
    """How far a redrive has come. What it moved is moved; what it has yet to move is still in the dead queue.

    Jobs are kept in memory: after a restart of the server the rest is redriven by asking again.
    """

    id: str
    queue: str
    dead_queue: str
    to: str = ""
    dry_run: bool = False
    state: Literal["running", "done", "cancelled", "failed"]
    looked_at: int = 0
    matched: int = 0
    moved: int = 0
    skipped: int = 0
    """Matched, but leased by a consumer of the dead queue, or refused by their destination; they are left there."""
    problem: str = ""
    """Why it waits, skipped something or failed."""
    started_at: str
    ended_at: str | None = None


class RedriveList(msgspec.Struct, frozen=True):
    """Redrives of a queue, newest first."""

    redrives: list[RedriveJob]


class Retried(msgspec.Struct, frozen=True):
    """Where a dead letter went: its queue and its new id there."""

    queue: str
    id: str
