"""Which groups each message is for: events that say when a group received a message, and when it went with its group.

The broker journals groups (created, deleted) and what groups do with messages, but not that a message is for a group:
that follows. A message is for every group that exists when it is enqueued. A group that is created later gets what is
live then, unless it starts at the end; what is live is what some group has not ended, or what no group ever had. When a
group is deleted, what it had not ended goes with it, and a message that no group has then waits for the next one until
the broker removes it.

The result is two kinds of events, in the form of the journal's: `received`, by a group or, without one, by nobody any
more, and `purged` with the reason `group_deleted`. With them every row of `messages`, and every depth, follows from
events alone. What groups do without being in the journal (those of before it had groups) counts as evidence: such a
group has received a message when it first does something with it.

Partitions are independent: each has its own order of events. Within one, everything is computed for all of its messages
together, change by change. Imports nothing of Holdfast but the tables' columns: it is pickled by value and sent to the
executors.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.build.fold import NOTHING, Ints, coded, codes_of, numbers_of
from holdfast.pipeline.lake.arrow import EVENTS_SCHEMA, KINDS
from holdfast.pipeline.lake.tables import ENDS, RECEIVED

ABOUT_GROUPS = ("group_created", "group_deleted", "queue_deleted")
GROUP_DELETED = "group_deleted"
PLACE = ("node", "namespace", "queue", "partition")

NEVER = np.iinfo(np.int64).max

_MADE = ("lsn", "at", "node", "namespace", "queue", "partition", "group", "message_id", "event", "reason")
SCHEMA = pa.schema([EVENTS_SCHEMA.field(name) for name in _MADE])
CHANGES = pa.schema(
    [
        *(EVENTS_SCHEMA.field(name) for name in ("lsn", "at", *PLACE, "group", "event", "reason")),
        pa.field("group_kind", KINDS["string"]),
        pa.field("start_after", KINDS["bigint"]),
    ]
)

Row = dict[str, Any]


# --- the groups of a lake ---------------------------------------------------------------------------------------------


def with_changes(groups: list[Row], changes: list[Row]) -> list[Row]:
    """The rows of `groups` after these events of groups."""
    rows = [dict(row) for row in groups]
    open_rows: dict[tuple[Any, ...], dict[str | None, Row]] = {}
    for row in rows:
        if row["deleted_lsn"] is None:
            open_rows.setdefault(_place(row), {})[row["group"]] = row
    for change in sorted(changes, key=lambda change: (change["node"], change["lsn"])):
        here = open_rows.setdefault(_place(change), {})
        if change["event"] == "group_created":
            if change["group"] not in here:  # else it is recorded again
                rows.append(_created(change))
                here[change["group"]] = rows[-1]
            continue
        names = list(here) if change["event"] == "queue_deleted" else [change["group"]]
        for name in names:
            if name in here:
                here.pop(name).update(deleted_at=change["at"], deleted_lsn=change["lsn"])
    return rows


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in PLACE)


def _created(change: Row) -> Row:
    return {
        **{name: change[name] for name in (*PLACE, "group")},
        "kind": change["group_kind"],
        "created_at": change["at"],
        "created_lsn": change["lsn"],
        "start_after": change["start_after"],
        "recorded": change["reason"] == "recorded",
        "deleted_at": None,
        "deleted_lsn": None,
    }


# --- what groups received ---------------------------------------------------------------------------------------------


class _Group(NamedTuple):
    """A group of one partition, from its creation to its deletion."""

    name: str
    code: int
    leases: bool
    created: int
    deleted: int
    start_after: int
    known_from: int  # its events count from here on
    created_at: int
    deleted_at: int


class _Messages(NamedTuple):
    """Messages of one partition."""

    ids: Ints
    enqueued: Ints  # lsn
    at: Ints
    fresh: Ints  # enqueued in this batch


def received(events: pa.Table, old: pa.Table, groups: pa.Table, since: dict[int, int]) -> pa.Table:
    """The events that follow for the messages of `events` and of `old`, the rows of `messages` that earlier batches
    wrote: all of their rows. `groups`: all that there ever were. `since`: the lsn of each node after which the batch
    begins. Of partitions whose groups do not change in it, nothing follows for old messages."""
    return _Receipts(events, old, groups, since).result()


class _Receipts:
    def __init__(self, events: pa.Table, old: pa.Table, groups: pa.Table, since: dict[int, int]) -> None:
        self._since = since
        self._groups = groups
        self._made: list[pa.Table] = []
        count = events.num_rows
        tables = [events, old, groups]
        self._codes = {name: _joined(tables, name) for name in ("namespace", "queue", "group")}
        place = _numbers_of_places(tables, self._codes)
        self._event_place, self._old_place = place[:count], place[count : count + old.num_rows]
        self._group_place = place[count + old.num_rows :]
        group = codes_of(self._codes["group"])
        self._event_group, self._old_group = group[:count], group[count : count + old.num_rows]
        self._group_code = group[count + old.num_rows :]
        kinds = coded(events["event"]) if count else coded(pa.array([], pa.string()))
        names = pa.array(["enqueued", *ENDS])
        kind = numbers_of(pc.index_in(kinds.dictionary, names))[codes_of(kinds)] if count else np.zeros(0, np.int64)
        self._ids, self._lsn, self._at = (_column(events, name) for name in ("message_id", "lsn", "at"))
        self._enqueued = _ByPlace(self._event_place, np.flatnonzero(kind == 0))
        self._ended = _ByPlace(self._event_place, np.flatnonzero(kind > 0))
        self._in_group = _ByPlace(self._event_place, np.flatnonzero(self._event_group >= 0))
        self._olds = _ByPlace(self._old_place, np.flatnonzero(numbers_of(old["enqueued_lsn"]) != NOTHING))
        self._old = {name: numbers_of(old[name]) for name in ("message_id", "enqueued_lsn", "enqueued_at", "ended_lsn")}
        self._old_open = old["outcome"].is_null().to_numpy()
        left = pc.fill_null(pc.equal(old["reason"].cast(pa.string()), GROUP_DELETED), False)
        self._old_left = left.to_numpy()  # it went with its group
        self._leasing = pc.equal(groups["kind"], "lease").to_numpy()
        self._events, self._old_rows = events, old

    def result(self) -> pa.Table:
        entitled: list[tuple[Ints, Ints]] = []  # messages and codes of groups that received them by their existence
        for place, groups in self._rosters():
            for ids, code in self._of_place(place, groups):
                entitled.append((ids, np.full(len(ids), code)))
        self._by_evidence(entitled)
        return pa.concat_tables([SCHEMA.empty_table(), *self._made]).combine_chunks()

    def _rosters(self) -> Iterator[tuple[int, list[_Group]]]:
        """Each partition that has groups, with them in the order of their creation."""
        rows = self._groups.select(
            ["group", "kind", "created_lsn", "deleted_lsn", "start_after", "recorded", "created_at", "deleted_at"]
        )
        rows = rows.set_column(6, "created_at", pa.array(numbers_of(rows["created_at"])))
        rows = rows.set_column(7, "deleted_at", pa.array(numbers_of(rows["deleted_at"])))
        here = np.flatnonzero(self._present() & np.isin(self._group_place, np.r_[self._event_place, self._old_place]))
        rows = rows.take(pa.array(here))
        by_place: dict[int, list[_Group]] = {}
        places, codes = self._group_place[here].tolist(), self._group_code[here].tolist()
        for place, code, row in zip(places, codes, rows.to_pylist(), strict=True):
            by_place.setdefault(place, []).append(
                _Group(
                    row["group"],
                    code,
                    row["kind"] == "lease",
                    row["created_lsn"],
                    NEVER if row["deleted_lsn"] is None else row["deleted_lsn"],
                    row["start_after"],
                    -1 if row["recorded"] else row["created_lsn"],
                    row["created_at"],
                    row["deleted_at"],
                )
            )
        for place, groups in by_place.items():
            yield place, sorted(groups, key=lambda group: group.created)

    def _present(self) -> Ints:
        """Which groups were not deleted before the batch."""
        deleted = numbers_of(self._groups["deleted_lsn"])
        nodes = numbers_of(self._groups["node"])
        since = np.array([self._since.get(node, 0) for node in nodes.tolist()], np.int64)
        present: Ints = (deleted == NOTHING) | (deleted > since)
        return present

    # --- one partition ----------------------------------------------------------------------------------------------

    def _of_place(self, place: int, groups: list[_Group]) -> Iterator[tuple[Ints, int]]:
        """What the groups of a partition receive, and what goes with them."""
        first = int(np.flatnonzero(self._group_place == place)[0])
        named = {name: self._groups[name][first].as_py() for name in PLACE}
        since = self._since.get(named["node"], 0)
        changes = sorted({lsn for group in groups for lsn in (group.created, group.deleted) if since < lsn < NEVER})
        olds = self._olds.of(place) if changes else np.zeros(0, np.int64)
        messages = self._messages(self._enqueued.of(place), olds)
        if not len(messages.ids):
            return
        enqueued, ids = messages.enqueued, messages.ids
        ended = self._ends(place, messages, groups, olds)
        for_it = np.zeros((len(ids), len(groups)), bool)
        for number, group in enumerate(groups):
            for_it[:, number] = messages.fresh & (group.created < enqueued) & (enqueued < group.deleted)
            for_it[:, number] &= ids > group.start_after
        self._of_old_rows(messages, groups, olds, since, for_it)
        self._of_earlier_events(place, messages, groups, for_it)
        for number, group in enumerate(groups):
            chosen = np.flatnonzero(for_it[:, number] & messages.fresh)
            self.make(named, group.name, RECEIVED, ids[chosen], enqueued[chosen], messages.at[chosen])
        if changes:
            gone = self._gone(place, messages, olds)
            _Changes(self, named, messages, groups, ended, for_it, gone, self._kept(place, messages, olds)).apply(
                [since, *changes]
            )
        for number, group in enumerate(groups):
            yield ids[for_it[:, number]], group.code

    def _messages(self, new: Ints, olds: Ints) -> _Messages:
        """Messages that were enqueued in the batch, and those of old rows, ordered by id."""
        ids = np.r_[self._ids[new], self._old["message_id"][olds]]
        lsn = np.r_[self._lsn[new], self._old["enqueued_lsn"][olds]]
        at = np.r_[self._at[new], self._old["enqueued_at"][olds]]
        fresh = np.arange(len(ids)) < len(new)
        ids, first = np.unique(ids, return_index=True)
        return _Messages(ids, lsn[first], at[first], fresh[first])

    def _ends(self, place: int, messages: _Messages, groups: list[_Group], olds: Ints) -> Ints:
        """When each message ended in each group; NEVER: it did not."""
        ended = np.full((len(messages.ids), len(groups)), NEVER)
        rows = self._ended.of(place)
        where, known = _find(messages.ids, self._ids[rows])
        rows, where = rows[known], where[known]
        old_where, _ = _find(messages.ids, self._old["message_id"][olds])
        for number, group in enumerate(groups):
            mine = (self._event_group[rows] == group.code) & (self._lsn[rows] > group.known_from)
            mine &= self._lsn[rows] <= group.deleted
            ended[where[mine], number] = self._lsn[rows[mine]]
            was = (self._old_group[olds] == group.code) & ~self._old_open[olds]
            was &= self._old["ended_lsn"][olds] > group.known_from
            lsn = self._old["ended_lsn"][olds[was]]
            ended[old_where[was], number] = np.minimum(ended[old_where[was], number], lsn)
        return ended

    def _of_old_rows(self, messages: _Messages, groups: list[_Group], olds: Ints, since: int, for_it: Ints) -> None:
        """A group has what it has a row of, unless that is of an earlier group of the same name."""
        where, _ = _find(messages.ids, self._old["message_id"][olds])
        for number, group in enumerate(groups):
            if group.known_from > since:
                continue
            mine = self._old_group[olds] == group.code
            mine &= self._old_open[olds] | (self._old["ended_lsn"][olds] > group.known_from)
            for_it[where[mine], number] = True

    def _of_earlier_events(self, place: int, messages: _Messages, groups: list[_Group], for_it: Ints) -> None:
        """A group that is only recorded had what it did something with before."""
        recorded = [(number, group) for number, group in enumerate(groups) if group.known_from < group.created]
        if recorded:
            rows = self._in_group.of(place)
            where, known = _find(messages.ids, self._ids[rows])
            rows, where = rows[known], where[known]
            for number, group in recorded:
                mine = (self._event_group[rows] == group.code) & (self._lsn[rows] < group.created)
                for_it[where[mine], number] = True

    def _gone(self, place: int, messages: _Messages, olds: Ints) -> Ints:
        """When messages ended for no group, or for all before the batch; NEVER: they did not."""
        ended = np.full(len(messages.ids), NEVER)
        where, _ = _find(messages.ids, self._old["message_id"][olds])
        ended[where] = 0
        ended[where[self._old_open[olds]]] = NEVER
        rows = self._ended.of(place)
        rows = rows[self._event_group[rows] < 0]
        where, known = _find(messages.ids, self._ids[rows])
        ended[where[known]] = self._lsn[rows[known]]
        return ended

    def _kept(self, place: int, messages: _Messages, olds: Ints) -> Ints:
        """0 for messages that only cursor groups needed before the batch: the last of the leasing groups had ended
        them, and was not merely deleted. Else NEVER."""
        leasing = np.unique(self._group_code[(self._group_place == place) & self._leasing])
        rows = olds[np.isin(self._old_group[olds], leasing)]
        rows = rows[np.argsort(np.where(self._old_open[rows], NEVER, self._old["ended_lsn"][rows]), kind="stable")]
        where, _ = _find(messages.ids, self._old["message_id"][rows])
        kept = np.full(len(messages.ids), NEVER)
        last = np.full(len(messages.ids), -1)
        last[where] = rows  # the last assignment counts
        some = np.flatnonzero(last >= 0)
        ended = ~self._old_open[last[some]] & ~self._old_left[last[some]]
        kept[some[ended]] = 0
        return kept

    # --- without groups in the journal --------------------------------------------------------------------------------

    def _by_evidence(self, entitled: list[tuple[Ints, Ints]]) -> None:
        """Groups that do something with a message that they have neither received nor a row of: they have received it
        just before."""
        rows = self._in_group.rows
        width = len(self._codes["group"].dictionary) + 1
        known_ids = np.unique(np.r_[self._ids[rows], self._old["message_id"]])
        pair = np.searchsorted(known_ids, self._ids[rows]) * width + self._event_group[rows]
        pairs, first = np.unique(pair, return_index=True)  # events are in the order of their lsn
        olds = np.searchsorted(known_ids, self._old["message_id"]) * width + self._old_group
        explained = [olds[self._old_group >= 0]]
        for ids, codes in entitled:
            where, known = _find(known_ids, ids)
            explained.append(where[known] * width + codes[known])
        chosen = rows[first[~np.isin(pairs, np.concatenate(explained))]]
        if len(chosen):
            taken = self._events.take(pa.array(chosen))
            columns = {
                **{name: taken[name].cast(SCHEMA.field(name).type) for name in _MADE if name in taken.column_names},
                "event": pa.repeat(RECEIVED, len(chosen)),
                "reason": pa.nulls(len(chosen), pa.string()),
            }
            self._made.append(pa.Table.from_arrays([columns[name] for name in _MADE], schema=SCHEMA))

    # --- results ------------------------------------------------------------------------------------------------------

    def make(self, place: Row, group: str | None, event: str, ids: Ints, lsn: Ints, at: Ints) -> None:
        if not len(ids):
            return
        columns: dict[str, pa.Array] = {
            "lsn": pa.array(lsn, pa.int64()),
            "at": pa.array(at, pa.int64()).cast(SCHEMA.field("at").type),
            "message_id": pa.array(ids, pa.int64()),
            "group": pa.repeat(pa.scalar(group, pa.string()), len(ids)),
            "event": pa.repeat(event, len(ids)),
            "reason": pa.repeat(pa.scalar(GROUP_DELETED if event == "purged" else None, pa.string()), len(ids)),
        }
        for name in PLACE:
            columns[name] = pa.repeat(pa.scalar(place[name], SCHEMA.field(name).type), len(ids))
        self._made.append(pa.Table.from_arrays([columns[name] for name in _MADE], schema=SCHEMA))


class _Changes:
    """Groups of a partition come and go: what follows, in their order."""

    def __init__(
        self,
        receipts: _Receipts,
        place: Row,
        messages: _Messages,
        groups: list[_Group],
        ended: Ints,
        for_it: Ints,
        gone: Ints,
        kept: Ints,
    ) -> None:
        self._receipts, self._place, self._messages, self._groups = receipts, place, messages, groups
        self._ended, self._for_it = ended, for_it
        self._gone = gone  # when a message had ended for all; NEVER: it is live
        self._kept = kept  # when it had ended in all leasing groups

    def apply(self, changes: list[int]) -> None:
        """The first of `changes` is where the batch begins."""
        for before, lsn in pairwise(changes):
            self._between(before, lsn)
            for number, group in enumerate(self._groups):
                if group.created == lsn:
                    self._create(number, group)
                elif group.deleted == lsn:
                    self._delete(number, group)

    def _between(self, low: int, high: int) -> None:
        """Messages that ended for all between two changes: with the last end among the groups that exist then."""
        there = [n for n, group in enumerate(self._groups) if group.known_from <= low and group.deleted >= high]
        leasing = [n for n in there if self._groups[n].leases]
        for numbers, when in ((there, self._gone), (leasing, self._kept)):
            if numbers:
                mine = self._for_it[:, numbers]
                last = np.where(mine, self._ended[:, numbers], -1).max(axis=1)
                done = mine.any(axis=1) & (low < last) & (last < high) & (when == NEVER)
                when[done] = last[done]

    def _create(self, number: int, group: _Group) -> None:
        messages, ids = self._messages, self._messages.ids
        chosen = (messages.enqueued < group.created) & (self._gone > group.created) & (ids > group.start_after)
        if group.leases:
            chosen &= self._kept > group.created
        chosen &= ~self._for_it[:, number]
        self._for_it[chosen, number] = True
        count = int(chosen.sum())
        times = np.full(count, group.created), np.full(count, group.created_at)
        self._receipts.make(self._place, group.name, RECEIVED, ids[chosen], *times)

    def _delete(self, number: int, group: _Group) -> None:
        messages = self._messages
        left = self._for_it[:, number] & (self._ended[:, number] >= group.deleted)
        left &= (messages.enqueued < group.deleted) & (self._gone > group.deleted)
        self._ended[left, number] = group.deleted
        others = [
            n for n, other in enumerate(self._groups) if n != number and other.created < group.deleted < other.deleted
        ]
        open_elsewhere = (self._for_it[:, others] & (self._ended[:, others] > group.deleted)).any(axis=1)
        for name, event, chosen in ((group.name, "purged", left), (None, RECEIVED, left & ~open_elsewhere)):
            count = int(chosen.sum())
            times = np.full(count, group.deleted), np.full(count, group.deleted_at)
            self._receipts.make(self._place, name, event, messages.ids[chosen], *times)


class _ByPlace:
    """Rows by their partition; in each, in the order in which they were given."""

    def __init__(self, places: Ints, rows: Ints) -> None:
        self.rows = rows
        order = np.argsort(places[rows], kind="stable")
        self._sorted, self._places = rows[order], places[rows][order]

    def of(self, place: int) -> Ints:
        low, high = np.searchsorted(self._places, [place, place + 1])
        found: Ints = self._sorted[low:high]
        return found


def _find(ids: Ints, wanted: Ints) -> tuple[Ints, Ints]:
    """Where each of `wanted` is in sorted ids, and whether it is there."""
    where = np.minimum(np.searchsorted(ids, wanted), max(len(ids) - 1, 0))
    known: Ints = ids[where] == wanted if len(ids) else np.zeros(len(wanted), bool)
    return where, known


def _column(table: pa.Table, name: str) -> Ints:
    return numbers_of(table[name]) if table.num_rows else np.zeros(0, np.int64)


def _joined(tables: list[pa.Table], name: str) -> pa.Array:
    """A column of text of several tables, dictionary-encoded together."""
    parts = [
        table[name].cast(pa.string())
        if name in table.column_names
        else pa.chunked_array([pa.nulls(len(table), pa.string())])
        for table in tables
    ]
    return pa.concat_arrays([chunk for part in parts for chunk in part.chunks]).dictionary_encode()


def _numbers_of_places(tables: list[pa.Table], codes: dict[str, pa.Array]) -> Ints:
    """Node, namespace, queue and partition of each row, as one number."""
    number = np.concatenate([_column(table, "node") for table in tables])
    number = np.where(number == NOTHING, -1, number)
    for name in ("namespace", "queue"):
        number = number * (len(codes[name].dictionary) + 1) + codes_of(codes[name])
    partition = np.concatenate([_column(table, "partition") for table in tables])
    found: Ints = number * (int(partition.max(initial=0)) + 1) + partition
    return found
