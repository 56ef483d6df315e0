"""The whole data model on one page: every record kind, its key and its value.

Keys are big-endian, so that bytes sort as numbers do. `shard` is four bytes, a number of a partition of a queue, never
reused. Instants are epoch microseconds, durations microseconds. `stamp` is a message's place within its priority: its
id, or, if it was delayed, a number that was taken like an id when it fell due. No two messages have the same.

    table      key                              value
    META       name                             by name: the node, and redrives
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
    DELIVERIES shard group id                   delivery: waiting for another attempt, or leased and not in LEASES
    STATES     shard group id                   workflow state: version, etag, bytes; or that it was dropped
    SETTLED    shard seq                        bits of the groups that need the message no more, or a mark (below)
    EXPIRIES   shard expires seq                (empty) messages that expire before an older one does
    DEDUP      shard message-id                 id, end
    DEDUP_ENDS shard end message-id             (empty)
    SOURCES    shard source-id source-group     id of the message that carries it, unless it is a replay
    JOURNAL    block number                     block of journal entries              core/journal.py
    TRANSACTIONS, LOTS, STAGED, ENDS            messages that are staged              core/transactions.py
    AUDITS, AUDITED                             redrives under an id, and their letters    core/audits.py
    RUNS, MESSAGE_RUNS, READY_RUNS              the store's own: how it keeps runs of records    store/rocks_runs.py

    MQTT_SESSIONS       namespace NUL client              a persistent session and its will     mqtt/sessions/records.py
    MQTT_SUBSCRIPTIONS  namespace NUL client NUL filter   its subscriptions
    MQTT_OUTGOING       namespace NUL client NUL order    messages queued or in flight towards it
    MQTT_INCOMING       namespace NUL client NUL id       QoS 2 packet identifiers it has not released yet
    MQTT_MESSAGES       id                                an MQTT message, however many records refer to it
    MQTT_RETAINED       namespace NUL topic               id of the retained message

A message is live while it has a READY or a SCHEDULED record. Its MESSAGES record may outlive that until the journal
that refers to its payload has been exported. A group that has not touched a message has no record of it: the group's
frontier says how far it has come in each priority. That is why a backlog costs a group nothing.

Changing a record
  1. Never change the meaning of a version that has been released. Give the new layout the next version number.
  2. Write only the newest; keep reading every older one (where the version is looked at, one function a version).
  3. Before the change, `python -m tests.formats.write NAME`: that writes tests/formats/NAME.tar.gz, a data directory of
     the old version. After it, see tests/formats/test_formats.py open that and find everything as it was.
  4. msgpack records (heads, queues) may gain fields at the end with a default; that needs no new version.
  5. Raise FORMAT in store/formats.py, also for a new field or table: older code would drop what it does not know. Add
     the step there; `python -m tests.formats.layouts` then keeps the bytes of the new number beside those of the old.
  6. Say it in CHANGELOG.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from itertools import chain
from operator import eq
from struct import Struct as Layout
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core.ids import UNKEYED
from holdfast.core.runs import BytesColumn, HomogeneousRun, RecordRun
from holdfast.errors import FormatUnknown


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


# --- keys -----------------------------------------------------------------------------------------------------------

LAST = (1 << 64) - 1
_SHARD = Layout(">I")
_SHARD_GROUP = Layout(">II")
_SHARD_U64 = Layout(">IQ")
_SHARD_U64_U64 = Layout(">IQQ")
_PLACE = Layout(">IBQ")
PRIORITY_END = 5  # of a key of READY: before it are shard and priority, behind it is the stamp
_KEYED = Layout(">I8sBQ")
_DELIVERY_KEY = Layout(">IIQ")
_LEASES_KEY = Layout(">IIQB")
_U64 = Layout(">Q")

shard_key = _SHARD.pack
group_key = _SHARD_GROUP.pack
message_key = _SHARD_U64.pack
settled_key = _SHARD_U64.pack
due_key = _SHARD_U64.pack
ready_key = _PLACE.pack
ready_prefix = Layout(">IB").pack  # of the keys of one priority; a stamp follows
scheduled_key = _SHARD_U64_U64.pack
expiry_key = _SHARD_U64_U64.pack
keyed_key = _KEYED.pack
delivery_key = _DELIVERY_KEY.pack
leases_key = _LEASES_KEY.pack
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
FLAG_CHOSEN = 16  # is for some groups only: the others have settled it from the beginning, as SETTLED says

_NO_KEY = bytes(8)
_READY_VALUE = Layout(">Q8sBI")
_SIZE = Layout(">I")  # the end of it: how large the message is
_SCHEDULED_VALUE = Layout(">QB8sBI")
_TWO_U64 = Layout(">QQ")

dedup_value = _TWO_U64.pack
read_dedup = _TWO_U64.unpack
keyed_value = _TWO_U64.pack
due_value = _U64.pack


def ready_value(seq: int, key: bytes, flags: int, size_bytes: int) -> bytes:
    return _READY_VALUE.pack(seq, key or _NO_KEY, flags, size_bytes)


def homogeneous_ready_values(first_seq: int, sizes_bytes: bytes) -> HomogeneousRun:
    """`ready_value` for messages in sequence that have neither keys nor flags. Their sizes are four bytes each."""
    count = len(sizes_bytes) // _SIZE.size
    tails = BytesColumn(sizes_bytes, range(0, len(sizes_bytes) + 1, _SIZE.size), _SIZE.pack(_SIZE.size) * count)
    return HomogeneousRun(b"", first_seq, _NO_KEY + b"\0", tails)


def ready_key_hash(value: bytes) -> bytes:
    """The key hash in a value of READY; eight zero bytes where there is no key."""
    return value[8:16]


def ready_flags(value: bytes) -> int:
    """The flags in a value of READY."""
    return value[16]


def read_keyed(key: bytes, value: bytes) -> tuple[int, int, int, int]:
    """Priority, stamp, sequence and id."""
    _, _, priority, stamp = _KEYED.unpack(key)
    seq, message_id = _TWO_U64.unpack(value)
    return priority, stamp, seq, message_id


# Marks instead of bits, for messages that only cursor groups have yet to come to. As numbers they have every bit set or
# are told apart first: no leasing group, not even one to come, needs such a message.
KEPT = -1  # all leasing groups were done with it
GONE = -2  # it was purged or deleted, and must not be seen
_MARKS = {b"\0": KEPT, b"": GONE}
_OF_MARKS = {mark: value for value, mark in _MARKS.items()}


def write_mask(mask: int) -> bytes:
    return mask.to_bytes((mask.bit_length() + 7) // 8, "big") if mask > 0 else _OF_MARKS[mask]


def read_mask(value: bytes) -> int:
    mark = _MARKS.get(value)
    return int.from_bytes(value, "big") if mark is None else mark


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a live message stands: all that is needed to deliver or remove it, without its payload."""

    stamp: int
    seq: int
    key: bytes
    flags: int
    priority: int
    size_bytes: int


def read_ready(key: bytes, value: bytes) -> Place:
    _, priority, stamp = _PLACE.unpack(key)
    seq, hashed, flags, size_bytes = _READY_VALUE.unpack(value)
    return Place(stamp, seq, UNKEYED if hashed == _NO_KEY else hashed, flags, priority, size_bytes)


Listed = tuple[int, int, int, int, bytes, int, int]
"""A row of READY as it lies: shard, priority, stamp, sequence, key hash, flags, size."""

NO_KEY_HASH = _NO_KEY  # in place of a key hash
_LISTED = Layout(">IBQQ8sBI")


def read_places(rows: list[tuple[bytes, bytes]]) -> list[Place]:
    """`read_ready` for many, in half of the time."""
    unkeyed, no_key = UNKEYED, _NO_KEY
    return [
        Place(stamp, seq, unkeyed if hashed == no_key else hashed, flags, priority, size_bytes)
        for _, priority, stamp, seq, hashed, flags, size_bytes in _LISTED.iter_unpack(b"".join(chain(*rows)))
    ]


def read_listed(rows: list[tuple[bytes, bytes]]) -> list[Listed]:
    """`read_ready` for many, in half the time."""
    unpack = _LISTED.unpack
    return [unpack(key + value) for key, value in rows]


def scheduled_value(message_id: int, priority: int, key: bytes, flags: int, size_bytes: int) -> bytes:
    return _SCHEDULED_VALUE.pack(message_id, priority, key or _NO_KEY, flags, size_bytes)


def read_scheduled(key: bytes, value: bytes) -> tuple[int, int, Place]:
    """Due time, id, and the place of the message, which has no stamp before it falls due."""
    _, due, seq = _SHARD_U64_U64.unpack(key)
    message_id, priority, hashed, flags, size_bytes = _SCHEDULED_VALUE.unpack(value)
    key_hash = UNKEYED if hashed == _NO_KEY else hashed
    return due, message_id, Place(0, seq, key_hash, flags, priority, size_bytes)


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
        """Whether a shard takes one live message of this source only. Who replays wants another one, each time."""
        return self.reason != REPLAYED


class WorkflowState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Workflow state of a delivery (core/workflow.py). `etag` is 1 for the first and grows with every change.

    No `data`: it was dropped. What remains is where the etags go on. Only STATES has such ones."""

    etag: int
    data: bytes | None


class Extra(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What most messages do not have."""

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

    @property
    def metadata_only(self) -> bool:
        """Whether it only travels with the message: nothing of it decides anything, or has to be remembered."""
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
    deliver_at: int  # 0: at once
    expires_at: int  # 0: never
    extra: Extra
    payload: bytes


NO_EXTRA = Extra()
MESSAGE_VERSION = 1
_MESSAGE = Layout(">BQQQQBI")
_MESSAGE_SIZE = _MESSAGE.size
_ID_AT, _ID_END = 1, 9  # in a message's head: before the id is the version
_encoder = msgspec.msgpack.Encoder()
_encode = _encoder.encode
_decode_extra = msgspec.msgpack.Decoder(Extra).decode


def write_message(
    message_id: int, enqueued_at: int, deliver_at: int, expires_at: int, priority: int, extra: Extra, payload: bytes
) -> bytes:
    packed = b"" if extra is NO_EXTRA else _encode(extra)
    head = _MESSAGE.pack(MESSAGE_VERSION, message_id, enqueued_at, deliver_at, expires_at, priority, len(packed))
    return head + packed + payload if packed else head + payload


def homogeneous_messages(
    first_id: int, enqueued_at: int, expires_at: int, priority: int, extra: Extra, payloads: BytesColumn
) -> HomogeneousRun:
    """`write_message` for messages with consecutive ids that differ in nothing else but their payloads."""
    packed = b"" if extra is NO_EXTRA else _encode(extra)
    head = _MESSAGE.pack(MESSAGE_VERSION, 0, enqueued_at, 0, expires_at, priority, len(packed))
    return HomogeneousRun(head[:_ID_AT], first_id, head[_ID_END:] + packed, payloads)


def write_extras(extras: list[Extra]) -> list[bytes]:
    """Extras as they stand in message records. Messages of one key often share theirs, which is then written once."""
    if len(shared := {id(extra): extra for extra in extras}) == len(extras):
        return [b"" if extra is NO_EXTRA else _encode(extra) for extra in extras]
    packed = {number: b"" if extra is NO_EXTRA else _encode(extra) for number, extra in shared.items()}
    return [packed[id(extra)] for extra in extras]


def read_extra(packed: bytes) -> Extra:
    return _decode_extra(packed) if packed else NO_EXTRA


def write_message_heads(
    ids: list[int], enqueued_at: int, expires_at: int, priority: int, extra_sizes: list[int]
) -> list[bytes]:
    """What stands in records of messages before extra and payload."""
    pack, version = _MESSAGE.pack, MESSAGE_VERSION
    return [
        pack(version, message_id, enqueued_at, 0, expires_at, priority, extra_size)
        for message_id, extra_size in zip(ids, extra_sizes, strict=True)
    ]


def keyed_ready_values(first_seq: int, keys: list[bytes], sizes_bytes: list[int]) -> list[bytes]:
    """`ready_value` for messages in sequence that have no flags; NO_KEY_HASH where there is no key."""
    pack = _READY_VALUE.pack
    return [
        pack(seq, key, 0, size_bytes)
        for seq, (key, size_bytes) in enumerate(zip(keys, sizes_bytes, strict=True), first_seq)
    ]


def read_message(seq: int, value: bytes) -> Message:
    version, message_id, enqueued_at, deliver_at, expires_at, priority, extra_size = _MESSAGE.unpack_from(value)
    if version != MESSAGE_VERSION:
        raise FormatUnknown(path="a message record", found=version, known=MESSAGE_VERSION)
    payload_at = _MESSAGE_SIZE + extra_size
    extra = _decode_extra(value[_MESSAGE_SIZE:payload_at]) if extra_size else NO_EXTRA
    return Message(message_id, seq, priority, enqueued_at, deliver_at, expires_at, extra, value[payload_at:])


class HomogeneousBatch(NamedTuple):
    """Messages with consecutive ids that differ in nothing else but their payloads."""

    first: Message  # without its payload
    payloads: BytesColumn

    def part(self, start: int, end: int) -> HomogeneousBatch:
        """Those from one index up to, not including, another."""
        first = replace(self.first, id=self.first.id + start, seq=self.first.seq + start)
        return HomogeneousBatch(first, self.payloads.part(start, end))


def read_run(first_seq: int, run: RecordRun) -> list[Message] | HomogeneousBatch:
    """Message records in sequence; a series is not taken apart."""
    if not isinstance(run, HomogeneousRun):
        return read_messages(list(range(first_seq, first_seq + len(run))), run[:])
    head = run.begin + _U64.pack(run.number) + run.middle
    return HomogeneousBatch(read_message(first_seq, head), run.column)


def read_messages(seqs: list[int], values: list[bytes]) -> list[Message]:
    """`read_message` for many, in a third of the time: those that came together differ in id and payload only, those of
    one key mostly have the same extra."""
    unpack, extra_at, version, number = _MESSAGE.unpack_from, _MESSAGE_SIZE, MESSAGE_VERSION, int.from_bytes
    extras = {b"": NO_EXTRA}
    messages: list[Message] = []
    common: bytes | None = None  # what stood between id and payload of the last one
    enqueued_at = deliver_at = expires_at = priority = payload_at = 0
    extra = NO_EXTRA
    for seq, value in zip(seqs, values, strict=True):
        if common is not None and value.startswith(common, _ID_END) and value[0] == version:
            message_id = number(value[1:_ID_END], "big")
        else:
            found, message_id, enqueued_at, deliver_at, expires_at, priority, extra_size = unpack(value)
            if found != version:
                raise FormatUnknown(path="a message record", found=found, known=version)
            payload_at = extra_at + extra_size
            common = value[_ID_END:payload_at]
            packed = value[extra_at:payload_at]
            known = extras.get(packed)
            extra = extras[packed] = _decode_extra(packed) if known is None else known
        payload = value[payload_at:]
        messages.append(Message(message_id, seq, priority, enqueued_at, deliver_at, expires_at, extra, payload))
    return messages


# --- deliveries -----------------------------------------------------------------------------------------------------


class LeaseBatch:
    """First leases that one call gave, in memory. Their record goes when none is left in it.

    Most of them are settled as they were given. So there is a `Delivery` only for those of which somebody has asked for
    one (core/deliveries.py); of the others the columns of the record are all there is.
    """

    __slots__ = ("_indexes", "gone", "gone_stored", "leases", "left", "made", "token")

    def __init__(self, token: int, leases: Leases, gone: int = 0) -> None:
        self.token = token  # of its first lease
        self.leases = leases
        self.left = len(leases.ids) - gone.bit_count()
        self.gone = gone  # bits of the leases that are over, or whose delivery has a record of its own
        self.made = 0  # bits of those for which there is, or was, a Delivery
        self.gone_stored = gone > 0  # the bits in `gone` have a record
        self._indexes: dict[int, int] = {}

    def index_of(self, message_id: int) -> int:
        """Where a message stands among them."""
        ids = self.leases.ids
        if ids[0] == message_id:  # most acks begin with it
            return 0
        if not self._indexes:
            self._indexes = dict(zip(ids, range(len(ids)), strict=True))
        return self._indexes[message_id]

    def count_unchanged(self, first: int, ids: list[int], tokens: list[int], at: int) -> int:
        """How many of `ids` and `tokens` from index `at` on are the leases from index `first` on, in this order, as far
        as no delivery was made of them and they have neither keys nor flags."""
        leases = self.leases
        count = min(len(ids) - at, len(leases.ids) - first)
        part, asked = slice(first, first + count), slice(at, at + count)
        if leases.ids[part] != ids[asked] or leases.tokens[part] != tokens[asked]:
            mine, theirs = zip(leases.ids[part], leases.tokens[part]), zip(ids[asked], tokens[asked])  # noqa: B905
            count = list(map(eq, mine, theirs)).index(False)
        changed = (self.gone | self.made) >> first & (1 << count) - 1
        if changed:
            count = (changed & -changed).bit_length() - 1
        part = slice(first, first + count)
        return 0 if any(leases.flags[part]) or any(leases.keys[part]) else count

    def make(self, index: int) -> Delivery:
        """A delivery, which may change from now on."""
        self.made |= 1 << index
        return self.view(index)

    def view(self, index: int) -> Delivery:
        """A delivery, to be looked at."""
        leases = self.leases
        return Delivery(
            leases.ids[index],
            leases.seqs[index],
            leases.priorities[index],
            leases.stamps[index],
            leases.stamps[index],
            leases.keys[index],
            leases.flags[index],
            0,
            leases.enqueued_at[index],
            leases.expires_at[index],
            first_at=leases.leased_at,
            leased_at=leases.leased_at,
            deadline=leases.deadline,
            token=leases.tokens[index],
            size_bytes=leases.sizes_bytes[index],
            consumer=leases.consumer,
            protocol=leases.protocol,
            batch=self,
            index=index,
        )


class Delivery(msgspec.Struct, gc=False):
    """What became of a message in one group, from its first lease on. Leased while `token` is not 0, else waiting.

    `stamp` is its place among the deliveries that are ready again, `order` the message's own place. `ready_at` is when
    it may be leased again; the message's own attempt number is `failures + 1`.
    """

    id: int
    seq: int
    priority: int
    order: int
    stamp: int
    key: bytes
    flags: int
    failures: int
    enqueued_at: int
    expires_at: int
    first_at: int = 0
    leased_at: int = 0
    deadline: int = 0
    token: int = 0
    ready_at: int = 0
    size_bytes: int = 0
    consumer: str = ""
    protocol: str = ""
    error: str = ""
    doom: str = ""  # why it must go to the dead queue, while that queue cannot take it
    batch: LeaseBatch | None = None  # that its lease is part of; None: it has a record of its own
    index: int = 0  # in the batch

    @property
    def place(self) -> Place:
        return Place(self.order, self.seq, self.key, self.flags, self.priority, self.size_bytes)


DELIVERY_VERSION = 1
_DELIVERY = Layout(">BQBQQ8sBIQQQQQQQI")
_DELIVERY_SIZE = _DELIVERY.size
_decode_texts = msgspec.msgpack.Decoder(tuple[str, str, str, str]).decode


def write_delivery(d: Delivery) -> bytes:
    return _DELIVERY.pack(
        DELIVERY_VERSION,
        d.seq,
        d.priority,
        d.order,
        d.stamp,
        d.key or _NO_KEY,
        d.flags,
        d.failures,
        d.enqueued_at,
        d.expires_at,
        d.first_at,
        d.leased_at,
        d.deadline,
        d.token,
        d.ready_at,
        d.size_bytes,
    ) + _encode((d.consumer, d.protocol, d.error, d.doom))


def read_delivery(key: bytes, value: bytes) -> Delivery:
    _, _, message_id = _DELIVERY_KEY.unpack(key)
    (
        version,
        seq,
        priority,
        order,
        stamp,
        hashed,
        flags,
        failures,
        enqueued_at,
        expires_at,
        first_at,
        leased_at,
        deadline,
        token,
        ready_at,
        size_bytes,
    ) = _DELIVERY.unpack_from(value)
    if version != DELIVERY_VERSION:
        raise FormatUnknown(path="a delivery record", found=version, known=DELIVERY_VERSION)
    consumer, protocol, error, doom = _decode_texts(value[_DELIVERY_SIZE:])
    return Delivery(
        message_id,
        seq,
        priority,
        order,
        stamp,
        UNKEYED if hashed == _NO_KEY else hashed,
        flags,
        failures,
        enqueued_at,
        expires_at,
        first_at,
        leased_at,
        deadline,
        token,
        ready_at,
        size_bytes,
        consumer,
        protocol,
        error,
        doom,
    )


# --- leases ----------------------------------------------------------------------------------------------------------

LEASES_VERSION = 1
LEASES_PART, GONE_PART = 0, 1


class Leases(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """First leases that one call gave, by columns: most consumers settle all of them before they end. A record for each
    would cost more than all the rest of a lease."""

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


def first_leases(
    places: list[Place],
    messages: list[Message],
    tokens: list[int],
    leased_at: int,
    deadline: int,
    consumer: str,
    protocol: str,
) -> Leases:
    return Leases(
        LEASES_VERSION,
        leased_at,
        deadline,
        consumer,
        protocol,
        [message.id for message in messages],
        tokens,
        [place.seq for place in places],
        [place.priority for place in places],
        [place.stamp for place in places],
        [place.key for place in places],
        [place.flags for place in places],
        [message.enqueued_at for message in messages],
        [message.expires_at for message in messages],
        [place.size_bytes for place in places],
    )


def write_leases(leases: Leases) -> bytes:
    return _encode(leases)


def write_gone(gone: int) -> bytes:
    return gone.to_bytes((gone.bit_length() + 7) // 8, "big")


_decode_leases = msgspec.msgpack.Decoder(Leases).decode


def read_leases(rows: list[tuple[bytes, bytes]]) -> Iterator[tuple[int, Delivery]]:
    """From the LEASES rows of a shard, the number of the group and the delivery of each lease that is not over."""
    gone = {key[:-1]: int.from_bytes(value, "big") for key, value in rows if key[-1] == GONE_PART}
    for key, value in rows:
        if key[-1] == LEASES_PART:
            _, group, token, _ = _LEASES_KEY.unpack(key)
            leases = _decode_leases(value)
            if leases.version != LEASES_VERSION:
                raise FormatUnknown(path="a record of leases", found=leases.version, known=LEASES_VERSION)
            batch = LeaseBatch(token, leases, gone.get(key[:-1], 0))
            for index in range(len(leases.ids)):
                if not batch.gone >> index & 1:
                    yield group, batch.make(index)


# --- workflow state -------------------------------------------------------------------------------------------------

STATE_VERSION = 1
DROPPED_VERSION = 2  # has no data
_STATE = Layout(">BQ")


def write_state(state: WorkflowState) -> bytes:
    if state.data is None:
        return _STATE.pack(DROPPED_VERSION, state.etag)
    return _STATE.pack(STATE_VERSION, state.etag) + state.data


def read_state(value: bytes) -> WorkflowState:
    version, etag = _STATE.unpack_from(value)
    if version == DROPPED_VERSION:
        return WorkflowState(etag, None)
    if version != STATE_VERSION:
        raise FormatUnknown(path="a workflow state", found=version, known=STATE_VERSION)
    return WorkflowState(etag, value[_STATE.size :])


# --- heads: written once a commit for every shard and group it touched ------------------------------------------------


class ShardHead(msgspec.Struct, array_like=True):
    """Where a shard stands, and what has happened in it."""

    next_seq: int = 1
    ready: int = 0  # READY records
    scheduled: int = 0  # SCHEDULED records
    size_bytes: int = 0  # payloads of live messages
    priorities: dict[int, int] = {}  # READY records by priority
    expiry_high: int = 0  # a message that expires before this has an EXPIRIES record
    next_expiry: int = 0  # no message expires before this; 0: none expires
    next_early: int = 0  # the same for EXPIRIES
    expiry_seq: int = 1  # where the search for expired messages goes on
    next_due: int = 0  # no SCHEDULED record falls due before this; 0: there is none
    dedup_end: int = 0  # no DEDUP record ends before this; 0: there is none
    enqueued: int = 0
    duplicates: int = 0
    refused: int = 0
    early_at: bytes = b""  # where the search in EXPIRIES goes on; empty: at its beginning
    unneeded_seq: int = 0  # where the search goes on for messages that only a removed group needed; 0: none is on


class GroupHead(msgspec.Struct, array_like=True):
    """Where a leasing group stands in a shard. It starts at sequence `start`; in a priority without a frontier of its
    own it stands at `base`."""

    start: int
    base: int
    frontiers: dict[int, int]
    fresh: int = 0  # live messages it has not touched
    counters: dict[str, int] = {}
    delivery_ms: list[int] = []  # histograms: enqueue to first lease, lease to ack
    processing_ms: list[int] = []
    skips: list[int] = []  # sequences beyond its frontiers that it needs no more


class CursorHead(msgspec.Struct, array_like=True):
    """Where a cursor group stands in a shard: it needs no sequence up to `committed`.

    It was made when the next sequence was `made_at`; before that, message records may lie about that nobody needs.
    """

    made_at: int
    committed: int
    lost_from: int = 0
    lost_to: int = 0
    counters: dict[str, int] = {}


def write_head(head: ShardHead | GroupHead | CursorHead) -> bytes:
    return _encode(head)


read_shard_head = msgspec.msgpack.Decoder(ShardHead).decode
read_group_head = msgspec.msgpack.Decoder(GroupHead).decode
read_cursor_head = msgspec.msgpack.Decoder(CursorHead).decode
