"""Folds events to rows of `messages`, in columnar form: each Spark task does it for a range of message ids.

`fold` takes all events of these messages in a batch, and their rows from earlier batches, and returns the rows as they
are now. It works on whole columns (NumPy, Arrow): a Spark query with window functions took many times the CPU, and
forty seconds of compiling before its first row.

Everything is sorted by message, group and lsn, an old row before the events. A message and group is then a segment of
consecutive rows, and a fact is "the last row of this kind in each segment", computed for all segments together by
`reduceat`. The rows themselves are not moved: text is only copied where a result refers to it, and is
dictionary-encoded wherever it repeats.

Pure, and imports nothing of Holdfast but the tables' columns: it is pickled by value and sent to the executors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.lake.arrow import KINDS, MESSAGES_SCHEMA
from holdfast.pipeline.lake.tables import ENDS, EVENTS, RECEIVED

NARROW = [name for name in EVENTS.names if name not in ("payload", "properties", "group_kind", "start_after")]
"""The columns of `events` that `messages` is computed from."""

OLD = "old"
"""The value of `event` for an old row, which an earlier batch wrote."""

CODES = (
    *("enqueued", "duplicate", "leased", "extended", "acked", "failed", "released", "dead", "dropped", "expired"),
    *("purged", "edited", RECEIVED, OLD),
)
STATES = ("waiting", "leased", *ENDS)

BEFORE = (
    ("was_outcome", "string"),  # the outcome before the batch; null: live, or there was no row
    ("was_leased_at", "timestamp"),  # when it was first leased, before the batch
    ("was_gone_at", "timestamp"),  # when the message had ended in all groups, before the batch
    ("gone_at", "timestamp"),  # when it had ended in all groups, with the batch
    ("leads", "boolean"),  # true in one of a message's rows, to count messages and not deliveries
    ("in_batch", "boolean"),  # whether the batch has events of it; else it was only in the same file
)
"""Further columns of the rows, which only the build reads."""

SCHEMA = pa.schema([*MESSAGES_SCHEMA, *(pa.field(name, KINDS[kind]) for name, kind in BEFORE)])

Ints = np.ndarray[Any, Any]
NOTHING = np.iinfo(np.int64).min
"""Stands for null in a column of numbers."""


def fold(events: pa.Table, old: pa.Table | None = None) -> pa.Table:
    """The rows of all messages in `events` (columns NARROW; columns without values may be missing) and in `old` (rows
    of the table), ordered by id, with the columns of SCHEMA. Text may be dictionary-encoded."""
    old = MESSAGES_SCHEMA.empty_table() if old is None else old
    if not events.num_rows and not old.num_rows:
        return SCHEMA.empty_table()
    return _Fold(events, old).result()


def coded(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Dictionary-encode text, if it is not so already."""
    if isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column
        column = column.combine_chunks()
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()


def codes_of(column: pa.Array) -> Ints:
    """The codes of dictionary-encoded text; -1 for null."""
    found: Ints = pc.fill_null(column.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


class _Fold:
    """Rows are numbered as given, old ones first; places are positions in the sorted order."""

    def __init__(self, events: pa.Table, old: pa.Table) -> None:
        self._events, self._before_rows = events, old
        self._columns: dict[str, Ints] = {}
        self._texts: dict[str, pa.Array] = {}
        olds, count = old.num_rows, old.num_rows + events.num_rows
        ids, group, event = self._column("message_id"), codes_of(self._coded("group")), np.full(count, _OLD)
        kinds = coded(events["event"])
        event[olds:] = numbers_of(pc.index_in(kinds.dictionary, pa.array(CODES)))[codes_of(kinds)]
        lsn = np.r_[np.full(olds, NOTHING), self._column("lsn")[olds:]]
        self.order = np.lexsort((lsn, group, ids))
        self.event, self.lsn = event[self.order], lsn[self.order]
        ids, group = ids[self.order], group[self.order]
        new_message = np.r_[True, ids[1:] != ids[:-1]][: len(ids)]
        new_group = np.r_[True, group[1:] != group[:-1]][: len(ids)]
        self.starts = np.flatnonzero(new_message | new_group)  # of message and group
        self.messages = np.flatnonzero(new_message[self.starts])  # of message, among those
        self.sizes = np.diff(np.r_[self.messages, len(self.starts)])
        self.at = self._column("at")[self.order]
        self.grouped = group[self.starts] >= 0
        self.old = self._last(OLD)
        self._befores: dict[str, Ints] = {}

    # --- columns ----------------------------------------------------------------------------------------------------

    def _column(self, name: str) -> Ints:
        """A column of numbers, old rows first."""
        column = self._columns.get(name)
        if column is None:
            there = self._before_rows[_OF_OLD.get(name, name)]
            here = self._events[name] if name in self._events.column_names else pa.nulls(len(self._events), pa.int64())
            column = numbers_of(here) if not len(there) else np.r_[numbers_of(there), numbers_of(here)]
            self._columns[name] = column
        return column

    def _words(self, name: str) -> pa.Array:
        """A column of text, old rows first, dictionary-encoded if it is so in the events."""
        column = self._texts.get(name)
        if column is None:
            here = _text_of(self._events, name)
            there = self._before_rows[name]
            if pa.types.is_dictionary(here.type):
                column = coded(pa.chunked_array([*_like(coded(there), here), here]) if len(there) else here)
            else:
                column = pa.concat_arrays([there.combine_chunks().cast(pa.string()), here]) if len(there) else here
            self._texts[name] = column
        return column

    def _coded(self, name: str) -> pa.Array:
        column = self._texts[name] = coded(self._words(name))
        return column

    # --- facts ------------------------------------------------------------------------------------------------------

    def _mask(self, *events: str) -> Ints:
        wanted = np.zeros(len(CODES), bool)
        wanted[[CODES.index(event) for event in events]] = True
        return wanted[self.event]

    def _last_of(self, mask: Ints) -> Ints:
        """The place of the last row of each segment that is in the mask; -1 if there is none."""
        return np.maximum.reduceat(np.where(mask, np.arange(len(mask)), -1), self.starts)

    def _last(self, *events: str) -> Ints:
        return self._last_of(self._mask(*events))

    def _count(self, event: str) -> Ints:
        return np.add.reduceat(self._mask(event).astype(np.int64), self.starts)

    def _was(self, name: str) -> Ints:
        """A number, or a state, of the old row."""
        if not len(self._before_rows):
            return np.full(len(self.starts), NOTHING)
        values = self._befores.get(name)
        if values is None:
            column = self._before_rows[name]
            if pa.types.is_string(column.type) or pa.types.is_dictionary(column.type):
                column = pc.index_in(column.cast(pa.string()), pa.array(STATES), skip_nulls=True)
            values = self._befores[name] = numbers_of(column)
        there = self.old >= 0
        return np.where(there, values[np.where(there, self.order[self.old], 0)], NOTHING)

    def _number(self, name: str, places: Ints) -> Ints:
        if name not in self._events.column_names and not len(self._before_rows):
            return np.full(len(places), NOTHING)
        return np.where(places >= 0, self._column(name)[self.order[np.maximum(places, 0)]], NOTHING)

    def _text(self, name: str, places: Ints) -> pa.Array:
        column = self._words(name)
        return column.take(pa.array(self.order[np.maximum(places, 0)], mask=places < 0))

    def _named(self, name: str) -> Ints:
        """Where the text is not null, by place."""
        named: Ints = self._words(name).is_valid().to_numpy(zero_copy_only=False)
        return named[self.order]

    def _of_message(self, places: Ints) -> Ints:
        """The greatest of a message's values, for each of its segments."""
        return np.repeat(np.maximum.reduceat(places, self.messages), self.sizes)

    # --- the rows ---------------------------------------------------------------------------------------------------

    def result(self) -> pa.Table:
        columns = self._whole()
        columns |= self._delivery(columns)
        ended = columns["outcome"] != NOTHING
        live = np.where(self.grouped, ~ended, ~ended & self._without_group())
        columns |= self._before(live)
        kept = self.grouped | ended | (live & ~self._any(live & self.grouped))
        arrays = [self._array(field, columns[field.name]) for field in SCHEMA]
        rows = pa.Table.from_arrays(arrays, SCHEMA.names)
        return rows if kept.all() else rows.filter(pa.array(kept))

    def _array(self, field: pa.Field, column: Ints | pa.Array) -> pa.Array:
        if isinstance(column, pa.Array):
            return column
        if field.type == pa.string():  # a state or an outcome
            codes = np.where(column == NOTHING, 0, column).astype(np.int32)
            return pa.DictionaryArray.from_arrays(pa.array(codes, mask=column == NOTHING), pa.array(STATES))
        if field.type in (pa.bool_(), pa.float64()):
            return pa.array(column, field.type, from_pandas=True)
        return pa.array(column, pa.int64(), mask=column == NOTHING).cast(field.type)

    def _without_group(self) -> Ints:
        """Rows without a group whose messages are for none: no group has received them, or not since the last one
        left."""
        left = self._number("lsn", self._last(RECEIVED))
        was_open = (self.old >= 0) & (self._was("outcome") == NOTHING)
        marked = np.where(left != NOTHING, left, np.where(was_open | ~self._any(self.grouped), 0, NOTHING))
        received: Ints = self._of_message(np.where(self.grouped, left, NOTHING))
        waits: Ints = ~self.grouped & (marked != NOTHING) & (received < marked)
        return waits

    def _any(self, mask: Ints) -> Ints:
        return self._of_message(mask.astype(np.int64)) > 0

    def _whole(self) -> dict[str, Ints | pa.Array]:
        """Columns that are the same in the rows of all groups of a message."""
        anywhere = self._of_message(self.old)  # every old row has them
        stored = self._of_message(self._last("enqueued"))
        known = np.where(anywhere >= 0, self._number("lsn", anywhere), NOTHING) != NOTHING
        source = np.where(stored >= 0, stored, np.where(known, anywhere, -1))
        planned = self._of_message(self._last("enqueued", "edited"))
        was_planned = self._of_message(self._was("planned_lsn"))
        plan = np.where(planned >= 0, planned, anywhere)
        planned_lsn = np.where(planned >= 0, self._number("lsn", planned), was_planned)
        texts = ("client_message_id", "key", "correlation_id", "source_queue", "protocol")
        return {
            "message_id": self._number("message_id", self.starts),
            **{name: self._text(name, self.starts) for name in ("group", "namespace", "queue")},
            # A duplicate may be in another partition than the message that it repeats.
            "partition": self._number("partition", np.where(source >= 0, source, self.starts)),
            **{name: self._text(name, source) for name in texts},
            **{name: self._number(name, source) for name in ("node", "source_id", "size_bytes")},
            "enqueued_at": self._number("at", source),
            "enqueued_lsn": self._number("lsn", source),
            "priority": self._number("priority", plan),
            "deliver_at": self._number("deliver_at", plan),
            "planned_lsn": planned_lsn,
            "duplicates": self._sum_of_message("duplicates", "duplicate"),
            "edits": self._sum_of_message("edits", "edited"),
        }

    def _sum_of_message(self, name: str, event: str) -> Ints:
        """Every old row of a message has the same number, so any will do; the batch's own are added."""
        before: Ints = np.maximum(self._of_message(self._was(name)), 0)
        here: Ints = np.repeat(np.add.reduceat(self._count(event), self.messages), self.sizes)
        return before + here

    def _delivery(self, whole: dict[str, Ints | pa.Array]) -> dict[str, Ints | pa.Array]:
        """Columns of a message in one group."""
        leased, failed, ended = self._last("leased"), self._last("failed"), self._last(*ENDS)
        last_event = self._last("leased", "failed", "released", "extended", RECEIVED)
        spent = self._mask("failed", "dead", "dropped", "expired") & self._named("error")
        spent_at = self._last_of(spent)
        leased_node, ended_node = self._number("node", leased), self._number("node", ended)
        again = (ended < 0) & (leased >= 0) & (leased_node == self._was("ended_node"))
        again |= (ended >= 0) & (leased > ended) & (leased_node == ended_node)
        received = self._last(RECEIVED)
        again |= received > ended
        outcome = np.where(ended >= 0, self._state(ended), self._was("outcome"))
        outcome = np.where(again, NOTHING, outcome)
        state = np.where(last_event >= 0, self._state(last_event), self._was("state"))
        state = np.where((state == NOTHING) | (state >= 2), STATES.index("waiting"), state)
        first = np.minimum.reduceat(np.where(self._mask("leased"), self.at, np.iinfo(np.int64).max), self.starts)
        before = self._was("first_leased_at")
        first = np.where(leased < 0, before, np.where(before == NOTHING, first, np.minimum(first, before)))
        last = _either(self._number("at", leased), self._was("last_leased_at"))
        at_the_end = {
            "ended_at": _either(self._number("at", ended), self._was("ended_at")),
            "ended_lsn": _either(self._number("lsn", ended), self._was("ended_lsn")),
            "ended_node": _either(ended_node, self._was("ended_node")),
        }
        received_at = _either(self._number("at", received), self._was("received_at"))
        at_the_end = {name: np.where(again, NOTHING, value) for name, value in at_the_end.items()}
        attempts = [self._number("attempt", places) for places in (leased, failed, ended, self.old)]
        lsn_first = np.minimum.reduceat(np.where(self.lsn == NOTHING, np.iinfo(np.int64).max, self.lsn), self.starts)
        lsn_last = np.maximum.reduceat(self.lsn, self.starts)
        lsn_first = _either(self._was("first_lsn"), np.where(lsn_last == NOTHING, NOTHING, lsn_first))
        return {
            "outcome": outcome,
            "state": np.where(outcome != NOTHING, outcome, state),
            **at_the_end,
            "reason": self._text("reason", np.where(again, -1, np.where(ended >= 0, ended, self.old))),
            "error": self._text("error", np.where(spent_at >= 0, spent_at, self.old)),
            "attempts": np.maximum(np.maximum.reduce(attempts), 0),
            **{name: self._added(name, event) for name, event in _COUNTED.items()},
            "first_leased_at": first,
            "last_leased_at": last,
            "last_failed_at": _either(self._number("at", failed), self._was("last_failed_at")),
            "consumer": self._text("consumer", self._who(ended, leased)),
            "leased_lsn": _either(self._number("lsn", leased), self._was("leased_lsn")),
            # A row without a group goes when a group receives the message, and may come again.
            "first_lsn": np.where(self.grouped | (whole["enqueued_lsn"] == NOTHING), lsn_first, whole["enqueued_lsn"]),
            "last_lsn": _either(lsn_last, self._was("last_lsn")),
            "received_at": received_at,
            **_times(whole, outcome, received_at, first, last, at_the_end["ended_at"]),
        }

    def _state(self, places: Ints) -> Ints:
        """The state after an event."""
        leads_to = np.array([_LEADS_TO.get(code, NOTHING) for code in CODES])
        return np.where(places >= 0, leads_to[self.event[np.maximum(places, 0)]], NOTHING)

    def _who(self, ended: Ints, leased: Ints) -> Ints:
        """The place of the row with the consumer: the end if it has one, else the last lease, else the old row."""
        named = self._named("consumer")
        by_end = (ended >= 0) & named[np.maximum(ended, 0)]
        return np.where(by_end, ended, np.where(leased >= 0, leased, self.old))

    def _added(self, name: str, event: str) -> Ints:
        return np.maximum(self._was(name), 0) + self._count(event)

    def _before(self, live: Ints) -> dict[str, Ints | pa.Array]:
        """The columns of BEFORE: how the rows were, and when the message had ended in all groups."""
        still = self._any(live)
        was = self.old >= 0
        was_live = self._any(was & (self._was("outcome") == NOTHING))
        ended = self._ended_at()
        lead = np.zeros(len(self.starts), bool)
        first_group = np.minimum.reduceat(
            np.where(self.grouped, np.arange(len(self.starts)), len(self.starts)), self.messages
        )
        lead[np.where(first_group < len(self.starts), first_group, self.messages)] = True
        return {
            "was_outcome": self._was("outcome"),
            "was_leased_at": self._was("first_leased_at"),
            "was_gone_at": np.where(was_live, NOTHING, self._of_message(self._was("ended_at"))),
            "gone_at": np.where(still, NOTHING, self._of_message(ended)),
            "leads": lead,
            "in_batch": np.maximum.reduceat(self.lsn, self.starts) != NOTHING,
        }

    def _ended_at(self) -> Ints:
        return _either(self._number("at", self._last(*ENDS)), self._was("ended_at"))


_OLD = CODES.index(OLD)
_OF_OLD = {"lsn": "enqueued_lsn", "at": "enqueued_at", "attempt": "attempts"}
"""Columns of the table by the columns of an event that they continue."""
_COUNTED = {"leases": "leased", "failures": "failed", "releases": "released", "extensions": "extended"}
_LEADS_TO = {
    "leased": STATES.index("leased"),
    "extended": STATES.index("leased"),
    "failed": STATES.index("waiting"),
    "released": STATES.index("waiting"),
    RECEIVED: STATES.index("waiting"),
    **{end: STATES.index(end) for end in ENDS},
}


def _text_of(events: pa.Table, name: str) -> pa.Array:
    if name not in events.column_names:
        return pa.DictionaryArray.from_arrays(pa.nulls(len(events), pa.int32()), pa.array([], pa.string()))
    column = events[name]
    return coded(column) if pa.types.is_dictionary(column.type) else column.combine_chunks()


def _like(column: pa.Array, other: pa.Array) -> list[pa.Array]:
    """Dictionary-encoded text in the exact type of another column."""
    return [column.cast(other.type)] if column.type != other.type else [column]


def numbers_of(column: pa.ChunkedArray | pa.Array) -> Ints:
    """A column of integers or times; null becomes NOTHING."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.type != pa.int64():
        column = column.cast(pa.int64())
    found: Ints = pc.fill_null(column, NOTHING).to_numpy(zero_copy_only=False)
    return found


def _times(
    whole: dict[str, Ints | pa.Array], outcome: Ints, received: Ints, first: Ints, last: Ints, ended: Ints
) -> dict[str, Ints | pa.Array]:
    enqueued, planned = whole["enqueued_at"], whole["deliver_at"]
    available = np.where(enqueued == NOTHING, NOTHING, np.maximum(np.maximum(enqueued, planned), received))
    acked = outcome == STATES.index("acked")
    return {
        "wait_ms": _ms(first, available),
        "processing_ms": _ms(np.where(acked, ended, NOTHING), last),
        "total_ms": _ms(ended, enqueued),
    }


def _either(one: Ints, other: Ints) -> Ints:
    return np.where(one != NOTHING, one, other)


def _ms(later: Ints, earlier: Ints) -> pa.Array:
    """Milliseconds between two instants; null where one is."""
    known = (later != NOTHING) & (earlier != NOTHING)
    return pa.array(np.where(known, (later - np.where(known, earlier, 0)) / 1000.0, 0.0), mask=~known)
