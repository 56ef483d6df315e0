"""Transactions in the model: what was staged, what was promised, and that each message is moved once or never."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.core.commands import Draft, Enqueued
from holdfast.core.records import Table
from holdfast.core.transactions import (
    COUNTS,
    TransactionState,
    read_block,
    read_count,
    read_staged_part,
    read_transaction,
)
from holdfast.store.contract import Store
from tests.simulation.mail import must
from tests.simulation.model import Model

EVERYTHING = b"\xff" * 64
AGE = {TransactionState.OPEN: 0, TransactionState.PUBLISHING: 1, TransactionState.PUBLISHED: 2}

Tag = str
PartAttempt = tuple[str, str]


def tag_of(draft: Draft) -> Tag:
    """The name under which a staged message is followed; it travels in the message."""
    return dict(draft.extra.properties)["tag"]


@dataclass(slots=True)
class Txn:
    """A transaction: the messages of its lots by tag, and what has become of those that count."""

    id: str
    state: TransactionState = TransactionState.OPEN
    ends_at: int = 0
    number: int = 0
    chunks: dict[PartAttempt, int] = field(default_factory=dict)
    staged: dict[Tag, tuple[PartAttempt, str]] = field(default_factory=dict)  # lot and queue
    chosen: set[Tag] = field(default_factory=set)
    moved: dict[Tag, int] = field(default_factory=dict)  # to which message; 0: it was there already


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a step of a move brought to one shard."""

    queue: str
    partition: int
    drafts: list[Draft]
    reply: Enqueued


class Staging:
    """All transactions of the model."""

    def __init__(self, limits_timeout: int, remember: int, max_remembered: int) -> None:
        self.live: dict[str, Txn] = {}
        self.done: dict[str, Txn] = {}
        self.timeout = limits_timeout
        self.remember = remember
        self.max_remembered = max_remembered
        self._safe: dict[str, tuple[TransactionState, set[Tag]]] = {}
        self._gone: set[str] = set()  # removed, and not confirmed

    def get(self, name: str) -> Txn | None:
        return self.live.get(name) or self.done.get(name)

    def remove(self, name: str) -> None:
        self.live.pop(name, None)
        self.done.pop(name, None)
        self._gone.add(name)

    def finish(self, txn: Txn, now: int) -> None:
        must(set(txn.moved) == txn.chosen, f"{txn.id}: published without {txn.chosen - set(txn.moved)}")
        txn.state, txn.ends_at = TransactionState.PUBLISHED, now + self.remember
        self.done[txn.id] = self.live.pop(txn.id)

    def tick(self, now: int) -> None:
        for txn in list(self.live.values()):
            if txn.state is TransactionState.OPEN and txn.ends_at <= now:
                self.remove(txn.id)
        for txn in sorted(self.done.values(), key=lambda txn: (txn.ends_at, txn.number)):
            if txn.ends_at <= now or len(self.done) > self.max_remembered:
                self.remove(txn.id)

    def arrived(self, model: Model, txn: Txn, arrivals: list[Arrival], now: int) -> None:
        """Messages have taken their places: each is one that counts, and comes once."""
        model.event += 1
        last = model.last_id
        for arrival in arrivals:
            queue = model.queues[arrival.queue]
            reply = arrival.reply
            must(not reply.errors, f"{txn.id}: published and refused: {reply}")
            for index, draft in enumerate(arrival.drafts):
                tag = tag_of(draft)
                must(tag in txn.chosen, f"{txn.id}: {tag} does not count, and was published")
                must(tag not in txn.moved, f"{txn.id}: {tag} is published again, as {reply.ids[index]}")
                first = model.known(queue, arrival.partition, draft, now, reply.duplicates.get(index, 0))
                if first:
                    must(reply.duplicates.get(index) == first, f"{txn.id}: duplicate of {first} answered {reply}")
                    txn.moved[tag] = 0
                    continue
                must(index not in reply.duplicates, f"{txn.id}: {tag} is no duplicate: {reply}")
                model.store(queue, arrival.partition, draft, reply.ids[index], now)
                txn.moved[tag] = reply.ids[index]
                last = max(last, reply.ids[index])
        model.last_id = last

    # --- crashes ----------------------------------------------------------------------------------------------------

    def confirm(self) -> None:
        """Everything answered so far is durable."""
        self._safe = {txn.id: (txn.state, set(txn.staged)) for txn in (*self.live.values(), *self.done.values())}
        self._gone = set()

    def check(self, store: Store) -> None:
        """What is stored is what the model says, and no record stands alone."""
        found = read_all(store)
        must(set(found) == {*self.live, *self.done}, f"transactions {set(found)}, not {[*self.live, *self.done]}")
        for name, txn in found.items():
            known = self.get(name)
            assert known is not None
            same = (txn.state, txn.chunks) == (
                known.state,
                known.chunks if known.state is not TransactionState.PUBLISHED else {},
            )
            must(same, f"{name} is {txn}, not {known}")
            left = {tag: where for tag, where in known.staged.items() if _left(known, tag)}
            must(txn.staged == left, f"{name}: staged {set(txn.staged)}, not {set(left)}")

    def adopt(self, store: Store, stored: Callable[[str, int], bool], doubt: bool) -> None:
        """After a crash: what was promised is there. `stored` says whether a message came through."""
        found = read_all(store)
        for name, (state, tags) in self._safe.items():
            after = found.get(name)
            if after is None:
                must(doubt or name in self._gone, f"transaction {name} is lost")
                continue
            must(doubt or name in self._gone or AGE[after.state] >= AGE[state], f"{name} was {state}: {after}")
            if after.state is TransactionState.OPEN:
                must(doubt or name in self._gone or tags <= set(after.staged), f"{name} has lost {tags}: {after}")
        for name, after in found.items():
            known = self.get(name)
            if known is None or after.number != known.number:
                must(doubt or name in self._safe or name in self._gone, f"transaction {name} appeared from nowhere")
                after.chosen = {tag for tag in after.staged if after.counts(tag)}
                continue
            self._take_over(after, known, stored, doubt)
        self.live = {name: txn for name, txn in found.items() if txn.state is not TransactionState.PUBLISHED}
        self.done = {name: txn for name, txn in found.items() if txn.state is TransactionState.PUBLISHED}
        self.confirm()

    def _take_over(self, after: FoundTxn, known: Txn, stored: Callable[[str, int], bool], doubt: bool) -> None:
        """Each message that counts is staged still, or has come to its queue: not both, and not neither."""
        if after.state is TransactionState.OPEN:
            return
        after.chosen = known.chosen or {tag for tag in after.staged if after.counts(tag)}
        for tag in after.chosen:
            message_id = known.moved.get(tag)
            there = message_id is not None and (message_id == 0 or stored(known.staged[tag][1], message_id))
            if tag in after.staged and after.counts(tag):
                must(not message_id or not there, f"{known.id}: {tag} is staged still, and {message_id} is there")
            else:
                must(there or doubt, f"{known.id}: {tag} is lost, it was {message_id}")
                after.moved[tag] = message_id or 0
        after.staged |= {tag: known.staged[tag] for tag in after.moved}


@dataclass(slots=True)
class FoundTxn(Txn):
    """A transaction as it is stored."""

    parts_chosen: set[PartAttempt] = field(default_factory=set)

    def counts(self, tag: Tag) -> bool:
        return self.staged[tag][0] in self.parts_chosen


def _left(txn: Txn, tag: Tag) -> bool:
    """Whether a message is still to be found among what is staged."""
    if txn.state is TransactionState.PUBLISHED:
        return False
    return tag not in txn.moved


def read_all(store: Store) -> dict[str, FoundTxn]:
    """Every transaction in the store; fails if a record belongs to none."""
    found: dict[str, FoundTxn] = {}
    by_number: dict[int, FoundTxn] = {}
    chosen: dict[int, list[int]] = {}
    names: dict[tuple[int, int], PartAttempt] = {}
    ends = {value: key for key, value in store.scan(Table.ENDS, b"", EVERYTHING, 1 << 30)}
    remembered = {value for _, value in store.scan(Table.REMEMBERED, b"", EVERYTHING, 1 << 30)}
    counts = [read_count(value) for _, value in store.scan(Table.META, COUNTS, COUNTS[:-1] + b"\1", 1 << 30)]
    must(remembered == set(ends), f"remembered {remembered}, with ends {ends}")
    must(sum(counts) == len(ends), f"counted {counts}, are {len(ends)}")
    for key, value in store.scan(Table.TRANSACTIONS, b"", EVERYTHING, 1 << 30):
        record = read_transaction(value)
        must(record.id not in found, f"transaction {record.id} is stored twice")
        txn = FoundTxn(record.id, record.state, record.ends_at, number=record.number)
        found[record.id] = by_number[record.number] = txn
        chosen[record.number] = record.chosen
        is_done = key[:1] == b"\1"
        must(
            is_done == (record.state is TransactionState.PUBLISHED) == (key in ends),
            f"{record.id} is {record.state}: {key!r}",
        )
        ends.pop(key, None)
    must(not ends, f"ends of no transaction: {ends}")
    for key, value in store.scan(Table.STAGED_PARTS, b"", EVERYTHING, 1 << 30):
        staged_part, number = read_staged_part(value), int.from_bytes(key[:8], "big")
        must(number in by_number, f"a lot of no transaction: {staged_part}")
        by_number[number].chunks[staged_part.part, staged_part.attempt] = staged_part.chunks
        names[number, staged_part.number] = (staged_part.part, staged_part.attempt)
        if staged_part.number in chosen[number]:
            by_number[number].parts_chosen.add((staged_part.part, staged_part.attempt))
    for key, value in store.scan(Table.STAGED, b"", EVERYTHING, 1 << 30):
        number, staged_part_number = int.from_bytes(key[:8], "big"), int.from_bytes(key[12:16], "big")
        must(number in by_number, f"staged for no transaction: {key!r}")
        for draft in read_block(value).drafts():
            queue = dict(draft.extra.properties)["queue"]
            by_number[number].staged[tag_of(draft)] = (names[number, staged_part_number], queue)
    return found
