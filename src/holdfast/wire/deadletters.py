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
    """The queue to bring them to, there for all its groups. Empty: each to the queue it came from."""
    group: str = ""
    """Bring them to this group alone. Empty: in the queue it came from, each goes to the group in which it died."""
    all_groups: bool = False
    """Bring them to all groups of the queue they came from, also to those that had done with them."""
    rate: float = 0
    """Messages a second at most; `0`: as fast as it goes."""
    limit: int = 0
    """How many at most; `0`: all that match."""
    dry_run: bool = False
    """Change nothing, only count what matches."""


class RedriveJob(msgspec.Struct, frozen=True, kw_only=True):
    """How far a redrive has come. What it moved is moved; what it has yet to move is still in the dead queue.

    A restart of the server interrupts it only: the next start goes on with it, with these counts.
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


class AuditedLetter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A dead letter to bring back, by its id."""

    id: str
    base64: bytes | None = None
    """Another payload than its own. The message then has the property `holdfast-original-sha256`."""


class AuditedMove(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Dead letters to bring back under an id. `to` and `note` are the same in every request of one id."""

    letters: list[AuditedLetter]
    to: str = ""
    """The queue to bring them to. Empty: each to the queue it came from."""
    note: str = ""
    """Why, and how they were chosen: for whoever looks later."""


class LetterFate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a dead letter, or how the message stands that was made of it."""

    letter: str
    fate: Literal["moved", "repeated", "leased", "gone", "refused", "undone", "waiting", "partly", "dead"]
    """When letters are brought back: `moved`; `repeated`: it was before, under this id; `leased` by a consumer of the
    dead queue; `gone` from it; `refused` by its destination; `undone`. When they are looked at or taken back: the
    message is `waiting`, `leased`, `partly` done (in some groups), `dead` (its letter waits), `gone` (done, or
    removed), or the letter is one again (`undone`)."""
    queue: str = ""
    """Where it was brought to."""
    message: str = ""
    """Its id there."""
    again: str = ""
    """With `undone`: its id as a dead letter now."""
    code: str = ""
    """With `refused`: the error's code."""
    problem: str = ""
    retryable: bool = False


class RedriveAudit(msgspec.Struct, frozen=True, kw_only=True):
    """A redrive under an id: who began it, when and why, and how many letters that are."""

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
    """Redrives under an id, newest first."""

    audits: list[RedriveAudit]


class LetterFates(msgspec.Struct, frozen=True):
    """Letters of a redrive. Go on with `cursor`; empty: there are no more."""

    letters: list[LetterFate]
    cursor: str = ""


class UndoPage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which letters of a redrive to take back: so many, from after `cursor` on."""

    cursor: str = ""
    limit: int = 1_000
