"""Follows every delivery through the journal and holds it against the table of transitions."""

from __future__ import annotations

from holdfast.core.journal import Row
from holdfast.core.states import ABOUT_GROUPS, ENDED, NEXT, DeliveryState, Event, JournalEvent, Reason

DEATHS = {
    Reason.EXPIRED: Event.EXPIRE,
    Reason.REJECTED: Event.REJECT,
    Reason.MAX_RETRIES: Event.EXHAUST,
    Reason.TOTAL_TIMEOUT: Event.EXHAUST,
}
FAILURES = {Reason.NACK: Event.NACK, Reason.TIMEOUT: Event.TIME_OUT, Reason.DISCONNECT: Event.DISCONNECT}
PLAIN = {
    JournalEvent.LEASED: Event.LEASE,
    JournalEvent.EXTENDED: Event.EXTEND,
    JournalEvent.RELEASED: Event.RELEASE,
    JournalEvent.EXPIRED: Event.EXPIRE_WITHOUT_DEAD_QUEUE,
    JournalEvent.PURGED: Event.REMOVE,
}


def event_of(row: Row, state: DeliveryState) -> Event:
    """Which event of the table a journal row tells of."""
    later = row.deliver_at is not None and row.deliver_at > row.at
    match row.event:
        case JournalEvent.ENQUEUED:
            return Event.ENQUEUE_DELAYED if later else Event.ENQUEUE
        case JournalEvent.EDITED:
            return Event.EDIT_DELAY if later else Event.EDIT
        case JournalEvent.FAILED:
            return FAILURES[Reason(row.reason or "")]
        case JournalEvent.DEAD:
            return DEATHS[Reason(row.reason or "")]
        case JournalEvent.DROPPED:
            return Event.FALL_BEHIND if row.reason == Reason.MAX_LAG else Event.DROP_WITHOUT_DEAD_QUEUE
        case JournalEvent.ACKED:
            return Event.ACK if state is DeliveryState.LEASED else Event.COMMIT
        case _:
            return PLAIN[row.event]


class Lives:
    """Where each delivery stands, as far as the journal tells. A transition that is not in the table is an error."""

    def __init__(self) -> None:
        self.seen: set[tuple[DeliveryState, Event]] = set()
        self._rows: list[tuple[Row, set[tuple[int, str]]]] = []
        self._messages: dict[int, tuple[DeliveryState, int]] = {}
        self._deliveries: dict[tuple[int, str], tuple[DeliveryState, int]] = {}

    def observe(self, row: Row, dead_letter_candidates: set[tuple[int, str]]) -> None:
        """Take in the next row. `dead_letter_candidates`: deliveries that a dead queue refused before this command."""
        self._rows.append((row, dead_letter_candidates))
        self._apply(row, dead_letter_candidates)

    def forget(self, lsn: int) -> None:
        """A crash has lost the rows from `lsn` on."""
        kept = [(row, dead_letter_candidates) for row, dead_letter_candidates in self._rows if row.lsn < lsn]
        self._rows, self._messages, self._deliveries = kept, {}, {}
        for row, dead_letter_candidates in kept:
            self._apply(row, dead_letter_candidates)

    def _apply(self, row: Row, dead_letter_candidates: set[tuple[int, str]]) -> None:
        if row.event is JournalEvent.DUPLICATE or row.event in ABOUT_GROUPS:
            return
        key = (row.message_id, row.group or "")
        state, due = self._deliveries.get(key) or self._messages.get(row.message_id, (DeliveryState.NEW, 0))
        if key in dead_letter_candidates:
            state = DeliveryState.SCHEDULED
        elif state is DeliveryState.SCHEDULED and due <= row.at:
            self.seen.add((state, Event.FALL_DUE))
            state = DeliveryState.READY
        event = event_of(row, state)
        transition = NEXT[state, event]
        assert transition.journal is row.event
        self.seen.add((state, event))
        after = transition.to
        if after is DeliveryState.SCHEDULED and (row.deliver_at or 0) <= row.at:
            after = DeliveryState.READY  # a backoff of nothing
        stand = (after, row.deliver_at or 0 if after is DeliveryState.SCHEDULED else 0)
        if row.group is None and after not in ENDED:
            self._messages[row.message_id] = stand
        else:
            self._deliveries[key] = stand
