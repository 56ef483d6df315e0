"""The ports of the plain broker: access control, and the bridge that claims topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from holdfast.mqtt.codec import Properties, PubAck, Publish, Subscription, Will
from holdfast.mqtt.sessions.connection import Connection
from holdfast.mqtt.sessions.session import Session, Subscriber, Terms


class Access(Protocol):
    """Answers with a reason code; 0 is yes. The client was authenticated before its CONNECT came to the hub."""

    def may_publish(self, connection: Connection, topic: str) -> int:
        """Asked for every PUBLISH, and for a will when it is set."""

    def may_subscribe(self, connection: Connection, topic_filter: str) -> int:
        """Asked for every filter, `$share/...` included, and again for those of a session that is resumed."""

    @property
    def limited(self) -> bool:
        """Whether `admit` must be asked at all."""

    def admit(self, connection: Connection, size_bytes: int) -> str:
        """Counts a message on a plain topic against the rate; says what is wrong if that is too high. A bridge counts
        its own."""


class PublishBatch:
    """PUBLISHes of one QoS and topic that are a bridge's, one after another. Their answers (success) stand in their
    place already; `Hub.reject_publishes` puts refusals there, by index, until the turn is taken."""

    __slots__ = ("packets", "place", "refusals")

    def __init__(self, packets: list[Publish], place: int = -1) -> None:
        self.packets = packets
        self.place = place
        self.refusals: dict[int, Refusal] = {}


class Refusal(NamedTuple):
    """Why a PUBLISH was refused."""

    reason_code: int
    reason: str


class Bridge(Protocol):
    """Claims topics: what begins with one of `prefixes` is the bridge's, and the plain broker looks at it no more.

    Packet identifiers, aliases, access and limits are checked before. A shared subscription is claimed by the filter
    inside it. The bridge must have acted on what it was given, and refused what it does not accept, before the turn is
    taken: the answers are sent when the turn's batch is durable.
    """

    prefixes: tuple[str, ...]

    def publish(self, connection: Connection, batches: Sequence[PublishBatch], now: int) -> None:
        """All claimed PUBLISHes of one read, in order. Of QoS 2 only the first arrives: retransmissions are answered by
        the hub."""

    def captures(self, namespace: str, topic: str) -> bool:
        """Whether the bridge wants a copy of what is published on an ordinary topic."""

    def capture(self, connection: Connection | None, namespace: str, publishes: PublishBatch, now: int) -> None:
        """A copy of an ordinary message; a will has no connection, and cannot be refused."""

    def acknowledged(self, acks: Sequence[tuple[PubAck, object]]) -> None:
        """PUBACKs of a read for what the bridge has sent, each with the lease behind its packet identifier."""

    def will(self, namespace: str, client_id: str, will: Will, now: int) -> None:
        """A will on a claimed topic is due."""

    def subscribe(
        self, connection: Connection, session: Session, subscription: Subscription, properties: Properties, now: int
    ) -> Granted:
        """What the client gets. The hub keeps the subscription with the session."""

    def unsubscribed(self, connection: Connection, subscriber: Subscriber, now: int) -> None:
        """The subscription is gone."""

    def resumed(self, connection: Connection, session: Session, now: int) -> None:
        """A client is back on a session with subscriptions of the bridge's."""

    def closed(self, connection: Connection, session: Session, graceful: bool, now: int) -> None:
        """The connection has ended; `graceful` if the client said so with DISCONNECT."""

    def ended(self, session: Session, now: int) -> None:
        """A session with subscriptions of the bridge's is over; it has no connection any more."""


class Granted(NamedTuple):
    """The code for SUBACK; the terms if it is a success, what is wrong if it is not."""

    code: int
    terms: Terms | None = None
    reason: str = ""


class AllowAll:
    """Everybody may do everything, as fast as they can."""

    limited = False

    def may_publish(self, connection: Connection, topic: str) -> int:  # noqa: ARG002 - the port's signature
        return 0

    def may_subscribe(self, connection: Connection, topic_filter: str) -> int:  # noqa: ARG002 - the same
        return 0

    def admit(self, connection: Connection, size_bytes: int) -> str:  # noqa: ARG002 - the same
        return ""
