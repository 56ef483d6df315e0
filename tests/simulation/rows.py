"""The journal: collected as an exporter would, then replayed against the table of transitions and the model's facts."""

from __future__ import annotations

from holdfast.core.codecs import read_message
from holdfast.core.effects import Op
from holdfast.core.journal import Row, read_block, removable, rows
from holdfast.core.records import Message, Table, message_key, seq_of
from holdfast.core.states import ABOUT_GROUPS, ENDED, NEXT, DeliveryState, JournalEvent, Reason
from holdfast.engine.engine import Engine
from holdfast.store.contract import Store
from tests.simulation.mail import must
from tests.simulation.model import Model
from tests.simulation.picture import EVERYTHING
from tests.transcripts.lives import event_of

_WAITING = frozenset({DeliveryState.READY, DeliveryState.SCHEDULED})
_ENDS = {state.value for state in ENDED}


class Journal:
    """What has been exported, in the order of the lsn."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    @property
    def last(self) -> int:
        return self.rows[-1].lsn if self.rows else 0

    def collect(self, store: Store, blocks: int) -> tuple[int, list[Op]]:
        """Take the rows of the first `blocks` blocks. Returns the last block, and what may be removed."""
        found = store.scan(Table.JOURNAL, b"", EVERYTHING, blocks)
        removal: list[Op] = []
        last = 0
        for key, value in found:
            block = read_block(value)
            made = list(rows(block, 0, lambda shard, first, count: _messages(store, shard, first, count)))
            must(len(made) == block.rows, f"block {block.first_lsn} has {len(made)} rows and says {block.rows}")
            for row in made:
                if row.lsn > self.last:
                    must(row.lsn == self.last + 1, f"lsn {row.lsn} comes after {self.last}")
                    self.rows.append(row)
            last = int.from_bytes(key, "big")
            removal.append((Table.JOURNAL, key, None))
            for shard, seqs in removable(block):
                removal += [(Table.MESSAGES, message_key(shard, seq), None) for seq in seqs]
        return last, removal

    def export(self, engine: Engine, store: Store, blocks: int) -> None:
        """Move blocks out of the store. They must be durable."""
        last, removal = self.collect(store, blocks)
        if last:
            engine.exported(last, self.last, removal, None)


def _messages(store: Store, shard: int, first: int, count: int) -> list[Message]:
    found = store.scan(Table.MESSAGES, message_key(shard, first), message_key(shard, first + count), count)
    must(len(found) == count, f"the journal's messages {first}+{count} of shard {shard} are not all there")
    return [read_message(seq_of(key), value) for key, value in found]


class _Replay:
    """Every message and group of one queue, going by the rows alone."""

    def __init__(self) -> None:
        self.enqueued: set[int] = set()
        self.states: dict[tuple[int, str], frozenset[DeliveryState]] = {}
        self.ends: dict[tuple[int, str], str] = {}
        self.attempts: dict[tuple[int, str], int] = {}

    def take(self, row: Row) -> None:
        message_id, what = row.message_id, f"lsn {row.lsn}: {row.queue}: {row.event} of {row.message_id}"
        if row.event is JournalEvent.ENQUEUED:
            must(message_id not in self.enqueued, f"{what}: enqueued twice")
            self.enqueued.add(message_id)
            return
        if row.event is JournalEvent.DUPLICATE:
            return  # of a message that may have been enqueued while the journal was off
        if row.event in ABOUT_GROUPS:
            return
        must(message_id in self.enqueued, f"{what}: never enqueued")
        if row.event is JournalEvent.EDITED:
            return  # that it waits is checked when it happens; the group that has it out here may be gone
        key = (message_id, row.group or "")
        must(key not in self.ends, f"{what} in {row.group}: ended before, {self.ends.get(key)}")
        states = self.states.get(key, _WAITING)
        steps = [NEXT.get((state, event_of(row, state))) for state in states]
        after = {step.to for step in steps if step is not None and step.journal is row.event}
        must(bool(after), f"{what} in {row.group}: not possible for one that is {sorted(states)}")
        if after & _WAITING:
            after |= _WAITING
        self.states[key] = frozenset(after)
        if row.event is JournalEvent.LEASED:
            must(row.attempt == self.attempts.get(key, 0) + 1, f"{what}: attempt {row.attempt} in {row.group}")
        elif row.event is JournalEvent.FAILED:
            must(row.attempt == self.attempts.get(key, 0) + 1, f"{what}: attempt {row.attempt} in {row.group}")
            self.attempts[key] = row.attempt or 0
        if row.event.value in _ENDS and row.reason != Reason.GROUP_DELETED:  # nobody that exists was told of that
            self.ends[key] = row.event.value


def check_journal(journal: Journal, model: Model) -> None:
    """The journal tells the same story as the model, message by message and group by group."""
    replays: dict[str, _Replay] = {}
    for row in journal.rows:
        replays.setdefault(row.queue, _Replay()).take(row)
    facts = model.facts
    for name, queue in model.queues.items():
        if queue.config.journal.value == "off":
            continue
        replay = replays.get(name, _Replay())
        stored = {message_id for message_id, where in facts.ids.items() if where == name}
        lost, extra = stored - replay.enqueued, replay.enqueued - stored
        must(not lost, f"{name}: {lost} are not in the journal")
        must(len(extra) <= facts.unseen.get(name, 0), f"{name}: {extra} are in the journal only")
        doubtful = facts.doubtful | extra
        reported: dict[tuple[int, str], str] = {}
        for (where, message_id, number), kind in facts.ends.items():
            group = model.names.get((where, number), "")
            if where == name and not (number < 0 and kind == "?"):
                reported[message_id, group] = kind
        for key, kind in reported.items():
            found = replay.ends.get(key)
            must(kind == found or (kind == "?" and found is not None), f"{name}: {key} ended {kind}, journal: {found}")
        for key, kind in replay.ends.items():
            known = key in reported or (name, key[0], -1) in facts.ends or key[0] in doubtful
            must(known, f"{name}: {key} ended {kind} in the journal only")


Open = set[tuple[str, int, str]]
"""Messages that groups have not settled: queue, id, group."""


def check_every_end(journal: Journal, unsettled: Open) -> None:
    """Everything is deleted: every message has an end in the journal, in every group that had not settled it."""
    replays: dict[str, _Replay] = {}
    for row in journal.rows:
        replays.setdefault(row.queue, _Replay()).take(row)
    for name, replay in replays.items():
        endless = replay.enqueued - {message_id for message_id, _ in replay.ends}
        must(not endless, f"{name}: {endless} have no end in the journal")
    for name, message_id, group in unsettled:
        must((message_id, group) in replays[name].ends, f"{name}: {message_id} has no end in {group}")
