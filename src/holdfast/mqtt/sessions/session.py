"""A session: what the broker remembers of a client, connected or not.

Towards the client each message of QoS 1 or 2 is an `Outgoing`. It waits in `queue`, then is in flight under a packet
identifier until the client has answered: PUBACK at QoS 1; at QoS 2 PUBREC, which makes it `released` (the message
itself is then no longer needed), and PUBCOMP. After a reconnect those in flight are sent again, before the queue.

Messages that a bridge sends have identifiers of the same range; what stands behind one (`leases`) is the bridge's own.

From the client only the identifiers of QoS 2 messages are kept, from PUBLISH to PUBREL: a message that comes again
meanwhile is the same one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.core.queue import qualified_consumer
from holdfast.mqtt.codec import Will
from holdfast.mqtt.sessions.messages import Message
from holdfast.mqtt.sessions.settings import NEVER
from holdfast.units import SECOND

if TYPE_CHECKING:
    from holdfast.mqtt.sessions.connection import Connection

PACKET_ID_MAX = 0xFFFF
OWNER_END: Final = b"\xff"
"""Between an owner and a client identifier in a key: no UTF-8 has this byte."""


class Outgoing:
    """One message on its way to one client. `share` is the shared subscription it came by, if any."""

    __slots__ = ("ids", "message", "order", "packet_id", "qos", "retain", "share")

    def __init__(
        self, message: Message | None, qos: int, retain: bool, ids: tuple[int, ...] = (), share: str = ""
    ) -> None:
        self.message = message  # None once the client has received it at QoS 2
        self.qos = qos
        self.retain = retain
        self.ids = ids
        self.share = share
        self.order = 0
        self.packet_id = 0

    @property
    def size_bytes(self) -> int:
        """What it holds in memory; nothing once only its identifier is left."""
        return 0 if self.message is None else self.message.size_bytes


class Terms(msgspec.Struct, frozen=True, array_like=True):
    """What a client agreed on with a bridge when it subscribed; `native`: its PUBACK settles the delivery."""

    group: str = ""
    prefetch: int = 0
    native: bool = False


class Subscriber(msgspec.Struct, frozen=True, eq=False):
    """One subscription of one session; `ids` is its identifier, if it has one. One with `terms` is a bridge's."""

    session: Session
    filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    ids: tuple[int, ...] = ()
    terms: Terms | None = None


class RetainedSend:
    """A subscription that is being sent retained messages; `topics` are those to come, the next one last."""

    __slots__ = ("subscriber", "topics")

    def __init__(self, subscriber: Subscriber) -> None:
        self.subscriber = subscriber
        self.topics: list[str] | None = None


class Session:
    """`owner` is the identity of who began it; identifiers of clients are unique within it. `expiry_s` is what the
    client asked for, cut to our maximum; with 0 the session ends with its connection and nothing of it is stored."""

    __slots__ = (
        "_packet_id", "client_id", "connection", "ended_at", "expiry_s", "incoming", "inflight",
        "inflight_bytes", "key", "leases", "namespace", "next_expiry", "order", "owner", "protocol", "queue",
        "queued_bytes", "resend", "reserved_for", "subscriptions", "will", "will_at",
    )  # fmt: skip

    def __init__(self, namespace: str, owner: str, client_id: str, protocol: int, expiry_s: int) -> None:
        self.namespace = namespace
        self.client_id = client_id
        self.protocol = protocol
        self.expiry_s = expiry_s
        self.assign(owner)
        self.reserved_for = ""  # without an owner: the name of who may adopt it; empty: whoever comes first
        self.connection: Connection | None = None
        self.ended_at = 0  # when the connection was closed
        self.will: Will | None = None
        self.will_at = 0
        self.subscriptions: dict[str, Subscriber] = {}
        self.incoming: set[int] = set()
        self.inflight: dict[int, Outgoing] = {}  # those sent in order, then, as PUBRECs came, those released in order
        self.inflight_bytes = 0  # of the messages among them that the client has not received
        self.leases: dict[int, object] = {}  # in flight from a bridge, by packet identifier
        self.resend: deque[Outgoing] = deque()  # of those in flight: to be sent again on this connection
        self.queue: deque[Outgoing] = deque()
        self.queued_bytes = 0
        self.next_expiry = 0  # before this instant nothing in the queue expires; 0: nothing does
        self.order = 0
        self._packet_id = 0

    def assign(self, owner: str) -> None:
        """It is this owner's; empty: it was begun while no credentials were configured."""
        self.owner = owner
        self.key = self.namespace.encode() + b"\0" + (owner.encode() + OWNER_END if owner else b"")
        self.key += self.client_id.encode()

    @property
    def consumer(self) -> str:
        """The name under which it holds leases."""
        return qualified_consumer(self.owner, self.client_id)

    @property
    def persistent(self) -> bool:
        return self.expiry_s > 0

    def expires_at(self) -> int | None:
        """When it ends if the client stays away."""
        return None if self.expiry_s == NEVER else self.ended_at + self.expiry_s * SECOND

    def next_order(self) -> int:
        self.order += 1
        return self.order

    def next_packet_id(self) -> int:
        """An identifier that is not in flight; there is one, because the window is smaller than their number."""
        packet_id = self._packet_id
        while True:
            packet_id = packet_id % PACKET_ID_MAX + 1
            if packet_id not in self.inflight and packet_id not in self.leases:
                self._packet_id = packet_id
                return packet_id

    def allocate_packet_ids(self, leases: Sequence[object]) -> list[int]:
        """Identifiers for messages of a bridge's."""
        packet_id = self._packet_id
        inflight = self.inflight
        taken = self.leases
        ids: list[int] = []
        for lease in leases:
            packet_id = packet_id % PACKET_ID_MAX + 1
            while packet_id in taken or packet_id in inflight:
                packet_id = packet_id % PACKET_ID_MAX + 1
            taken[packet_id] = lease
            ids.append(packet_id)
        self._packet_id = packet_id
        return ids

    def push(self, entry: Outgoing, message: Message) -> None:
        self.queue.append(entry)
        self.queued_bytes += message.size_bytes
        if message.expires_at and (not self.next_expiry or message.expires_at < self.next_expiry):
            self.next_expiry = message.expires_at

    def clear(self) -> None:
        """It is over."""
        self.inflight.clear()
        self.incoming.clear()
        self.queue.clear()
        self.inflight_bytes = self.queued_bytes = self.next_expiry = 0

    def drop_expired(self, now: int) -> list[Outgoing]:
        """Take what has expired out of the queue."""
        if not 0 < self.next_expiry <= now:
            return []
        expired: list[Outgoing] = []
        entries, self.queue = self.queue, deque()
        self.queued_bytes = self.next_expiry = 0
        for entry in entries:
            assert entry.message is not None
            if entry.message.expired(now):
                expired.append(entry)
            else:
                self.push(entry, entry.message)
        return expired
