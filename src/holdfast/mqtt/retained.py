"""Retained messages: the last one of each topic, for those who subscribe later."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.mqtt.connection import Connection
from holdfast.mqtt.keeper import Keeper
from holdfast.mqtt.messages import Fan, Message
from holdfast.mqtt.sender import Sender
from holdfast.mqtt.session import Outgoing, Session, Subscriber
from holdfast.mqtt.settings import MqttSettings
from holdfast.mqtt.spaces import Space
from holdfast.mqtt.timers import Timers


class RetainedTopic(NamedTuple):
    """Names the deadline of a retained message that expires."""

    namespace: str
    topic: str


Deadline = Connection | Session | RetainedTopic


class Retainer:
    """Keeps them, and hands them to new subscriptions."""

    __slots__ = ("_keeper", "_sender", "_settings", "_timers")

    def __init__(self, settings: MqttSettings, keeper: Keeper, sender: Sender, timers: Timers[Deadline]) -> None:
        self._settings = settings
        self._keeper = keeper
        self._sender = sender
        self._timers = timers

    def put(self, space: Space, message: Message) -> bool:
        """Keep the message in place of the one before; an empty payload only removes that [MQTT-3.3.1-6 and -7].
        False if there is no room for another topic."""
        topic = message.topic
        if not message.payload:
            self.remove(space, topic)
            return True
        before = space.retained.get(topic)
        if before is None and len(space.retained) >= self._settings.retained_messages_max:
            return False
        self._keeper.retain(space.name, message)
        space.retained.put(topic, message)
        if before is not None:
            self._keeper.unretain(space.name, before, replaced=True)
        self.watch(space, message)
        return True

    def watch(self, space: Space, message: Message) -> None:
        """See to it that the message goes when it expires."""
        key = RetainedTopic(space.name, message.topic)
        if message.expires_at:
            self._timers.set(key, message.expires_at)
        else:
            self._timers.cancel(key)

    def remove(self, space: Space, topic: str) -> None:
        message = space.retained.remove(topic)
        if message is not None:
            self._timers.cancel(RetainedTopic(space.name, topic))
            self._keeper.unretain(space.name, message, replaced=False)

    def show(self, space: Space, subscriber: Subscriber, connection: Connection, now: int) -> None:
        """What a new subscription is sent, with the retain flag set [MQTT-3.3.1-8]."""
        session = subscriber.session
        for topic in space.retained.match_names(subscriber.filter):
            message = space.retained.get(topic)
            assert message is not None
            if message.expired(now):
                continue
            fan = Fan(message, now)
            qos = min(message.qos, subscriber.qos)
            if qos:
                self._sender.deliver(session, fan, Outgoing(message, qos, True, subscriber.ids), message)
            else:
                self._sender.send_plain(connection, fan, True, subscriber.ids)
