"""What callers were answered, held at once against what the disk proves, and again after every crash.

The rule: an answer is good when a sync that began after its write has ended, so the *durable* image has it. A lease,
and whatever a queue with durability `buffered` is asked, is answered from the *written* image; what is buffered must be
durable soon after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdfast.core.commands import Leased, Settlement, Verb
from holdfast.core.records import Message
from holdfast.errors import HoldfastError
from tests.simulation.mail import Violation, must
from tests.simulation.node.evidence import Evidence
from tests.simulation.node.store import SimulatedDisk
from tests.simulation.picture import Picture, check_records

BUFFERED_SECONDS = 2.5
"""When what was answered before its sync is synced at the latest: the node waits a second, then for a sync that is
under way and its own, 0.3 s each here."""

_EVENT_OF = {Verb.RELEASE: "released", Verb.EXTEND: "extended", Verb.ACK: "acked"}


@dataclass(slots=True)
class Call:
    """An enqueue of several messages: one commit, so that a crash keeps all of them or none."""

    queue: str
    payloads: list[bytes]
    sure: list[bytes]  # those that cannot be refused, nor be duplicates: stored if any is


@dataclass(frozen=True, slots=True)
class _Buffered:
    until: float
    event: tuple[str, str, int]
    count: int


class Ledger:
    """See the module."""

    def __init__(self, disk: SimulatedDisk, namespace: str) -> None:
        self.written = Evidence(disk.written, namespace)
        self.durable = Evidence(disk.durable, namespace)
        disk.on_written, disk.on_durable, disk.on_lost = self.written.take, self.durable.take, self.lost
        disk.on_failed = self.failed
        self.confirmed: dict[int, str] = {}  # messages whose enqueue was answered, and their queue
        self.acked: set[tuple[str, str, int]] = set()
        self.tokens: set[int] = set()
        self.calls: list[Call] = []
        self.answers: Counter[str] = Counter()
        self._leases: Counter[tuple[str, str, int]] = Counter()
        self._settles: dict[tuple[str, str, int], set[int]] = {}  # tokens
        self._sequences: dict[tuple[str, int, int], int] = {}
        self._buffered: list[_Buffered] = []
        self._held: dict[tuple[str, int], tuple[int, float]] = {}  # by group and message: token, deadline
        self.failures = 0  # of the store, and crashes: leases from before may be lost
        self.bugs = 0  # that operations met: one may have been a settlement by PUBACK, which has no answer
        self.clock: Callable[[], float] = lambda: 0.0

    # --- answers ----------------------------------------------------------------------------------------------------

    def enqueued(self, queue: str, ids: Iterable[int], *, durable: bool) -> None:
        """Messages are stored, or were before (duplicates)."""
        for message_id in ids:
            self._must_have(("enqueued", "", message_id), 1, durable)
            if durable:
                self.confirmed[message_id] = queue
        self.answers["enqueue"] += 1

    def payload_stored(self, queue: str, payload: bytes) -> None:
        """A message that is known by its payload alone (MQTT) is stored."""
        ids = self.durable.ids.get(payload, [])
        must(bool(ids), f"{payload!r} was answered, and is not durable")
        self.confirmed[ids[0]] = queue
        self.answers["publish"] += 1

    def leased(self, group: str, leased: Iterable[Leased]) -> None:
        """Deliveries went out to a consumer."""
        for item in leased:
            message_id, token = item.message.id, item.token
            self.delivered(group, message_id, token)
            record = self.durable.queue(self.written.messages[message_id].queue)
            known = record is not None and record.group(group) is not None
            must(known, f"lease {token} of {message_id} went out, and its group {group} is not durable")

    def delivered(self, group: str, message_id: int, token: int) -> None:
        event = ("leased", group, message_id)
        self._leases[event] += 1
        must(token not in self.tokens, f"lease token {token} was given twice")
        self.tokens.add(token)
        count = self.written.events[event]
        must(count >= self._leases[event], f"lease {token} of {message_id} went out, and is not written")
        reserved = self.durable.ids_reserved()
        must(token <= reserved, f"lease token {token} went out, but only ids up to {reserved} are durably reserved")
        self.answers["lease"] += 1

    def held(self, group: str, message_id: int, token: int, deadline: float) -> None:
        """A client with a lasting session has got a delivery, or got it again. Until the deadline there is no other
        lease of it, however often the client is cut and comes back; and nothing that it has settled comes again."""
        before, until = self._held.get((group, message_id), (token, 0.0))
        must(
            token == before or self.clock() >= until,
            f"{message_id} was leased to {group} with token {before} until {until:.3f}, and came with {token}",
        )
        acked = any((queue, group, message_id) in self.acked for queue in ("jobs", "mail"))
        must(not acked, f"{message_id} was acked in {group}, and came again")
        self._held[group, message_id] = (token, deadline)

    def acknowledged(self, queue: str, group: str, message_id: int) -> None:
        """A PUBACK settled a delivery, and what was sent behind it is answered."""
        if message_id not in self.written.ended:  # else it was purged
            self._must_have(("acked", group, message_id), 1, queue != "logs")

    def settled(
        self,
        queue: str,
        group: str,
        settlements: list[Settlement],
        results: list[int | HoldfastError | None],
        *,
        durable: bool,
    ) -> None:
        for settlement, result in zip(settlements, results, strict=True):
            event = _EVENT_OF.get(settlement.verb)
            if isinstance(result, HoldfastError) or event is None:
                continue
            key = (event, group, settlement.id)
            if settlement.verb is Verb.ACK:
                self._must_have(key, 1, durable)
                if durable:
                    self.acked.add((queue, group, settlement.id))
            else:
                tokens = self._settles.setdefault(key, set())
                tokens.add(settlement.token)  # settling again is answered as the first time
                self._must_have(key, len(tokens), durable)
            self.answers[settlement.verb.value] += 1

    def read(self, queue: str, partition: int, messages: Iterable[Message]) -> None:
        """A cursor group has read these: the same sequences are the same messages for ever."""
        for message in messages:
            stored = self.durable.messages.get(message.id)
            must(stored is not None, f"{queue}: {message.id} was read, and is not durable")
            first = self._sequences.setdefault((queue, partition, message.seq), message.id)
            must(first == message.id, f"{queue}: sequence {message.seq} was {first} and is {message.id}")
        self.answers["read"] += 1

    def exists(self, queue: str, created_at: int, group: int = 0) -> None:
        """A caller was refused because a queue, or a group of it, exists: it may have been deleted since."""
        known = (queue, created_at, group) in self.durable.made
        must(known, f"{queue} (group {group}) was said to exist, and was never durable")
        self.answers["exists"] += 1

    def administered(self, what: str, done: bool) -> None:
        must(done, f"{what} was answered, and is not durable")
        self.answers["administration"] += 1

    def _must_have(self, event: tuple[str, str, int], count: int, durable: bool) -> None:
        image = self.durable if durable else self.written
        there = image.events[event]
        if there < count:
            state = "durable" if durable else "written"
            raise Violation(f"{event} was answered {count} times, and is {state} {there} times")
        if not durable:
            self._buffered.append(_Buffered(self.clock() + BUFFERED_SECONDS, event, count))

    # --- time and misfortune ----------------------------------------------------------------------------------------

    def check_buffered(self) -> None:
        """What was answered before its sync has had it in time."""
        while self._buffered and self._buffered[0].until < self.clock():
            late = self._buffered.pop(0)
            there = self.durable.events[late.event]
            must(there >= late.count, f"{late.event} was buffered and is not synced after {BUFFERED_SECONDS} s")

    def met_a_bug(self) -> None:
        """An operation ended by a bug, and is undone."""
        self.bugs += 1

    def failed(self) -> None:
        """The store takes no writes: what is buffered waits until it does, and may be lost."""
        self._buffered.clear()
        self._held.clear()
        self.failures += 1

    def lost(self) -> None:
        """What was not durable is gone: a crash, or a store that was opened again."""
        self.written.become(self.durable)
        self._buffered.clear()
        self._held.clear()
        self.failures += 1
        for key in self._leases:
            self._leases[key] = min(self._leases[key], self.durable.events[key])
        for key, tokens in self._settles.items():
            self._settles[key] = set(sorted(tokens)[: self.durable.events[key]])

    def check_image(self, now: int) -> None:
        """Nothing confirmed is lost, nothing settled is back, every record fits; what one call stored is there as a
        whole, and what was published with QoS 2 once."""
        picture = Picture(self.durable.store, now, 0, now)
        check_records(picture)
        for message_id, queue in self.confirmed.items():
            there = queue in picture.queues and message_id in picture.queues[queue].mails
            must(there or message_id in self.durable.ended, f"{queue}: confirmed {message_id} is lost")
        for queue, group, message_id in self.acked:
            mail = picture.queues[queue].mails.get(message_id) if queue in picture.queues else None
            life = mail.lives.get(group) if mail is not None else None
            must(life is None or life.over, f"{queue}: {message_id} was acked in {group} and is back: {mail}")
        for event, group, message_id in self.durable.events:
            there = event != "dead" or message_id in self.durable.sources
            must(there, f"{message_id} is dead in {group}, and there is no dead letter of it")
        for call in self.calls:
            if any(payload in self.durable.ids for payload in call.payloads):
                torn = [payload for payload in call.sure if payload not in self.durable.ids]
                must(not torn, f"{call.queue}: {len(torn)} of a batch of {len(call.payloads)} are not stored")
        for payload, ids in self.durable.ids.items():
            must(len(ids) == 1 or not payload.startswith(b"once"), f"{payload!r} is stored {len(ids)} times: {ids}")
