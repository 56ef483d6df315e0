"""Dead letters: filters and redrives."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.wire.numbers import Count, Int64
from holdfast.wire.times import Duration


class DeadFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Selects dead letters; all given conditions must hold. None given: all dead letters."""

    ids: list[str] = []
    """These (ids of dead letters, not of their sources)."""
    reason: str = ""
    """Why it died: `max_retries`, `total_timeout`, `rejected` or `expired`."""
    error: str = ""
    """The last error contains this text, in upper or lower case."""
    older_than: Duration | None = None
    """It died at least this long ago."""
    newer_than: Duration | None = None
    """It died at most this long ago."""
    properties: dict[str, str] = {}
    """It has these properties with these values."""
    group: str = ""
    """It died in this group."""


class Redrive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Dead letters to redrive. Messages that die after the redrive was started are not part of it."""

    filter: DeadFilter = DeadFilter()
    to: str = ""
    """The queue to redrive them to, for all its groups. Empty: each to its source queue."""
    group: str = ""
    """Redrive them to this group alone. Empty: in its source queue, each goes to the group in which it died."""
    all_groups: bool = False
    """Redrive them to all groups of their source queue, also to those that had settled them."""
    rate: float = 0
    """Messages a second at most; `0`: no limit."""
    limit: Count = 0
    """How many at most; `0`: all that match."""
    dry_run: bool = False
    """Change nothing, only count what matches."""


class RedriveJob(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a redrive. What it has not moved yet is still in the dead queue.

    A restart of the server only interrupts it: the server continues it after the start, with these counts.
    """

    id: str
    queue: str
    dead_queue: str
    to: str = ""
    group: str = ""
    all_groups: bool = False
    dry_run: bool = False
    state: Literal["running", "done", "cancelled", "failed"]
    looked_at: int = 0
    matched: int = 0
    moved: int = 0
    skipped: int = 0
    """Matched, but leased by a consumer of the dead queue, or refused by their destination; they stay there."""
    problem: str = ""
    """Why it waits, skipped something or failed."""
    started_at: str
    ended_at: str | None = None


class RedriveList(msgspec.Struct, frozen=True):
    """Redrives of a queue, newest first."""

    redrives: list[RedriveJob]


class Retried(msgspec.Struct, frozen=True):
    """A redriven dead letter: its queue and its new id there."""

    queue: str
    id: str


class AuditedDeadLetter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A dead letter to redrive, by its id."""

    id: str
    base64: bytes | None = None
    """A new payload. The message then has the property `holdfast-original-sha256`."""


class AuditedMove(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Dead letters to redrive under an audit id. `to` and `note` are the same in every request of one id."""

    dead_letters: list[AuditedDeadLetter]
    to: str = ""
    """The queue to redrive them to. Empty: each to its source queue."""
    note: str = ""
    """Why, and how they were selected: for the audit."""


class RedriveOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a dead letter, or the status of the message that was made of it."""

    dead_letter: str
    outcome: Literal["moved", "repeated", "leased", "gone", "refused", "undone", "waiting", "partly", "dead"]
    """In a redrive: `moved`; `repeated`: moved before, under this id; `leased` by a consumer of the dead queue; `gone`
    from it; `refused` by its destination; `undone`. In an audit or undo: the message is `waiting`, `leased`, `partly`
    done (in some groups), `dead` (its dead letter waits), `gone` (done, or deleted), or a dead letter again
    (`undone`)."""
    queue: str = ""
    """The queue it was moved to."""
    message: str = ""
    """Its id there."""
    again: str = ""
    """With `undone`: its id as a dead letter now."""
    code: str = ""
    """With `refused`: the error's code."""
    problem: str = ""
    retryable: bool = False


class RedriveAudit(msgspec.Struct, frozen=True, kw_only=True):
    """An audited redrive: who started it, when and why, and how many dead letters it moved."""

    id: str
    dead_queue: str
    by: str
    note: str
    to: str
    began_at: str
    changed_at: str
    moved: int
    undone: int


class RedriveAudits(msgspec.Struct, frozen=True):
    """Audited redrives, newest first."""

    audits: list[RedriveAudit]


class RedriveOutcomes(msgspec.Struct, frozen=True):
    """Dead letters of a redrive. Continue with `cursor`; empty: there are no more."""

    dead_letters: list[RedriveOutcome]
    cursor: str = ""


class UndoPage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which dead letters of a redrive to undo: at most `limit`, after `cursor`."""

    cursor: str = ""
    limit: Int64 = 1_000
