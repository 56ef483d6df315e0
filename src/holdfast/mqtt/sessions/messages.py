"""An application message inside the broker: published once, kept once, sent to many.

Its record is `MQTT_MESSAGES`: a version, QoS and retain flag, when it expires, then topic, properties and payload. The
properties are stored as the standard writes them on the wire, which will not change under us.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import Final

from msgspec.structs import replace

from holdfast.errors import FormatUnknown
from holdfast.mqtt.codec import V5, PreparedPublish, Properties
from holdfast.mqtt.codec.properties import PUBLISH_FROM_SERVER, read_block, read_varint, write_block
from holdfast.units import SECOND

_VERSION: Final = 1
_HEAD: Final = Layout(">BBQHI")


class Message:
    """`refs` counts the records that refer to it; while there are any it has an `id` and a record of its own."""

    __slots__ = ("expires_at", "id", "payload", "properties", "qos", "refs", "retain", "size_bytes", "topic")

    def __init__(
        self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties, expires_at: int = 0
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.expires_at = expires_at
        self.size_bytes = len(topic) + len(payload)
        self.id = 0
        self.refs = 0

    def expired(self, now: int) -> bool:
        return 0 < self.expires_at <= now

    def left_s(self, now: int) -> int:
        """Whole seconds until it expires, begun ones counted."""
        return max(0, -((now - self.expires_at) // SECOND))

    def prepare(self, version: int, ids: tuple[int, ...], now: int) -> PreparedPublish:
        """Encoded but for what depends on the subscriber; the expiry is what is left of it [MQTT-3.3.2-6]."""
        properties = self.properties
        if version == V5:
            if self.expires_at:
                left_s = self.left_s(now)
                if left_s != properties.message_expiry_s:
                    properties = replace(properties, message_expiry_s=left_s)
            if ids:
                properties = replace(properties, subscription_ids=ids)
        return PreparedPublish(self.topic, self.payload, properties, version)


def expiry_of(properties: Properties, now: int) -> int:
    """The instant at which a message with these properties expires; 0: never."""
    return 0 if properties.message_expiry_s is None else now + properties.message_expiry_s * SECOND


class FanOut:
    """One message to many subscribers in one turn: each form of it is encoded once."""

    __slots__ = ("_plain", "_prepared", "message", "now")

    def __init__(self, message: Message, now: int) -> None:
        self.message = message
        self.now = now
        self._prepared: dict[tuple[int, tuple[int, ...]], PreparedPublish] = {}
        self._plain: dict[tuple[int, tuple[int, ...], bool], bytes] = {}

    def prepared(self, version: int, ids: tuple[int, ...]) -> PreparedPublish:
        found = self._prepared.get((version, ids))
        if found is None:
            found = self._prepared[version, ids] = self.message.prepare(version, ids, self.now)
        return found

    def plain(self, version: int, ids: tuple[int, ...], retain: bool) -> bytes:
        """The whole PUBLISH at QoS 0, which is the same for all who get this form."""
        found = self._plain.get((version, ids, retain))
        if found is None:
            found = self._plain[version, ids, retain] = self.prepared(version, ids).encode(0, 0, retain=retain)
        return found


def write_message(message: Message) -> bytes:
    topic = message.topic.encode()
    block = write_block(message.properties, PUBLISH_FROM_SERVER)
    flags = message.qos << 1 | message.retain
    head = _HEAD.pack(_VERSION, flags, message.expires_at, len(topic), len(block))
    return head + topic + block + message.payload


def read_message(value: bytes) -> Message:
    version, flags, expires_at, topic_size, block_size = _HEAD.unpack_from(value)
    if version != _VERSION:
        raise FormatUnknown(path="an MQTT message record", found=version, known=_VERSION)
    topic_end = _HEAD.size + topic_size
    block_end = topic_end + block_size
    _, block_at = read_varint(value, topic_end)
    properties = read_block(value[block_at:block_end], PUBLISH_FROM_SERVER)
    topic = value[_HEAD.size : topic_end].decode()
    return Message(topic, value[block_end:], flags >> 1, flags & 1 == 1, properties, expires_at)
