"""The hot packets to bytes: PUBLISH, alone or one message to many subscribers, and runs of plain acknowledgements."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from struct import Struct

from holdfast.mqtt.codec import properties as tables
from holdfast.mqtt.codec.packets import V5, Publish
from holdfast.mqtt.codec.properties import BYTES, Properties, write_block, write_text, write_varint

_PUBACK_HEAD = 0x4002
_pack_ack = Struct(">HH").pack


def encode_puback(packet_id: int) -> bytes:
    """A PUBACK that says success, in either version."""
    return _pack_ack(_PUBACK_HEAD, packet_id)


def encode_pubacks(packet_ids: Iterable[int]) -> bytes:
    """The PUBACKs of a whole read, as one write."""
    return b"".join(map(_pack_ack, repeat(_PUBACK_HEAD), packet_ids))


def encode_publish(packet: Publish, version: int) -> bytes:
    """One PUBLISH."""
    head = write_text(packet.topic)
    qos = packet.qos
    if qos:
        if not packet.packet_id:
            raise ValueError("a PUBLISH of QoS 1 or 2 needs a packet identifier")
        head += packet.packet_id.to_bytes(2, "big")
    if version == V5:
        head += write_block(packet.properties, tables.PUBLISH_FROM_SERVER)
    payload = packet.payload
    first = 0x30 | packet.dup << 3 | qos << 1 | packet.retain
    return BYTES[first] + write_varint(len(head) + len(payload)) + head + payload


class PreparedPublish:
    """One message to many subscribers: all that does not depend on the subscriber is encoded once."""

    __slots__ = ("_heads", "_tail", "_topic")

    def __init__(self, topic: str, payload: bytes, properties: Properties, version: int) -> None:
        self._topic = write_text(topic)
        self._tail = write_block(properties, tables.PUBLISH_FROM_SERVER) + payload if version == V5 else payload
        self._heads: dict[int, bytes] = {}

    def encode(self, qos: int, packet_id: int, *, retain: bool = False, dup: bool = False) -> bytes:
        """The PUBLISH to one subscriber; `packet_id` is not looked at with QoS 0."""
        first = 0x30 | dup << 3 | qos << 1 | retain
        head = self._heads.get(first)
        if head is None:
            length = len(self._topic) + len(self._tail) + (2 if qos else 0)
            head = self._heads[first] = BYTES[first] + write_varint(length) + self._topic
        if qos:
            return head + packet_id.to_bytes(2, "big") + self._tail
        return head + self._tail

    def size(self, qos: int) -> int:
        """How many bytes `encode` gives, to compare with a client's maximum packet size before it takes an id."""
        length = len(self._topic) + len(self._tail) + (2 if qos else 0)
        return 1 + len(write_varint(length)) + length
