"""The life of a delivery, as one table: what may follow what.

A message is enqueued once; in every group it then has a life of its own, and that life is a delivery. It is *ready*
when it may be leased, *scheduled* when it must wait for a time (its producer delayed it, or it backs off after a
failure), and *leased* while a consumer has the right to work on it. It ends *acked*, *dead* (moved to the dead queue),
*dropped* (must go to a dead queue, but there is none), *expired* (its time to live passed, and there is no dead queue)
or *purged* (a person removed it, or the whole queue with its leased messages).

A lease costs an attempt when it ends badly: a nack, a deadline that passed, a consumer that disconnected. It costs none
when it is released, which puts the delivery back in its old place. A failure is followed by a backoff, unless it was
one too many: then the delivery is dead. `dead_reason` in core/leasing.py decides that, and `fail` beside it acts on it.
A dead queue may refuse a dead letter: until it accepts it, the delivery is scheduled and dies from there.

Each row is: in this state, on this event, go to that state and journal it under that name. There are no other
transitions. The core takes its journal names from here, but not its states: it has none in one place. A delivery is
leased while it has a token, scheduled while it has a time to wait for, and most never have an object at all, because
batches are leased and acked columnar. To look up each step of each message here would cost 0.6 of the 3.7 µs that a
message's life takes, 16 %. So the table is a specification, and the tests hold the core to it: every journal row of the
transcripts and of the simulation must be a transition of this table, and together the transcripts show all of them. The
diagram in docs/explanation/life-of-a-delivery.md is drawn from it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class DeliveryState(StrEnum):
    NEW = "new"
    SCHEDULED = "scheduled"
    READY = "ready"
    LEASED = "leased"
    ACKED = "acked"
    DEAD = "dead"
    DROPPED = "dropped"
    EXPIRED = "expired"
    PURGED = "purged"


class Event(StrEnum):
    ENQUEUE = "enqueue"
    ENQUEUE_DELAYED = "enqueue with delay"
    FALL_DUE = "fall due"
    LEASE = "lease"
    EXTEND = "extend"
    ACK = "ack"
    NACK = "nack"
    TIME_OUT = "deadline passed"
    DISCONNECT = "consumer disconnected"
    RELEASE = "release"
    REJECT = "reject"
    EXHAUST = "retries or total time spent"
    EXPIRE = "time to live passed"
    DROP_WITHOUT_DEAD_QUEUE = "dead, but no dead queue"
    EXPIRE_WITHOUT_DEAD_QUEUE = "time to live passed, no dead queue"
    EDIT = "edit"
    EDIT_DELAY = "edit to a later time"
    REMOVE = "purge or delete"
    COMMIT = "cursor committed past it"
    FALL_BEHIND = "cursor moved on by max_lag"


class JournalEvent(StrEnum):
    """The names of events in the journal (and in the lake): part of the public contract."""

    ENQUEUED = "enqueued"
    DUPLICATE = "duplicate"
    LEASED = "leased"
    EXTENDED = "extended"
    ACKED = "acked"
    FAILED = "failed"
    RELEASED = "released"
    DEAD = "dead"
    DROPPED = "dropped"
    EXPIRED = "expired"
    PURGED = "purged"
    EDITED = "edited"
    GROUP_CREATED = "group_created"
    GROUP_DELETED = "group_deleted"
    QUEUE_DELETED = "queue_deleted"


ABOUT_GROUPS = (JournalEvent.GROUP_CREATED, JournalEvent.GROUP_DELETED, JournalEvent.QUEUE_DELETED)
"""Events of a group, or of all groups of a partition, and of no message. They say for whom a message is: for the groups
that exist when it is enqueued, and for those created later that begin with all that is live."""


class Transition(NamedTuple):
    state: DeliveryState
    event: Event
    to: DeliveryState
    journal: JournalEvent | None


TRANSITIONS = (
    Transition(DeliveryState.NEW, Event.ENQUEUE, DeliveryState.READY, JournalEvent.ENQUEUED),
    Transition(DeliveryState.NEW, Event.ENQUEUE_DELAYED, DeliveryState.SCHEDULED, JournalEvent.ENQUEUED),
    Transition(DeliveryState.SCHEDULED, Event.FALL_DUE, DeliveryState.READY, None),
    Transition(DeliveryState.SCHEDULED, Event.EDIT, DeliveryState.READY, JournalEvent.EDITED),
    Transition(DeliveryState.SCHEDULED, Event.EDIT_DELAY, DeliveryState.SCHEDULED, JournalEvent.EDITED),
    Transition(DeliveryState.SCHEDULED, Event.EXPIRE, DeliveryState.DEAD, JournalEvent.DEAD),
    Transition(DeliveryState.SCHEDULED, Event.EXPIRE_WITHOUT_DEAD_QUEUE, DeliveryState.EXPIRED, JournalEvent.EXPIRED),
    Transition(DeliveryState.SCHEDULED, Event.EXHAUST, DeliveryState.DEAD, JournalEvent.DEAD),
    Transition(DeliveryState.SCHEDULED, Event.REJECT, DeliveryState.DEAD, JournalEvent.DEAD),
    Transition(DeliveryState.SCHEDULED, Event.DROP_WITHOUT_DEAD_QUEUE, DeliveryState.DROPPED, JournalEvent.DROPPED),
    Transition(DeliveryState.SCHEDULED, Event.REMOVE, DeliveryState.PURGED, JournalEvent.PURGED),
    Transition(DeliveryState.SCHEDULED, Event.COMMIT, DeliveryState.ACKED, JournalEvent.ACKED),
    Transition(DeliveryState.SCHEDULED, Event.FALL_BEHIND, DeliveryState.DROPPED, JournalEvent.DROPPED),
    Transition(DeliveryState.READY, Event.LEASE, DeliveryState.LEASED, JournalEvent.LEASED),
    Transition(DeliveryState.READY, Event.EDIT, DeliveryState.READY, JournalEvent.EDITED),
    Transition(DeliveryState.READY, Event.EDIT_DELAY, DeliveryState.SCHEDULED, JournalEvent.EDITED),
    Transition(DeliveryState.READY, Event.EXPIRE, DeliveryState.DEAD, JournalEvent.DEAD),
    Transition(DeliveryState.READY, Event.EXPIRE_WITHOUT_DEAD_QUEUE, DeliveryState.EXPIRED, JournalEvent.EXPIRED),
    Transition(DeliveryState.READY, Event.REMOVE, DeliveryState.PURGED, JournalEvent.PURGED),
    Transition(DeliveryState.READY, Event.COMMIT, DeliveryState.ACKED, JournalEvent.ACKED),
    Transition(DeliveryState.READY, Event.FALL_BEHIND, DeliveryState.DROPPED, JournalEvent.DROPPED),
    Transition(DeliveryState.LEASED, Event.EXTEND, DeliveryState.LEASED, JournalEvent.EXTENDED),
    Transition(DeliveryState.LEASED, Event.ACK, DeliveryState.ACKED, JournalEvent.ACKED),
    Transition(DeliveryState.LEASED, Event.NACK, DeliveryState.SCHEDULED, JournalEvent.FAILED),
    Transition(DeliveryState.LEASED, Event.TIME_OUT, DeliveryState.SCHEDULED, JournalEvent.FAILED),
    Transition(DeliveryState.LEASED, Event.DISCONNECT, DeliveryState.SCHEDULED, JournalEvent.FAILED),
    Transition(DeliveryState.LEASED, Event.RELEASE, DeliveryState.READY, JournalEvent.RELEASED),
    Transition(DeliveryState.LEASED, Event.REJECT, DeliveryState.DEAD, JournalEvent.DEAD),
    Transition(DeliveryState.LEASED, Event.EXHAUST, DeliveryState.DEAD, JournalEvent.DEAD),
    Transition(DeliveryState.LEASED, Event.EXPIRE, DeliveryState.DEAD, JournalEvent.DEAD),
    Transition(DeliveryState.LEASED, Event.EXPIRE_WITHOUT_DEAD_QUEUE, DeliveryState.EXPIRED, JournalEvent.EXPIRED),
    Transition(DeliveryState.LEASED, Event.DROP_WITHOUT_DEAD_QUEUE, DeliveryState.DROPPED, JournalEvent.DROPPED),
    Transition(DeliveryState.LEASED, Event.REMOVE, DeliveryState.PURGED, JournalEvent.PURGED),
)

ENDED = frozenset(
    {DeliveryState.ACKED, DeliveryState.DEAD, DeliveryState.DROPPED, DeliveryState.EXPIRED, DeliveryState.PURGED}
)

NEXT: dict[tuple[DeliveryState, Event], Transition] = {(row.state, row.event): row for row in TRANSITIONS}


class Reason(StrEnum):
    """Why a delivery failed or died, in the journal's `reason`."""

    NACK = "nack"
    TIMEOUT = "timeout"
    DISCONNECT = "disconnect"
    MAX_RETRIES = "max_retries"
    TOTAL_TIMEOUT = "total_timeout"
    REJECTED = "rejected"
    EXPIRED = "expired"
    MAX_LAG = "max_lag"
    OTHER_GROUP = "other_group"  # a redriven message is for one group: it is `purged` for the others when it arrives
    REDRIVEN = "redriven"  # a dead letter that went back to work; in the journal it is `purged` from the dead queue
    GROUP_DELETED = "group_deleted"  # a message that only a deleted group needed; it is `purged`, for no group
    RECORDED = "recorded"  # a group that was there before groups were journalled, or while the queue's journal was off
    UNDONE = "undone"  # a redriven message that is a dead letter again; `purged` from the queue it was brought to


def journal_names(event: Event) -> JournalEvent | None:
    """What the journal calls `event`; it is the same in whatever state it happens."""
    return next(row.journal for row in TRANSITIONS if row.event is event)
