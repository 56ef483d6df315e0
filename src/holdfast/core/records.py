"""The data model on one page: every kind of record, its key and its value. core/codecs.py writes and reads the values.

Keys are big-endian, so that bytes sort as numbers do. `shard` is four bytes, a number of a partition of a queue, never
reused. Instants are epoch microseconds, durations microseconds. `stamp` is a message's place within its priority: its
id, or, if it was delayed, a number that was taken like an id when it fell due. No two messages have the same.

    table      key                              value
    META       name                             by name: the cell, redrives, quotas, what fronts keep with queues
    QUEUES     namespace NUL name               QueueRecord                       core/queue.py
    SHARDS     shard                            ShardHead
    GROUPS     shard group                      GroupHead or CursorHead
    MESSAGES   shard seq                        message: head, extra, payload
    READY      shard priority stamp             seq, key hash, flags, size: a live message that is not delayed
    SCHEDULED  shard due seq                    id, priority, key hash, flags, size: one delayed by its producer
    DUE        shard seq                        stamp: where a message stands that was delayed, since it fell due
    KEYED      shard key-hash priority stamp    seq, id: live messages of one key
    LEASES     shard group token 0              first leases that one call gave; the token is the first one's
               shard group token 1              bits of those among them that are over
    DELIVERIES shard group id                   Delivery: waiting for another attempt, or leased and not in LEASES
                                                                                  core/deliveries.py
    STATES     shard group id                   workflow state: version, etag, bytes; or that it was dropped
    SETTLED    shard seq                        bits of the groups that need the message no more, or a mark (below)
    EXPIRIES   shard expires seq                (empty) messages that expire before an older one does
    DEDUP      shard message-id                 id, end: of all messages of a queue in its first shard
    DEDUP_ENDS shard end message-id             (empty)                           core/enqueue.py
    SOURCES    shard source-id source-group     id of the message that carries it, unless it is a replay
    JOURNAL    block number                     block of journal entries              core/journal.py
    TRANSACTIONS, STAGED_PARTS, STAGED, ENDS    staged messages                        core/transactions.py
    AUDITS, AUDITED                             audited redrives and their dead letters    core/audits.py
    SCHEDULES, SCHEDULE_STATES, SCHEDULE_RUNS   messages enqueued by the clock    engine/schedules/records.py
    RUNS, MESSAGE_RUNS, READY_RUNS              internal to a store: packs of records      store/runs.py

    MQTT_SESSIONS       namespace NUL client              a persistent session and its will     mqtt/sessions/records.py
    MQTT_SUBSCRIPTIONS  namespace NUL client NUL filter   its subscriptions
    MQTT_OUTGOING       namespace NUL client NUL order    messages queued or in flight towards it
    MQTT_INCOMING       namespace NUL client NUL id       QoS 2 packet identifiers it has not released yet
    MQTT_MESSAGES       id                                an MQTT message, however many records refer to it
    MQTT_RETAINED       namespace NUL topic               id of the retained message

A message is live while it has a READY or a SCHEDULED record. Its MESSAGES record is kept after that until the journal
block that refers to its payload has been exported. A group has no record of a message that it has not leased yet: the
group's frontier in each priority separates the two. That is why a backlog costs a group nothing.

Changing a record
  1. Never change the meaning of a version that has been released. Give the new layout the next version number.
  2. Write only the newest; keep reading every older one (where the version is looked at, one function a version).
  3. Before the change, `python -m tests.formats.write NAME`: that writes tests/formats/NAME.tar.gz, a data directory of
     the old version. After it, see tests/formats/test_formats.py open that and find everything as it was.
  4. msgpack records (heads, queues) may gain fields at the end with a default; that needs no new version.
  5. Raise FORMAT in store/formats.py, also for a new field or table: older code would drop what it does not know. Add
     the step there; `python -m tests.formats.layouts` then keeps the bytes of the new number beside those of the old.
  6. Say it in CHANGELOG.md.

Adding a table
  1. Give it the next number in `Table` and a line in the list above.
  2. If its key begins with a shard, add it to `_SHARD_TABLES` in engine/queues.py: they are deleted with their queue.
  3. Choose its column family in store/rocks_tuning.py; a table that is not named there is in `index`.
  4. Steps 5 and 6 above.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct as Layout

import msgspec


class Table(IntEnum):
    """The kinds of records. The numbers are on disk: never reuse one."""

    META = 0
    QUEUES = 1
    SHARDS = 2
    GROUPS = 3
    MESSAGES = 4
    READY = 5
    SCHEDULED = 6
    KEYED = 7
    DELIVERIES = 8
    SETTLED = 9
    EXPIRIES = 10
    DEDUP = 11
    DEDUP_ENDS = 12
    SOURCES = 13
    JOURNAL = 14
    TRANSACTIONS = 15
    STAGED = 16
    DUE = 17
    MQTT_SESSIONS = 18
    MQTT_SUBSCRIPTIONS = 19
    MQTT_OUTGOING = 20
    MQTT_INCOMING = 21
    MQTT_MESSAGES = 22
    MQTT_RETAINED = 23
    STAGED_PARTS = 24
    ENDS = 25
    STATES = 26
    LEASES = 27
    AUDITS = 28
    AUDITED = 29
    RUNS = 30
    MESSAGE_RUNS = 31
    READY_RUNS = 32
    REMEMBERED = 33
    SCHEDULES = 34
    SCHEDULE_STATES = 35
    SCHEDULE_RUNS = 36


# --- keys -----------------------------------------------------------------------------------------------------------

LAST = (1 << 64) - 1
_SHARD = Layout(">I")
_SHARD_GROUP = Layout(">II")
_SHARD_U64 = Layout(">IQ")
_U64 = Layout(">Q")
SCHEDULED_KEY = Layout(">IQQ")
KEYED_KEY = Layout(">I8sBQ")
DELIVERY_KEY = Layout(">IIQ")
LEASES_KEY = Layout(">IIQB")
PRIORITY_END = 5  # of a READY key: shard and priority precede it, the stamp follows

shard_key = _SHARD.pack
group_key = _SHARD_GROUP.pack
message_key = _SHARD_U64.pack
settled_key = _SHARD_U64.pack
due_key = _SHARD_U64.pack
ready_key = Layout(">IBQ").pack
ready_prefix = Layout(">IB").pack  # of the keys of one priority; a stamp follows
scheduled_key = SCHEDULED_KEY.pack
expiry_key = SCHEDULED_KEY.pack
keyed_key = KEYED_KEY.pack
keyed_prefix = Layout(">I8sB").pack  # of the keys of one key and priority; a stamp follows
delivery_key = DELIVERY_KEY.pack
leases_key = LEASES_KEY.pack
journal_key = _U64.pack


def queue_key(namespace: str, name: str) -> bytes:
    return namespace.encode() + b"\0" + name.encode()


def dedup_key(shard: int, message_id: str) -> bytes:
    return _SHARD.pack(shard) + message_id.encode()


def dedup_end_key(shard: int, end: int, message_id: str) -> bytes:
    return _SHARD_U64.pack(shard, end) + message_id.encode()


def source_key(shard: int, source_id: int, source_group: str) -> bytes:
    return _SHARD_U64.pack(shard, source_id) + source_group.encode()


def seq_of(key: bytes) -> int:
    """The sequence in a key of MESSAGES or SETTLED."""
    return int.from_bytes(key[4:12], "big")


# --- small values ---------------------------------------------------------------------------------------------------

FLAG_SOURCED = 1  # has a SOURCES record to remove with it
FLAG_EARLY = 2  # has an EXPIRIES record
FLAG_DUE = 4  # was delayed and fell due: has a DUE record
FLAG_STATE = 8  # of a delivery: has a STATES record
FLAG_CHOSEN = 16  # is for some groups only: SETTLED has the bits of all others from the beginning

NO_KEY_HASH = bytes(8)  # stands in a record for the hash of no key
READY_ROW = Layout(">IBQQ8sBI")  # key and value of READY, joined
READY_VALUE = Layout(">Q8sBI")
SIZE = Layout(">I")  # the last field of READY_VALUE
SCHEDULED_VALUE = Layout(">QB8sBI")
TWO_U64 = Layout(">QQ")  # the values of DEDUP and KEYED

# Marks that take the place of SETTLED's bits, for messages that only cursor groups still need. As numbers they have
# every bit set or are compared first: no leasing group, not even a later one, needs such a message.
KEPT = -1  # every leasing group has settled it
GONE = -2  # it was purged or deleted: nobody may see it


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The position of a live message in the order of delivery: all that delivering or removing it takes."""

    stamp: int
    seq: int
    key: bytes
    flags: int
    priority: int
    size_bytes: int


Listed = tuple[int, int, int, int, bytes, int, int]
"""A row of READY as stored: shard, priority, stamp, sequence, key hash, flags, size."""


# --- messages -------------------------------------------------------------------------------------------------------


REPLAYED = "replayed"


class Origin(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a dead letter, a redriven, a replayed or an imported message comes from, and why."""

    source_id: int
    source_queue: str
    source_group: str
    reason: str = ""
    error: str = ""
    attempts: int = 0
    first_attempt_at: int = 0
    last_attempt_at: int = 0

    @property
    def once(self) -> bool:
        """Whether a shard accepts only one live message of this source. A replay adds another one each time."""
        return self.reason != REPLAYED


class WorkflowState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Workflow state of a delivery (core/workflow.py). `etag` is 1 for the first and grows with every change.

    Without `data` it was dropped, and only says where the etags continue. Only STATES has such ones."""

    etag: int
    data: bytes | None


class Extra(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The fields of a message that most messages do not have."""

    key: str | None = None
    message_id: str | None = None
    properties: tuple[tuple[str, str], ...] = ()
    correlation_id: str | None = None
    content_type: str | None = None
    reply_to: str | None = None
    correlation_data: bytes | None = None
    origin: Origin | None = None
    flags: int = 0
    utf8: bool = False  # the producer says that the payload is text
    state: WorkflowState | None = None  # of a dead letter or a redriven message: what its deliveries begin with
    enqueued_as: tuple[int, int] | None = None  # of an edited message: priority and delivery time before its first edit

    @property
    def metadata_only(self) -> bool:
        """Whether it only travels with the message: no field of it affects delivery or needs a record of its own."""
        return (
            self.key is None
            and self.message_id is None
            and self.origin is None
            and self.state is None
            and not self.flags
        )


class Message(msgspec.Struct, frozen=True, gc=False):
    """A stored message. Immutable but for an edit of priority or delivery time while it waits."""

    id: int
    seq: int
    priority: int
    enqueued_at: int
    deliver_at: int  # 0: immediately
    expires_at: int  # 0: never
    extra: Extra
    payload: bytes


NO_EXTRA = Extra()
MESSAGE_VERSION = 1
MESSAGE_HEAD = Layout(">BQQQQBI")  # version, id, enqueued at, deliver at, expires at, priority, size of the extra
ID_AT, ID_END = 1, 9  # where the id stands in it


# --- deliveries and leases ------------------------------------------------------------------------------------------


DELIVERY_VERSION = 1
# Version and the fields of a Delivery from `seq` to `size_bytes`; its texts follow, as msgpack.
DELIVERY_VALUE = Layout(">BQBQQ8sBIQQQQQQQI")

LEASES_VERSION = 1
LEASES_PART, ENDED_PART = 0, 1


class Leases(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first leases that one call granted, columnar. Most are settled before their deadline, so that a record for
    each would cost more than the rest of the lease."""

    version: int
    leased_at: int
    deadline: int
    consumer: str
    protocol: str
    ids: list[int]
    tokens: list[int]
    seqs: list[int]
    priorities: list[int]
    stamps: list[int]
    keys: list[bytes]
    flags: list[int]
    enqueued_at: list[int]
    expires_at: list[int]
    sizes_bytes: list[int]


STATE_VERSION = 1
STATE_DROPPED_VERSION = 2  # has no data
STATE_VALUE = Layout(">BQ")  # version and etag; the data follows

# --- heads: written once a commit for every shard and group it changed ------------------------------------------------


class ShardHead(msgspec.Struct, array_like=True):
    """The state of a shard, and its counters."""

    next_seq: int = 1
    ready: int = 0  # READY records
    scheduled: int = 0  # SCHEDULED records
    size_bytes: int = 0  # payloads of live messages
    priorities: dict[int, int] = {}  # READY records by priority
    expiry_high: int = 0  # a message that expires before this has an EXPIRIES record
    next_expiry: int = 0  # no message expires before this; 0: none expires
    next_early: int = 0  # the same for EXPIRIES
    expiry_seq: int = 1  # where the search for expired messages continues
    next_due: int = 0  # no SCHEDULED record falls due before this; 0: there is none
    dedup_end: int = 0  # no DEDUP record ends before this; 0: there is none
    enqueued: int = 0
    duplicates: int = 0
    refused: int = 0
    early_at: bytes = b""  # where the search in EXPIRIES continues; empty: at its beginning
    unneeded_seq: int = 0  # where the search for messages that only a removed group needed continues; 0: none is due
    kept: int = 0  # KEPT marks in SETTLED: messages that only cursor groups need
    kept_bytes: int = 0  # their payloads
    arrived: int = 0  # messages that entered the order of delivery for all leasing groups, when they were enqueued


class GroupHead(msgspec.Struct, array_like=True):
    """The position of a leasing group in a shard. It starts at sequence `start`; `base` is its frontier in a priority
    that has none in `frontiers`."""

    start: int
    base: int
    frontiers: dict[int, int]
    fresh: int = 0  # live messages it has not leased yet, of those that had arrived then: see `arrived`
    counters: dict[str, int] = {}
    delivery_ms: list[int] = []  # of format 2: histograms by powers of two
    processing_ms: list[int] = []
    skips: list[int] = []  # sequences beyond its frontiers that it has settled
    delivery_times: list[int] = []  # histograms (see groups.py): enqueue to first lease, lease to ack
    processing_times: list[int] = []
    arrived: int = 0  # `ShardHead.arrived` when `fresh` was counted: what has arrived since is fresh too


class CursorHead(msgspec.Struct, array_like=True):
    """The position of a cursor group in a shard: it needs no sequence up to `committed`.

    It was created when the next sequence was `made_at`; before that there may be message records that nobody needs.
    """

    made_at: int
    committed: int
    lost_from: int = 0
    lost_to: int = 0
    counters: dict[str, int] = {}
