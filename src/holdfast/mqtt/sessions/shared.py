"""Shared subscriptions: each message goes to one member of the group, in turn.

Members that can take a message immediately come first, then those that are connected, then those that are away and
whose session keeps it for them. A message that a member did not acknowledge before it left goes to another connected
member; if there is none it waits in the session, and when the session ends it goes to any other. At QoS 2 what was
sent stays with the member it was sent to [MQTT-4.8.2-4], [MQTT-4.8.2-5].
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.mqtt.sessions.session import Session, Subscriber


class Share:
    """The members of one shared subscription, which is named by its whole filter, `$share/<group>/<filter>`."""

    __slots__ = ("_members", "_order", "_turn", "filter")

    def __init__(self, topic_filter: str) -> None:
        self.filter = topic_filter
        self._members: dict[Session, Subscriber] = {}
        self._order: list[Subscriber] = []
        self._turn = 0

    def __len__(self) -> int:
        return len(self._members)

    def add(self, subscriber: Subscriber) -> None:
        self._members[subscriber.session] = subscriber
        self._order = list(self._members.values())

    def remove(self, session: Session) -> None:
        del self._members[session]
        self._order = list(self._members.values())

    def candidates(self, connected_only: bool = False) -> Iterator[Subscriber]:
        """Members in the order in which they should be offered a message; the first that takes it ends the iteration.
        The next message starts behind the member that was asked last."""
        order = self._order
        count = len(order)
        start = self._turn
        for accepts in (_ready, _connected) if connected_only else (_ready, _connected, _away):
            for step in range(count):
                at = (start + step) % count
                if accepts(order[at].session):
                    self._turn = at + 1
                    yield order[at]


def _ready(session: Session) -> bool:
    connection = session.connection
    return connection is not None and connection.quota > 0 and not connection.paused and not session.queue


def _connected(session: Session) -> bool:
    return session.connection is not None and not _ready(session)


def _away(session: Session) -> bool:
    return session.connection is None
