"""What producers do with transactions: stage, publish, abort, again and again under few names."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from holdfast.core.commands import Draft
from holdfast.core.records import Extra
from holdfast.core.transactions import TransactionName, TransactionState
from holdfast.errors import (
    InvalidArgument,
    LimitExceeded,
    QueueFull,
    TransactionIncomplete,
    TransactionNotFound,
    TransactionPublished,
)
from tests.simulation.machine import NAMESPACE
from tests.simulation.mail import Queue, must
from tests.simulation.movers import Movers
from tests.simulation.staging import PartAttempt, Txn, tag_of

NAMES = ("t0", "t1", "t2", "t3")
PARTS = ("p", "q")
ATTEMPTS = ("1", "2")


class Producers(Movers):
    """See the module."""

    draft: Callable[[], Draft]
    tags = 0

    def _tagged(self, queue: str) -> Draft:
        draft = self.draft()
        self.tags += 1
        properties = (("tag", f"x{self.tags}"), ("queue", queue))
        if self.tags // 8 % 2:  # some in a row that are packed
            return Draft(draft.payload, extra=Extra(key=draft.extra.key or "a", properties=properties))
        return replace(draft, extra=replace(draft.extra, properties=properties))

    def stage(self, queue: Queue) -> None:
        machine, random, staging = self.machine, self.random, self.machine.staging
        name = random.choice(NAMES)
        staged_part: PartAttempt = (random.choice(PARTS), random.choice(ATTEMPTS))
        names = [queue.name, random.choice(list(machine.model.queues))][: random.randint(1, 2)]
        batches = [(to, [self._tagged(to) for _ in range(random.choice((0, 1, 2, 5)))]) for to in names]
        txn = staging.get(name)
        expected = txn.chunks.get(staged_part, 0) if txn is not None else 0
        chunk = random.choice((expected, expected, expected, expected - 1, expected + 1))
        what = f"{name}: stage of chunk {chunk} of {staged_part}"
        try:
            receipt = machine.engine.transactions.stage(
                TransactionName(NAMESPACE, name), batches, *staged_part, chunk, machine.now
            )
        except TransactionPublished:
            must(txn is not None and txn.state is not TransactionState.OPEN, f"{what}: refused, it is {txn}")
            return
        except InvalidArgument:
            must(chunk > expected or chunk < 0, f"{what}: refused, {expected} is next")
            return
        must(txn is None or txn.state is TransactionState.OPEN, f"{what}: not refused, it is {txn}")
        large = [
            (batch, index)
            for batch, (to, drafts) in enumerate(batches)
            for index, draft in enumerate(drafts)
            if len(draft.payload) > machine.model.queues[to].config.max_message_size
        ]
        if 0 <= chunk < expected:
            must(receipt.repeated, f"{what}: it was staged before: {receipt}")
            return
        must(not receipt.repeated and chunk == expected, f"{what}: {expected} is next: {receipt}")
        must(sorted(receipt.errors) == large, f"{what}: refused {receipt.errors}, not {large}")
        if large:
            return
        if txn is None:
            txn = self._begun(name)
        txn.chunks[staged_part] = expected + 1
        txn.ends_at = machine.now + staging.timeout
        for to, drafts in batches:
            txn.staged |= {tag_of(draft): (staged_part, to) for draft in drafts}

    def _begun(self, name: str) -> Txn:
        record, _ = self.machine.engine.transactions.describe(TransactionName(NAMESPACE, name))
        txn = self.machine.staging.live[name] = Txn(name, number=record.number)
        return txn

    def publish(self, _queue: Queue) -> None:
        machine, random, staging = self.machine, self.random, self.machine.staging
        if random.random() < 0.3:
            self.move_on_all()
        name = random.choice(NAMES)
        txn = staging.get(name)
        parts: dict[str, str] | None = None
        if txn is not None and random.random() < 0.7:
            parts = {
                part: random.choice(ATTEMPTS)
                for part in PARTS
                if any(staged_part[0] == part for staged_part in txn.chunks)
            }
        elif random.random() < 0.2:
            parts = {}
        machine.write()
        machine.sync()
        engine = machine.engine
        engine.arrivals = []
        before = txn.state if txn is not None else None
        try:
            record, decided = engine.transactions.publish(TransactionName(NAMESPACE, name), parts, "sim", machine.now)
        except TransactionNotFound:
            must(txn is None and parts != {}, f"{name}: not found to publish, though {txn}")
            return
        except TransactionIncomplete:
            must(txn is not None and self._choose(txn, parts) is None, f"{name}: {parts} of {txn} refused")
            return
        except (QueueFull, LimitExceeded):
            must(txn is not None and self._too_many(txn, parts), f"{name}: {parts} of {txn} refused for depth")
            return
        machine.record_ids()
        must(decided == (before in (None, TransactionState.OPEN)), f"{name}: was {before}, decided {decided}")
        if not decided:
            return
        if txn is None:
            txn = self._begun(name)
        chosen = self._choose(txn, parts)
        must(chosen is not None and not self._too_many(txn, parts), f"{name}: {parts} of {txn} not refused")
        txn.state, txn.chosen = TransactionState.PUBLISHING, chosen or set()
        self._stepped(txn, record.state)
        if machine.world.crash_rate and random.random() < 0.3:
            machine.crash()  # between what was staged and what it became, if anywhere
        elif random.random() < 0.7:
            self.move_on_all()

    def move_on_all(self, to_the_end: bool = False) -> None:
        """What is decided is moved on, step by step, as a node does it."""
        machine = self.machine
        for _, name, _ in machine.engine.transactions.unfinished_moves():
            txn = machine.staging.live[name]
            while txn.state is TransactionState.PUBLISHING:
                if self.random.random() < 0.3:
                    machine.write()
                machine.engine.arrivals = []
                machine.engine.transactions.move(TransactionName(NAMESPACE, name), machine.now)
                machine.record_ids()
                record, _ = machine.engine.transactions.describe(TransactionName(NAMESPACE, name))
                self._stepped(txn, record.state)
                if not to_the_end and self.random.random() < 0.2:
                    return  # the rest another time

    def _stepped(self, txn: Txn, state: TransactionState) -> None:
        machine = self.machine
        machine.staging.arrived(machine.model, txn, machine.engine.arrivals, machine.now)
        machine.engine.arrivals = []
        if state is TransactionState.PUBLISHED:
            machine.staging.finish(txn, machine.now)

    def _choose(self, txn: Txn, parts: dict[str, str] | None) -> set[str] | None:
        """The tags that count; None: it cannot be told which."""
        if parts is None:
            names = [part for part, _ in txn.chunks]
            return set(txn.staged) if len(names) == len(set(names)) else None
        if any(staged_part not in txn.chunks for staged_part in parts.items()):
            return None
        return {tag for tag, (staged_part, _) in txn.staged.items() if staged_part in parts.items()}

    def _too_many(self, txn: Txn, parts: dict[str, str] | None) -> bool:
        counts: dict[str, int] = {}
        for tag in self._choose(txn, parts) or ():
            queue = txn.staged[tag][1]
            counts[queue] = counts.get(queue, 0) + 1
        queues = self.machine.model.queues
        return any(0 < queues[q].config.max_depth < queues[q].depth + count for q, count in counts.items())

    def abort(self, _queue: Queue) -> None:
        machine, staging = self.machine, self.machine.staging
        name = self.random.choice(NAMES)
        txn = staging.get(name)
        try:
            gone = machine.engine.transactions.abort(TransactionName(NAMESPACE, name))
        except TransactionPublished:
            must(txn is not None and txn.state is not TransactionState.OPEN, f"{name}: refused to abort {txn}")
            return
        must(gone == (txn is not None), f"{name}: aborted {gone}, it was {txn}")
        must(txn is None or txn.state is TransactionState.OPEN, f"{name}: aborted {txn}")
        staging.remove(name)
