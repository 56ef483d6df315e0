"""Follows every delivery through the journal and holds it against the table of transitions."""

from __future__ import annotations

from holdfast.core.journal import Row
from holdfast.core.states import ENDED, NEXT, Event, Journalled, Reason, State

DEATHS = {
    Reason.EXPIRED: Event.EXPIRE,
    Reason.REJECTED: Event.REJECT,
    Reason.MAX_RETRIES: Event.EXHAUST,
    Reason.TOTAL_TIMEOUT: Event.EXHAUST,
}
FAILURES = {Reason.NACK: Event.NACK, Reason.TIMEOUT: Event.TIME_OUT, Reason.DISCONNECT: Event.VANISH}
PLAIN = {
    Journalled.LEASED: Event.LEASE,
    Journalled.EXTENDED: Event.EXTEND,
    Journalled.RELEASED: Event.RELEASE,
    Journalled.EXPIRED: Event.EXPIRE_UNHEARD,
    Journalled.PURGED: Event.REMOVE,
}


def event_of(row: Row, state: State) -> Event:
    """Which event of the table a journal row tells of."""
    later = row.deliver_at is not None and row.deliver_at > row.at
    match row.event:
        case Journalled.ENQUEUED:
            return Event.ENQUEUE_DELAYED if later else Event.ENQUEUE
        case Journalled.EDITED:
            return Event.EDIT_DELAY if later else Event.EDIT
        case Journalled.FAILED:
            return FAILURES[Reason(row.reason or "")]
        case Journalled.DEAD:
            return DEATHS[Reason(row.reason or "")]
        case Journalled.DROPPED:
            return Event.FALL_BEHIND if row.reason == Reason.MAX_LAG else Event.FIND_NO_DEAD_QUEUE
        case Journalled.ACKED:
            return Event.ACK if state is State.LEASED else Event.COMMIT
        case _:
            return PLAIN[row.event]


class Lives:
    """Where each delivery stands, as far as the journal tells. A transition that is not in the table is an error."""

    def __init__(self) -> None:
        self.seen: set[tuple[State, Event]] = set()
        self._rows: list[tuple[Row, set[tuple[int, str]]]] = []
        self._messages: dict[int, tuple[State, int]] = {}
        self._deliveries: dict[tuple[int, str], tuple[State, int]] = {}

    def observe(self, row: Row, doomed: set[tuple[int, str]]) -> None:
        """Take in the next row. `doomed`: deliveries that a dead queue refused before this command."""
        self._rows.append((row, doomed))
        self._apply(row, doomed)

    def forget(self, lsn: int) -> None:
        """A crash has lost the rows from `lsn` on."""
        kept = [(row, doomed) for row, doomed in self._rows if row.lsn < lsn]
        self._rows, self._messages, self._deliveries = kept, {}, {}
        for row, doomed in kept:
            self._apply(row, doomed)

    def _apply(self, row: Row, doomed: set[tuple[int, str]]) -> None:
        if row.event is Journalled.DUPLICATE:
            return
        key = (row.message_id, row.group or "")
        state, due = self._deliveries.get(key) or self._messages.get(row.message_id, (State.NEW, 0))
        if key in doomed:
            state = State.SCHEDULED
        elif state is State.SCHEDULED and due <= row.at:
            self.seen.add((state, Event.FALL_DUE))
            state = State.READY
        event = event_of(row, state)
        transition = NEXT[state, event]
        assert transition.journal is row.event
        self.seen.add((state, event))
        after = transition.to
        if after is State.SCHEDULED and (row.deliver_at or 0) <= row.at:
            after = State.READY  # a backoff of nothing
        stand = (after, row.deliver_at or 0 if after is State.SCHEDULED else 0)
        if row.group is None and after not in ENDED:
            self._messages[row.message_id] = stand
        else:
            self._deliveries[key] = stand
