"""The commands of a shard, always for a batch, and their replies.

Commands are values. Everything a decision depends on besides the shard's own state is in them or in `now`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Generic, TypeVar, overload

import msgspec

from holdfast.core.codecs import read_extra
from holdfast.core.queue import PRIORITY_DEFAULT
from holdfast.core.records import NO_EXTRA, Extra, Message, Table, WorkflowState
from holdfast.core.runs import BytesColumn
from holdfast.errors import HoldfastError

R = TypeVar("R")

NO_ID = "is empty, and would make every message that has it a duplicate; leave it out, or give each its own"
"""What is wrong with an empty `message_id`."""


class Draft(msgspec.Struct, gc=False):
    """A message as a producer gives it. `ttl` and `deliver_at` are microseconds; -1 means the queue's own setting."""

    payload: bytes
    priority: int = PRIORITY_DEFAULT
    deliver_at: int = 0
    ttl: int = -1
    extra: Extra = NO_EXTRA


class HomogeneousDrafts(Sequence[Draft]):
    """Drafts that differ in nothing but their payloads, which are one column: many of them cost as little as one. As a
    sequence it has the drafts one by one."""

    __slots__ = ("extra", "payloads")

    def __init__(self, payloads: BytesColumn, extra: Extra = NO_EXTRA) -> None:
        self.payloads = payloads
        self.extra = extra

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[Draft]:
        return iter(self[:])

    @overload
    def __getitem__(self, at: int) -> Draft: ...

    @overload
    def __getitem__(self, at: slice) -> list[Draft]: ...

    def __getitem__(self, at: int | slice) -> Draft | list[Draft]:
        if isinstance(at, slice):
            return [Draft(payload, extra=self.extra) for payload in self.payloads[at]]
        index = range(len(self))[at]
        return Draft(self.payloads.content(index, index + 1), extra=self.extra)


def payload_bytes(drafts: Sequence[Draft]) -> int:
    """The size of their payloads."""
    if type(drafts) is HomogeneousDrafts:  # `isinstance` of an abstract class takes as long as all the rest
        return drafts.payloads.size_bytes
    return sum([len(draft.payload) for draft in drafts])


class Packed(msgspec.Struct, frozen=True):
    """Staged messages of one priority, not delayed, of whose extras only the keys affect delivery.

    Each is encoded as it will be in its record, but for the head: `tails`.
    """

    priority: int
    keys: list[bytes]  # their hashes; NO_KEY_HASH: it has none
    extra_sizes: list[int]
    sizes: list[int]  # of the payloads
    tails: list[bytes]

    def drafts(self) -> list[Draft]:
        """The same as drafts."""
        return [
            Draft(tail[size:], self.priority, extra=read_extra(tail[:size]))
            for size, tail in zip(self.extra_sizes, self.tails, strict=True)
        ]


class Command(msgspec.Struct, Generic[R], frozen=True):
    """A command of a shard. `R` is the type of its reply."""


class Enqueued(msgspec.Struct):
    """An id for every draft, in order (0 where it was refused); duplicates and errors by index."""

    ids: list[int]
    duplicates: dict[int, int] = {}
    errors: dict[int, HoldfastError] = {}
    first_seq: int = 0


class Enqueue(Command[Enqueued], frozen=True):
    """Store these. `room` is how many more the queue may hold; the rest is refused. -1: no limit (dead letters).

    A batch that is spread over several partitions brings its `ids`, which were taken for the whole batch in its order:
    that keeps it first in, first out. Without them the shard takes its own.
    """

    drafts: Sequence[Draft]
    room: int = -1
    protocol: str = ""
    ids: list[int] = []
    group: str = ""  # a leasing group: these are for it alone, and are not delayed; empty: for all groups
    validated: bool = False  # these were checked when they were staged: none is refused
    known: dict[int, int] = {}  # by index, the message that a draft repeats: it is not stored
    dry_run: bool = False  # change nothing, only reply what would be refused; the ids in the reply mean nothing


class FindIds(Command[dict[str, int]], frozen=True):
    """The messages that have these producers' ids, those that the shard remembers; nothing changes."""

    names: list[str]


class RememberIds(Command[None], frozen=True):
    """Messages that were stored, by their producers' ids: they are remembered for the queue's `dedup_window`."""

    ids: dict[str, int]


class PublishStaged(Command[Enqueued], frozen=True):
    """Store staged messages under these ids. They were checked when they were staged: none is refused."""

    messages: Packed
    ids: list[int]
    protocol: str = ""


class Leased(msgspec.Struct, frozen=True, gc=False):
    """A delivery that is leased to a consumer."""

    message: Message
    token: int
    attempt: int
    deadline: int
    partition: int
    group: str
    stamp: int = 0


class Lease(Command[list[Leased]], frozen=True):
    """Lease up to `limit` deliveries to `consumer`, each for `timeout` microseconds."""

    group: str
    limit: int
    timeout: int
    consumer: str = ""
    protocol: str = ""
    max_bytes: int = 0  # 0: no bound
    one_at_least: bool = True  # the first one is leased even if it is larger than `max_bytes`


class Verb(StrEnum):
    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"
    RELEASE = "release"
    EXTEND = "extend"
    DISCONNECT = "vanish"  # the consumer disconnected: a failure, journalled as such


ERROR_LENGTH_MAX = 4_096
"""Characters of a consumer's error text; a front cuts off the rest. The text is stored with the delivery and with its
dead letter."""


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """How a consumer settles one delivery. Without a token it must be the consumer that holds the lease, under its
    qualified name."""

    id: int
    token: int = 0
    verb: Verb = Verb.ACK
    delay: int = -1  # nack, release: before it is ready again; -1: as the retry policy says, or immediately
    error: str = ""
    timeout: int = -1  # extend: from now; -1: the queue's delivery_timeout
    consumer: str = ""
    partition: int = -1  # -1: not known; the engine searches for it


class Settled(msgspec.Struct):
    """For every settlement None, the new deadline of an extended lease, or the error that refused it."""

    results: list[int | HoldfastError | None]


class Settle(Command[Settled], frozen=True):
    group: str
    settlements: list[Settlement]


class Ack(Command[Settled], frozen=True):
    """Ack deliveries by their tokens, columnar."""

    group: str
    ids: list[int]
    tokens: list[int]


class PutState(Command[WorkflowState], frozen=True):
    """Store `data` beside a delivery, under its lease, or drop the stored state (None). `if_match`: only if the state
    has this etag; 0: only if there is none."""

    group: str
    id: int
    token: int
    data: bytes | None
    if_match: int | None = None


class GetStates(Command[list[WorkflowState | None]], frozen=True):
    """The states of deliveries, by message id and token. A token of 0 is not checked."""

    group: str
    deliveries: list[tuple[int, int]]


class Tick(Command[int], frozen=True):
    """Act on what is due by now: leases past their deadline, backoffs and delays that ended, expiry, forgetting.

    A bounded chunk of it. The reply is about how many messages that concerned, 0 if nothing was due: until then there
    may be more.
    """


class DeadLettered(Command[None], frozen=True):
    """What became of dead-letter candidates: by id, the id of the dead letter, 0 if there is no dead queue, or -1 if
    the dead queue refused it for now."""

    group: str
    outcomes: dict[int, int]


class CursorRange(msgspec.Struct):
    """The messages of a read. Continue at `next_seq`. max_lag dropped `lost_from..lost_to` since the last commit."""

    messages: list[Message]
    next_seq: int
    committed: int
    high: int
    lost_from: int = 0
    lost_to: int = 0


class CursorRead(Command[CursorRange], frozen=True):
    """Messages of a cursor group from sequence `first`, at most `limit` and about `max_bytes`; nothing changes."""

    group: str
    first: int
    limit: int
    max_bytes: int
    until: int = 0  # only sequences below this; 0: to the end
    one_at_least: bool = True  # the first one is returned even if it is larger than `max_bytes`


class Progress(msgspec.Struct, frozen=True):
    """The progress of a long command: unless it is `done`, step it again after a commit."""

    count: int
    done: bool
    at: int = 0
    """Where to continue, for commands that carry a position."""


class CursorCommit(Command[Progress], frozen=True):
    """The cursor group needs nothing up to and including `seq`. Works in chunks: step until `done`."""

    group: str
    seq: int


class AddGroup(Command[None], frozen=True):
    number: int
    name: str
    cursor: bool = False
    earliest: bool = False
    max_lag_messages: int = 0
    max_lag_age: int = 0


class RemoveGroup(Command[None], frozen=True):
    """Remove a group; messages that only it needed are removed by the following ticks."""

    name: str


class RecordGroups(Command[None], frozen=True):
    """Journal the groups that there are: the journal does not know them yet."""


PURGE_START = (Table.SCHEDULED, b"")
"""Where a purge begins."""


class Purged(msgspec.Struct, frozen=True):
    count: int
    done: bool
    after: tuple[Table, bytes] = PURGE_START


class Purge(Command[Purged], frozen=True):
    """Remove every waiting message with a sequence below `below`, also those that only cursor groups need. In chunks:
    step until `done`, each time with the `after` of the last reply. An edit between two steps may have moved a message
    behind the purge: begin again until nothing was removed."""

    below: int
    after: tuple[Table, bytes] = PURGE_START
    everything: bool = False  # the queue is being deleted: leased ones too


class Edit(Command[Message], frozen=True):
    """Change a waiting message. None leaves a field as it is."""

    id: int
    priority: int | None = None
    deliver_at: int | None = None


class Delete(Command[None], frozen=True):
    """Remove one waiting message, for all groups. `leased`: also if it is leased, so that its consumers lose it."""

    id: int
    leased: bool = False


class Withdraw(Command[int], frozen=True):
    """Remove these waiting messages, by their sequences, for all groups; `reason` says why in the journal."""

    seqs: list[int]
    reason: str = ""


class DeliveryStatus(msgspec.Struct, frozen=True, gc=False):
    """The delivery status of a message in one group."""

    group: str
    state: str
    attempt: int
    consumer: str = ""
    deadline: int = 0
    ready_at: int = 0
    error: str = ""


class Browsed(msgspec.Struct, frozen=True):
    """Live messages with their delivery statuses. Continue at `next_seq`; 0: there are no more."""

    messages: list[tuple[Message, list[DeliveryStatus]]]
    next_seq: int


class Browse(Command[Browsed], frozen=True):
    """Read live messages in the order of their sequence, from `first`; nothing is leased.

    `until`: the sequence to stop before, 0: the end. `scan_limit`: how many records to read, live or not; 0: any
    number. `gone`: also those that are not live any more and are kept for the journal; they have no delivery status.
    """

    first: int
    limit: int
    max_bytes: int
    until: int = 0
    scan_limit: int = 0
    gone: bool = False


class Peek(Command[Browsed], frozen=True):
    """Read the live messages with these sequences, in this order; nothing is leased."""

    seqs: list[int]


class Bounded(msgspec.Struct, frozen=True):
    """Sequences `first` to `end - 1`; which of them are live is not known."""

    first: int
    end: int


class Bounds(Command[Bounded], frozen=True):
    """Where the records of a shard begin, or those that were enqueued at `since` or later."""

    since: int = 0


class Find(Command[tuple[Message, list[DeliveryStatus]] | None], frozen=True):
    """One live message by its id; None if it is not live here."""

    id: int
