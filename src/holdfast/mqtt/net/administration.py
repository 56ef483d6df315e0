"""What an administrator sees of MQTT clients, and can do with them: sessions, subscriptions, retained messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from holdfast.broker.commit.group_commit import GroupCommit
from holdfast.mqtt.codec import Properties, reasons
from holdfast.mqtt.net.link import Link
from holdfast.mqtt.sessions.hub import Hub
from holdfast.mqtt.sessions.messages import Message
from holdfast.mqtt.sessions.session import Session

ENDED: Final = "an administrator has ended the connection"


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session, connected or not."""

    owner: str
    client_id: str
    consumer: str
    """The name under which it holds leases."""
    version: int
    peer: str
    """Empty: it is not connected."""
    user: str
    subscriptions: list[tuple[str, int]]
    """Filters, with the QoS of each."""
    queued: int
    in_flight: int
    leases: int
    expires_at: int | None
    """When it ends if the client stays away; None: it is connected, or never ends."""

    @property
    def connected(self) -> bool:
        return bool(self.peer)


class RetainedView(msgspec.Struct, frozen=True):
    topic: str
    payload: bytes
    qos: int
    expires_at: int


class MqttAdministration:
    """See the module. Whoever asks is authorized by the caller."""

    def __init__(self, hub: Callable[[], Hub | None], clock: Callable[[], int], commit: GroupCommit) -> None:
        self._hub = hub
        self._clock = clock
        self._commit = commit

    def sessions(self, namespace: str) -> Iterator[SessionView]:
        """The sessions of a namespace."""
        for session in self._sessions(namespace):
            yield _view(session)

    def _sessions(self, namespace: str) -> list[Session]:
        hub = self._hub()
        found = hub.namespaces.get(namespace) if hub is not None else None
        return list(found.sessions.values()) if found is not None else []

    def disconnect(self, namespace: str, owner: str, client_id: str) -> bool:
        """Close a client's connection; it may come again. False: it is not connected."""
        hub = self._hub()
        for session in self._sessions(namespace):
            if (session.owner, session.client_id) == (owner, client_id) and session.connection is not None:
                assert hub is not None
                hub.close(session.connection, reasons.ADMINISTRATIVE_ACTION, ENDED, self._clock())
                self._commit.schedule()
                return True
        return False

    def retained(self, namespace: str) -> Iterator[RetainedView]:
        """The retained messages of a namespace."""
        hub = self._hub()
        found = hub.namespaces.get(namespace) if hub is not None else None
        for topic in list(found.retained) if found is not None else ():
            message = found.retained.get(topic) if found is not None else None
            if message is not None:
                yield RetainedView(topic, message.payload, message.qos, message.expires_at)

    async def delete_retained(self, namespace: str, topic: str) -> bool:
        """Remove a retained message, durably, as a client does: by an empty one, which subscribers get. False: there is
        none."""
        hub = self._hub()
        found = hub.namespaces.get(namespace) if hub is not None else None
        if hub is None or found is None or found.retained.get(topic) is None:
            return False
        hub.publish(namespace, Message(topic, b"", 0, True, Properties()), self._clock())
        await self._commit.durable()
        return True


def _view(session: Session) -> SessionView:
    connection = session.connection
    link = connection.tag if connection is not None else None
    return SessionView(
        owner=session.owner,
        client_id=session.client_id,
        consumer=session.consumer,
        version=session.protocol,
        peer=link.peer if isinstance(link, Link) else "",
        user=(connection.username or "") if connection is not None else "",
        subscriptions=[(subscriber.filter, subscriber.qos) for subscriber in session.subscriptions.values()],
        queued=len(session.queue),
        in_flight=len(session.inflight),
        leases=len(session.leases),
        expires_at=session.expires_at() if connection is None else None,
    )
