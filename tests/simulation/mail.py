"""The nouns of the model: a message, its life in a group, a group, a queue. No rules here but who needs what."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.core.queue import QueueConfig
from holdfast.core.records import WorkflowState


class Violation(AssertionError):
    """The engine did what it must not do."""


class Is(StrEnum):
    """How a message stands in a group, in the model's own words."""

    READY = "ready"
    LEASED = "leased"
    BACKING_OFF = "backing off"
    DEAD_LETTERING = "doomed"  # dead, but the dead queue could not take it yet
    ENDED = "ended"


@dataclass(slots=True)
class Life:
    """A message in one leasing group."""

    state: Is = Is.READY
    failures: int = 0
    token: int = 0
    deadline: int = 0
    ready_at: int = 0
    consumer: str = ""
    doom: str = ""
    ended: str = ""
    kept: WorkflowState | None = None  # its workflow state
    again_ms: int = 0  # when it is ready again after a failure, in milliseconds as an id has them; 0: it kept its place

    @property
    def over(self) -> bool:
        return self.state is Is.ENDED


@dataclass(slots=True)
class Mail:
    """A message that is stored. `order` is the event in which it became available, and its id (0: it fell due)."""

    id: int
    queue: str
    partition: int
    seq: int
    priority: int
    key: str | None
    enqueued_at: int
    deliver_at: int
    expires_at: int
    size: int
    message_id: str | None = None
    source: tuple[int, str] | None = None
    source_queue: str = ""
    why: tuple[str, int] | None = None  # of a dead letter: reason and attempts
    seed: WorkflowState | None = None  # the workflow state that it came with
    given_key: str | None = None  # as the producer gave it, whether or not this queue goes by it
    scheduled: bool = False
    order: tuple[int, int] = (0, 0)
    ms: int = 0
    lives: dict[str, Life] = field(default_factory=dict)
    listed: bool = True  # in the order of delivery, or on its schedule
    masked: bool = False  # some group has settled it while another one needed it

    def needed(self) -> bool:
        """Whether a leasing group has not settled it."""
        return any(not life.over for life in self.lives.values())


def state_of(mail: Mail, group: str) -> WorkflowState | None:
    """The workflow state of a message in a group: its own, or the one it came with, if that is for this group."""
    life = mail.lives.get(group)
    if life is not None and life.kept is not None:
        return life.kept
    if group and mail.source is not None and mail.source_queue == mail.queue and mail.source[1] != group:
        return None
    return mail.seed


@dataclass(slots=True)
class Group:
    """A group of a queue. Lists are by partition."""

    name: str
    number: int
    cursor: bool
    starts: list[int]
    committed: list[int]
    old: set[int] = field(default_factory=set)  # cursor groups: ids of what was stored when it was made
    lost: list[list[int]] = field(default_factory=list)  # sequences given up for max_lag since the last commit
    max_lag_messages: int = 0
    max_lag_age: int = 0
    remembered: dict[int, tuple[str, int]] = field(default_factory=dict)
    asked: list[tuple[int, int]] = field(default_factory=list)  # where there is a rate: when, and what was given

    def sees(self, mail: Mail) -> bool:
        """Whether a cursor group has yet to come to a message."""
        after = mail.seq > self.committed[mail.partition]
        return after and (mail.seq >= self.starts[mail.partition] or mail.id in self.old)


@dataclass(slots=True)
class Queue:
    """A queue: what is stored in it, and what it remembers of producers and sources."""

    name: str
    config: QueueConfig
    mails: dict[int, Mail] = field(default_factory=dict)
    next_seq: list[int] = field(default_factory=list)
    groups: dict[str, Group] = field(default_factory=dict)
    dedup: dict[str, tuple[int, int]] = field(default_factory=dict)
    groups_made: int = 0
    rests_until: int = 0  # as the store has it
    dead_lettering_paused: dict[int, int] = field(default_factory=dict)  # by partition: until when expiry may rest
    unneeded: set[int] = field(default_factory=set)  # partitions to be looked through after a group went

    def __post_init__(self) -> None:
        if not self.next_seq:
            self.next_seq = [1] * self.config.partitions

    @property
    def depth(self) -> int:
        return len(self.mails)

    def leasing(self) -> list[Group]:
        return [group for group in self.groups.values() if not group.cursor]

    def cursors(self) -> list[Group]:
        return [group for group in self.groups.values() if group.cursor]

    def in_partition(self, partition: int) -> list[Mail]:
        return [mail for mail in self.mails.values() if mail.partition == partition]

    def kept(self, mail: Mail) -> bool:
        """Whether a cursor group still needs a message."""
        return any(mail.seq > cursor.committed[mail.partition] for cursor in self.cursors())

    def with_source(self, partition: int, source: tuple[int, str]) -> Mail | None:
        for mail in self.mails.values():
            if mail.listed and mail.partition == partition and mail.source == source:
                return mail
        return None


def must(condition: bool, problem: str) -> None:
    if not condition:
        raise Violation(problem)
