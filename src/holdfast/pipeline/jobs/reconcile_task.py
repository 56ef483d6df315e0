"""The tasks of `reconcile`: sort segments by message, and check a range of message ids.

In columnar form, like those of the build (fold.py): rows are sorted by message, place and group, where a place is a
partition of a queue, and facts are computed for all of them together. This module is pickled by value and sent to the
executors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.pipeline.build.fold import NOTHING, Ints, coded, codes_of, numbers_of
from holdfast.pipeline.build.recipients import CHANGES, NEVER, received
from holdfast.pipeline.build.shuffle import (
    digest_of,
    joined,
    new_file,
    read_segment,
    read_shuffle_files,
    write_shuffle_file,
)
from holdfast.pipeline.lake.arrow import MESSAGES_SCHEMA
from holdfast.pipeline.lake.tables import ENDS, RECEIVED

COLUMNS = ["lsn", "at", "node", "namespace", "queue", "partition", "group", "message_id", "event"]
CODED = ["namespace", "queue", "group", "event"]
LIVE = ["namespace", "queue", "partition", "group", "message_id", "state"]
LIVE_CODED = ["namespace", "queue", "group", "state"]

UNKNOWN = "not in the journal"
"""A message that is live in the broker; or it has ended, and its events are of an earlier step."""

_EVENTS = ("other", "enqueued", "leased", RECEIVED, *ENDS)
_ENQUEUED, _LEASED, _RECEIVED, _FIRST_END = 1, 2, 3, 4


def sort_events(task: dict[str, Any]) -> dict[str, Any]:
    """Sort the rows of `segments` after the lsn `after` and up to `upto` into a shuffle file in `place`. Returns also
    the events of groups, and by node the highest id that was enqueued. Events of messages before a node's `first_ids`
    are left out. A segment that is not as the manifest has it, or cannot be read, is reported as a problem. Ids only
    grow: those that are enqueued although they are not above `highest`, which earlier steps have seen, are
    `suspects`."""
    problems: list[str] = []
    suspects: list[int] = []
    before, highest = dict(task["highest"]), dict(task["highest"])
    tables: list[pa.Table] = []
    groups: list[dict[str, Any]] = []
    rows = 0
    for segment in task["segments"]:
        path, name = segment["path"], segment["name"]
        try:
            if segment["sha256"] is not None and digest_of(path) != segment["sha256"]:
                problems.append(f"{name}: changed: it is not as it was written")
            table = _missing(read_segment(path, COLUMNS, CODED), COLUMNS, CODED)
        except (OSError, pa.ArrowException, KeyError) as error:
            problems.append(f"{name}: it cannot be read: {error}")
            continue
        lsn = table["lsn"].to_numpy()
        inside = (lsn > task["after"]) & (lsn <= task["upto"])
        if not inside.all():
            table = table.filter(pa.array(inside))
        rows += table.num_rows
        if (table["message_id"].to_numpy() == 0).any():
            groups += _group_changes(path, task["after"], task["upto"])
            table = table.filter(pc.not_equal(table["message_id"], 0)).combine_chunks()
        for node, first_id in task["first_ids"]:
            older = pc.and_(pc.equal(table["node"], node), pc.less(table["message_id"], first_id))
            table = table.filter(pc.invert(older)).combine_chunks()
        if table.num_rows:
            tables.append(table.select(COLUMNS))
            new = table.filter(pc.equal(table["event"], "enqueued"))
            ids, nodes = new["message_id"].to_numpy(), new["node"].to_numpy()
            for node in np.unique(nodes).tolist():
                of_node = ids[nodes == node]
                suspects += of_node[of_node <= before.get(node, 0)].tolist()
                highest[node] = max(highest.get(node, 0), int(of_node.max()))
    found = {"problems": problems, "rows": rows, "groups": groups, "shuffle_file": None, "sample": []}
    found |= {"highest": list(highest.items()), "suspects": suspects[: task["named_max"]]}
    return {**found, **write_shuffle_file(joined(tables), task["place"])} if tables else found


def _group_changes(segment: str, after: int, upto: int) -> list[dict[str, Any]]:
    """The events of groups in a segment, as plain values; it has some, so it is of a version that knows them."""
    table = pq.ParquetFile(segment).read(columns=[*CHANGES.names, "message_id"], use_threads=False)
    lsn = table["lsn"].to_numpy()
    wanted = (table["message_id"].to_numpy() == 0) & (lsn > after) & (lsn <= upto)
    rows = table.filter(pa.array(wanted)).select(CHANGES.names)
    found: list[dict[str, Any]] = rows.set_column(1, "at", rows["at"].cast(pa.int64())).to_pylist()
    return found


def sort_live(task: dict[str, Any]) -> dict[str, Any]:
    """The same for the deliveries that are live in the broker. Of messages before `first_id` only how many there are:
    `older`."""
    table = _missing(read_segment(task["live"], LIVE, LIVE_CODED), LIVE, LIVE_CODED)
    is_older = pc.less(table["message_id"], task["first_id"])
    older = _counted(table.filter(is_older))
    table = table.filter(pc.invert(is_older)).combine_chunks()
    found = {"shuffle_file": None, "sample": [], "older": older}
    return {**found, **write_shuffle_file(table, task["place"])} if table.num_rows else found


def _counted(live: pa.Table) -> list[list[Any]]:
    """Live deliveries by namespace, queue and group."""
    if not len(live):
        return []
    names = ["namespace", "queue", "group"]
    counted = live.select(names).group_by(names, use_threads=False).aggregate([([], "count_all")])
    return [list(row.values()) for row in counted.select([*names, "count_all"]).to_pylist()]


def _missing(table: pa.Table, columns: list[str], text: list[str]) -> pa.Table:
    """Add the columns that were left out because they had no values."""
    for name in columns:
        if name not in table.column_names:
            kind = pa.dictionary(pa.int32(), pa.string()) if name in text else pa.int64()
            table = table.append_column(name, pa.nulls(table.num_rows, kind))
    return table


# --- checking -------------------------------------------------------------------------------------------------------


def check_range(task: dict[str, Any]) -> dict[str, Any]:
    """Check the messages with ids from `low` (inclusive) to `high`: what breaks the proof, and the balances of queues
    and groups. `roster` is a file of all groups, `flagged` are files of messages that an earlier step has named.

    With `last`, against the broker if `against`: `groups` are those that exist, `journalled` the queues that keep a
    journal. Otherwise more events follow: the balances are of messages that are no longer open, and `open` is a shuffle
    file with the events of the others.
    """
    check = _RangeCheck(task)
    broken = check.broken()
    rows = [row for part in broken for row in part]
    counted: dict[tuple[str, str, str | None], int] = {}
    for _, namespace, queue, group, *_ in rows:
        counted[namespace, queue, group] = counted.get((namespace, queue, group), 0) + 1
    found: dict[str, Any] = {
        "broken": sorted(rows, key=lambda row: int(row[4]))[: task["named_max"]],
        "counts": [[*place, count] for place, count in counted.items()],
        "live": check.live_counts(),
    }
    if task["last"]:
        return {**found, "balances": check.balances(check.all_rows)}
    named = np.unique(np.array([row[4] for row in rows], np.int64))
    still_open = check.still_open(named)
    closed = np.flatnonzero(~np.isin(check.ids, still_open))
    return {
        **found,
        "balances": check.balances(closed),
        "open": check.write_events(still_open, task["place"]),
        "flagged": _write_ids(named, task["place"]),
    }


def find_events(task: dict[str, Any]) -> dict[str, Any]:
    """What happened to the messages `ids` in `segments`, as far as these can be read: events of the kinds `events`."""
    ids, kinds = pa.array(task["ids"], pa.int64()), pa.array(task["events"])
    found: list[list[Any]] = []
    columns = ["message_id", "group", "lsn", "namespace", "queue", "event"]
    for path in task["segments"]:
        try:
            table = pq.read_table(path, columns=columns, use_threads=False)
        except (OSError, pa.ArrowException, KeyError):
            continue  # that was reported when it was to be proved
        wanted = pc.and_(pc.is_in(table["message_id"], ids), pc.is_in(table["event"], kinds))
        found += [list(row.values())[:-1] for row in table.filter(wanted).select(columns).to_pylist()]
    return {"found": found}


def _write_ids(ids: Ints, directory: str) -> str | None:
    if not len(ids):
        return None
    path = new_file(directory, "flagged", ".parquet")
    pq.write_table(pa.table({"message_id": ids}), path)
    return str(path)


Named = tuple[str, str, str, str | None, int, str]


class _RangeCheck:
    def __init__(self, task: dict[str, Any]) -> None:
        low, high = task["low"], task["high"]
        events = _missing(read_shuffle_files(task["shuffle_files"], low, high), COLUMNS, CODED)
        # A duplicate was not stored; the message that it repeats may be in another partition.
        event = coded(events["event"])
        stored = codes_of(event) != pc.index(event.dictionary, "duplicate").as_py()
        self._flagged = _flagged(task["flagged"])
        if len(self._flagged):
            stored &= ~np.isin(events["message_id"].to_numpy(), self._flagged)
        self._journal = events = events.filter(pa.array(stored))
        roster = pq.read_table(task["roster"])
        self._roster = roster
        events = _with_received(events, received(events, MESSAGES_SCHEMA.empty_table(), roster, {}))
        self._against = task["against"]
        live = read_shuffle_files([task["live"]] if task["live"] else [], low, high)
        self._live = live = _missing(live, LIVE, LIVE_CODED)
        self._task = task
        names = self._names = _Names(events, live)
        self._rostered = names.existing(roster.select(["namespace", "queue", "group"]).to_pylist())
        kinds = coded(events["event"])
        kind = np.maximum(numbers_of(pc.index_in(kinds.dictionary, pa.array(_EVENTS))), 0)[codes_of(kinds)]
        ids, place, group = events["message_id"].to_numpy(), names.place[: len(events)], names.group[: len(events)]
        lsn = numbers_of(events["lsn"])
        order = np.lexsort((group, place, ids))
        ids, place, group, kind, lsn = ids[order], place[order], group[order], kind[order], lsn[order]
        new = np.r_[True, (ids[1:] != ids[:-1]) | (place[1:] != place[:-1])][: len(ids)]
        starts = np.flatnonzero(new | np.r_[True, group[1:] != group[:-1]][: len(ids)])
        self.ids, self.place, self.group = ids[starts], place[starts], group[starts]
        ended, begun = kind >= _FIRST_END, (kind == _LEASED) | (kind == _RECEIVED)
        self.enqueued = _sums(kind == _ENQUEUED, starts)
        enqueued_lsn = _greatest(np.where(kind == _ENQUEUED, lsn, NOTHING), starts)
        self.ends = _sums(ended, starts)
        self.first_end = -_greatest(np.where(ended, -lsn, NOTHING), starts)
        # the lsn, and in the lowest bits the outcome
        last_end = _greatest(np.where(ended, lsn * 16 + kind, NOTHING), starts)
        self.outcome = np.where(self.ends > 0, last_end % 16, 0)
        self.last_begin = np.maximum(_greatest(np.where(begun, lsn, NOTHING), starts), 0)
        self.last_lsn = _greatest(lsn, starts)
        self.open = (self.ends == 0) | (self.last_begin > last_end // 16)
        """Not ended, or received or leased again after its end (a group that was created again)."""
        removed = codes_of(coded(events["reason"]))[order] if "reason" in events.column_names else np.full(len(ids), -1)
        self.removed = _sums(ended & (removed >= 0), starts) > 0
        """Ended with its group: only events that follow from others have a reason here."""
        self.left = _greatest(np.where((kind == _RECEIVED) & (group < 0), lsn, NOTHING), starts)
        """When the last group that had it left it to nobody."""
        self._known = np.unique(np.r_[self.ids, live["message_id"].to_numpy()])
        self._messages = np.flatnonzero(new[starts])  # the first of each message's rows
        self._sizes = np.diff(np.r_[self._messages, len(starts)])
        self._enqueued_lsn = _greatest(enqueued_lsn, self._messages)
        self.grouped = self.group >= 0
        self.all_rows = np.arange(len(starts))

    # --- what is open -----------------------------------------------------------------------------------------------

    def _for_nobody(self) -> Ints:
        """Rows without a group of messages that no group has received, or none since the last one left."""
        begins = np.where(self.grouped, self.last_begin, NOTHING)
        received_at = np.repeat(np.maximum.reduceat(begins, self._messages), self._sizes)
        found: Ints = ~self.grouped & (self.enqueued > 0) & self.open
        found &= (received_at == NOTHING) | (self.left > received_at)
        return found

    def still_open(self, named: Ints) -> Ints:
        """Messages that something may yet happen to. Those that were `named` are done with."""
        if not len(self.ids):
            return np.zeros(0, np.int64)
        live = (self.grouped & self.open) | self._for_nobody()
        gone = _sums(~self.grouped & (self.ends > 0), self._messages) > 0
        wanted = (_sums(live, self._messages) > 0) | (~gone & (self._enqueued_lsn < self._groups_known_from()))
        ids: Ints = self.ids[self._messages[wanted]]
        return ids[~np.isin(ids, named)]

    def _groups_known_from(self) -> Ints:
        """For each message the lsn from which on the groups of its partition are known. Of older messages, a group that
        had not touched them may still come."""
        known: dict[tuple[str, str, int], int] = {}
        for row in self._roster.to_pylist():
            since = row["created_lsn"] if row["recorded"] and row["deleted_lsn"] is None else 0
            place = (row["namespace"], row["queue"], row["partition"])
            known[place] = max(known.get(place, 0), since)
        places, inverse = np.unique(self.place[self._messages], return_inverse=True)
        since_of = [
            known.get((*self._names.queue_of(one), self._names.partition_of(one)), NEVER) for one in places.tolist()
        ]
        found: Ints = np.array(since_of, np.int64)[inverse]
        return found

    def write_events(self, ids: Ints, directory: str) -> dict[str, Any] | None:
        """A shuffle file with the journal's events of these messages."""
        events = self._journal.filter(pa.array(np.isin(self._journal["message_id"].to_numpy(), ids)))
        return write_shuffle_file(events.select(COLUMNS).combine_chunks(), directory) if len(events) else None

    # --- what breaks the proof --------------------------------------------------------------------------------------

    def broken(self) -> list[list[Named]]:
        if not len(self.ids):
            return self._unknown() if self._against else []
        stored = _sums(self.enqueued, self._messages)
        first = self._messages
        twice = (self.ends > 1) & (self.last_begin < self.first_end)
        last = _greatest(self.last_lsn, self._messages)
        parts = [
            self._name("never enqueued", first[stored == 0], "last seen at lsn {}", last[stored == 0], whole=True),
            self._name("enqueued twice", first[stored > 1], "last seen at lsn {}", last[stored > 1], whole=True),
            self._name("ended twice", np.flatnonzero(twice), "last seen at lsn {}"),
        ]
        return [*parts, *self._differing()] if self._against else parts

    def _name(
        self, problem: str, rows: Ints, detail: str, numbers: Ints | None = None, *, whole: bool = False
    ) -> list[Named]:
        details = self.last_lsn[rows] if numbers is None else numbers
        return [
            (
                problem,
                *self._names.queue_of(int(self.place[row])),
                None if whole else self._names.group_of(int(self.group[row])),
                int(self.ids[row]),
                detail.format(int(number)),
            )
            for row, number in zip(rows, details, strict=True)
        ]

    def _differing(self) -> list[list[Named]]:
        """The journal's open deliveries against the broker's."""
        groups = [dict(zip(("namespace", "queue", "group"), one, strict=True)) for one in self._task["groups"]]
        exist = self._names.existing(groups)
        there = self.grouped & (exist(self.place, self.group) | self._rostered(self.place, self.group))
        gone = "open in the journal since lsn {}, not in the broker"
        pairs = self._pairs(self.ids, self.group)
        live = self._live_pairs()
        live_ids = self._live["message_id"].to_numpy()[self._live_kept()]
        lost = np.flatnonzero(there & self.open & ~np.isin(pairs, live))
        alone = self._for_nobody() & ~np.isin(self.ids, live_ids)
        over = np.flatnonzero(self.grouped & ~self.open)
        undead = over[np.isin(pairs[over], live)]
        return [
            self._name("lost", lost, gone),
            self._name("lost", np.flatnonzero(alone), gone),
            self._name("live after its end", undead, "ended at lsn {}, yet live in the broker"),
            *self._unknown(),
        ]

    def _unknown(self) -> list[list[Named]]:
        """Live in the broker, and never in the journal."""
        kept = self._live_kept()
        ids = self._live["message_id"].to_numpy()
        strange = kept[~np.isin(ids[kept], np.r_[self.ids, self._flagged])]
        states = self._live["state"].take(pa.array(strange)).to_pylist()
        first = len(self._names.place) - len(ids)
        found: list[Named] = []
        for row, state in zip(strange.tolist(), states, strict=True):
            queue = self._names.queue_of(int(self._names.place[first + row]))
            group = self._names.group_of(int(self._names.group[first + row]))
            found.append((UNKNOWN, *queue, group, int(ids[row]), f"in the broker {state}"))
        return [found]

    def _pairs(self, ids: Ints, groups: Ints) -> Ints:
        """Messages and groups as one number each."""
        found: Ints = np.searchsorted(self._known, ids) * (self._names.groups + 1) + groups
        return found

    def _live_kept(self) -> Ints:
        """Rows of `live` whose queues keep a journal."""
        first = len(self._names.place) - len(self._live)
        journalled = {tuple(one) for one in self._task["journalled"]}
        places = self._names.place[first:]
        kept = [place for place in np.unique(places).tolist() if self._names.queue_of(place) in journalled]
        return np.flatnonzero(np.isin(places, kept))

    def _live_pairs(self) -> Ints:
        kept = self._live_kept()
        first = len(self._names.place) - len(self._live)
        group = self._names.group[first:][kept]
        return self._pairs(self._live["message_id"].to_numpy()[kept][group >= 0], group[group >= 0])

    # --- balance ----------------------------------------------------------------------------------------------------

    def balances(self, rows: Ints) -> list[list[Any]]:
        """Each queue and group of some rows: enqueued or received, the ends in the order of ENDS, open, removed with
        the group."""
        if not len(rows):
            return []
        key = self._names.queue_number(self.place) * (self._names.groups + 1) + self.group + 1
        keys, inverse = np.unique(key[rows], return_inverse=True)
        removed = ~self.open & self.removed & (self.outcome == _FIRST_END + ENDS.index("purged"))
        ends = [~self.open & ~removed & (self.outcome == _FIRST_END + code) for code in range(len(ENDS))]
        counts = [np.where(self.grouped, 1, self.enqueued), *ends, self.grouped & self.open, removed]
        columns = [np.bincount(inverse, counted[rows], len(keys)) for counted in counts]
        first = np.zeros(len(keys), np.int64)
        first[inverse] = rows  # any row of each
        return [
            [
                *self._names.queue_of(int(self.place[row])),
                self._names.group_of(int(self.group[row])),
                *(int(column[number]) for column in columns),
            ]
            for number, row in enumerate(first)
        ]

    def live_counts(self) -> list[list[Any]]:
        return _counted(self._live)


class _Names:
    """Places and groups of events and of live deliveries, the events first, as numbers."""

    def __init__(self, events: pa.Table, live: pa.Table) -> None:
        namespace, queue, group = (_both(events, live, name) for name in ("namespace", "queue", "group"))
        partition = np.r_[numbers_of(events["partition"]), numbers_of(live["partition"])]
        self.group = codes_of(group)
        self._group_names: list[str] = group.dictionary.to_pylist()
        namespace_codes, queues = codes_of(namespace), codes_of(queue)
        names = namespace_codes * max(len(queue.dictionary), 1) + queues
        self._width = int(partition.max(initial=0)) + 1
        self.place = names * self._width + partition
        self._queues: dict[int, tuple[str, str]] = {}
        some, rows = np.unique(names, return_index=True)
        for number, row in zip(some.tolist(), rows.tolist(), strict=True):
            self._queues[number] = (namespace[row].as_py(), queue[row].as_py())
        self._numbers = {name: number for number, name in self._queues.items()}
        self._groups = {name: number for number, name in enumerate(self._group_names)}

    @property
    def groups(self) -> int:
        return len(self._group_names)

    def queue_number(self, place: Ints) -> Ints:
        return place // self._width

    def queue_of(self, place: int) -> tuple[str, str]:
        return self._queues[place // self._width]

    def partition_of(self, place: int) -> int:
        return place % self._width

    def group_of(self, number: int) -> str | None:
        return self._group_names[number] if number >= 0 else None

    def existing(self, groups: list[dict[str, str]]) -> Any:
        """A function of places and groups: whether the group is one of these."""
        wide = len(self._group_names) + 1
        known = [
            self._numbers[one["namespace"], one["queue"]] * wide + self._groups[one["group"]]
            for one in groups
            if (one["namespace"], one["queue"]) in self._numbers and one["group"] in self._groups
        ]
        return lambda place, group: np.isin(self.queue_number(place) * wide + group, known)


def _flagged(paths: list[str]) -> Ints:
    found: Ints = np.concatenate(
        [np.zeros(0, np.int64), *(pq.read_table(path)["message_id"].to_numpy() for path in paths)]
    )
    return found


def _with_received(events: pa.Table, following: pa.Table) -> pa.Table:
    """The events with those that follow from them."""
    if not following.num_rows:
        return events
    following = following.select([*COLUMNS, "reason"])
    for name in [*CODED, "reason"]:
        following = following.set_column(
            following.column_names.index(name), name, following[name].combine_chunks().dictionary_encode()
        )
    events = events.select(COLUMNS).append_column(
        "reason", pa.nulls(len(events), pa.dictionary(pa.int32(), pa.string()))
    )
    return pa.concat_tables([following, events.cast(following.schema)]).unify_dictionaries().combine_chunks()


def _both(events: pa.Table, live: pa.Table, name: str) -> pa.Array:
    columns = [coded(table[name]) for table in (events, live)]
    return coded(pa.chunked_array([column.cast(columns[0].type) for column in columns]))


def _sums(values: Ints, starts: Ints) -> Ints:
    found: Ints = np.add.reduceat(values.astype(np.int64), starts) if len(starts) else np.zeros(0, np.int64)
    return found


def _greatest(values: Ints, starts: Ints) -> Ints:
    found: Ints = np.maximum.reduceat(values, starts) if len(starts) else np.zeros(0, np.int64)
    return found
