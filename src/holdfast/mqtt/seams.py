"""Where other rooms join the plain broker: who may do what, and topics that belong to somebody else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.mqtt.codec import Properties, Publish, Subscription, Will
from holdfast.mqtt.connection import Connection


class Access(Protocol):
    """Answers with a reason code; 0 is yes. Who the client is was found out before its CONNECT came to the hub."""

    def may_publish(self, connection: Connection, topic: str) -> int:
        """Asked for every PUBLISH, and for a will when it is set."""

    def may_subscribe(self, connection: Connection, topic_filter: str) -> int:
        """Asked for every filter, `$share/...` included."""


class Bridge(Protocol):
    """Claims topics: what begins with one of `prefixes` is the bridge's, and the plain broker looks at it no more.

    Packet identifiers, aliases, access and limits were seen to before. A shared subscription is claimed by the filter
    inside it.
    """

    prefixes: tuple[str, ...]

    def publish(self, connection: Connection, packets: Sequence[Publish], now: int) -> None:
        """All claimed PUBLISHes of one read, in order. Each of QoS 1 or 2 must be answered, in order, by `Hub.answer`;
        of QoS 2 only the first arrives, retransmissions are answered by the hub."""

    def will(self, namespace: str, client_id: str, will: Will, now: int) -> None:
        """A will on a claimed topic is due."""

    def subscribe(self, connection: Connection, subscription: Subscription, properties: Properties, now: int) -> int:
        """Returns the code for SUBACK."""

    def unsubscribe(self, connection: Connection, topic_filter: str, now: int) -> int:
        """Returns the code for UNSUBACK."""

    def closed(self, connection: Connection, graceful: bool, now: int) -> None:
        """The connection has ended; `graceful` if the client said so with DISCONNECT."""


class AllowAll:
    """Everybody may do everything."""

    def may_publish(self, connection: Connection, topic: str) -> int:  # noqa: ARG002 - the seam's signature
        return 0

    def may_subscribe(self, connection: Connection, topic_filter: str) -> int:  # noqa: ARG002 - the same
        return 0
