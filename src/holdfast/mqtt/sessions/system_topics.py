"""`$SYS/`: what the broker says of itself, the same in every namespace. Pure.

A new subscription is shown the values as retained messages, and afterwards gets each that changes, at an interval. They
are of QoS 0, in memory only: nothing is stored, and nothing waits for a client that is away. While nobody subscribes,
nothing is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from holdfast.mqtt.codec import Properties
from holdfast.mqtt.sessions.messages import Message
from holdfast.mqtt.topics import NameIndex, split_share

_ROOT: Final = "$SYS"
PREFIX: Final = _ROOT + "/"

Reading = Callable[[int], Mapping[str, str]]
"""What the broker says of itself at an instant, by topic."""


def is_system_filter(topic_filter: str) -> bool:
    """Whether a filter matches topics of the broker's own; one that begins with a wildcard matches none
    [MQTT-4.7.2-1]."""
    inner = split_share(topic_filter)[1]
    return inner == _ROOT or inner.startswith(PREFIX)


class SystemTopics:
    """The values as they were last read."""

    def __init__(self, read: Reading, interval_us: int) -> None:
        self._read = read
        self._interval_us = interval_us
        self._read_at: int | None = None
        self._sent: dict[str, bytes] = {}
        self._messages: NameIndex[Message] = NameIndex()

    def shown(self, now: int) -> NameIndex[Message]:
        """For a new subscription: as they were read at most an interval ago."""
        if self._read_at is None or now - self._read_at >= self._interval_us:
            self._refresh(now)
        return self._messages

    def changed(self, now: int) -> list[Message]:
        """For who has subscribed: what is not as it was the last time."""
        self._refresh(now)
        topics = [topic for topic in self._messages if self._message(topic).payload != self._sent.get(topic)]
        self._sent = {topic: self._message(topic).payload for topic in self._messages}
        return [self._message(topic) for topic in topics]

    def _message(self, topic: str) -> Message:
        message = self._messages.get(topic)
        assert message is not None
        return message

    def _refresh(self, now: int) -> None:
        self._read_at = now
        for topic, value in self._read(now).items():
            self._messages.put(PREFIX + topic, Message(PREFIX + topic, value.encode(), 0, False, Properties()))
