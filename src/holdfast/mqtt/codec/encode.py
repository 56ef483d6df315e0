"""Packets to bytes, for both versions.

What 3.1.1 cannot say is left out there: properties, the reason codes of acknowledgements and of UNSUBACK. A SUBACK
failure becomes its 0x80. A value that the wire cannot carry (a string of more than 65,535 bytes or with U+0000, a
number that does not fit, an unknown reason code) is a ValueError, OverflowError or struct.error: our mistake, not the
peer's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.mqtt.codec import properties as tables
from holdfast.mqtt.codec import reasons
from holdfast.mqtt.codec.packets import (
    V5,
    Ack,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)  # fmt: skip
from holdfast.mqtt.codec.properties import NO_PROPERTIES, write_block, write_bytes, write_text, write_varint
from holdfast.mqtt.codec.publish import encode_publish

PINGREQ: Final = b"\xc0\x00"
PINGRESP: Final = b"\xd0\x00"
DISCONNECT: Final = b"\xe0\x00"


def encode(packet: Packet, version: int) -> bytes:
    """The bytes of any packet. PUBLISH and PUBACK have quicker ways in `publish`."""
    return _ENCODERS[type(packet)](packet, version)


def _frame(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes((first,)) + write_varint(len(body)) + body


def _check(reason_code: int, known: frozenset[int]) -> bytes:
    if reason_code not in known:
        raise ValueError(f"this packet has no reason code 0x{reason_code:02X}")
    return bytes((reason_code,))


def _id(packet_id: int) -> bytes:
    if not packet_id:
        raise ValueError("a packet identifier cannot be 0")
    return packet_id.to_bytes(2, "big")


def _connect(packet: Connect, version: int) -> bytes:
    v5 = version == V5
    flags = 0x02 if packet.clean_start else 0
    parts = [write_block(packet.properties, tables.CONNECT)] if v5 else []
    parts.append(write_text(packet.client_id))
    if packet.will is not None:
        flags |= 0x04 | packet.will.qos << 3 | packet.will.retain << 5
        if v5:
            parts.append(write_block(packet.will.properties, tables.WILL))
        parts += [write_text(packet.will.topic), write_bytes(packet.will.payload)]
    if packet.username is not None:
        flags |= 0x80
        parts.append(write_text(packet.username))
    if packet.password is not None:
        flags |= 0x40
        parts.append(write_bytes(packet.password))
    head = b"\0\4MQTT" + bytes((version, flags)) + packet.keep_alive_s.to_bytes(2, "big")
    return _frame(0x10, head, *parts)


def _connack(packet: ConnAck, version: int) -> bytes:
    present = bytes((packet.session_present,))
    if version == V5:
        code = _check(packet.reason_code, reasons.CONNACK)
        return _frame(0x20, present, code, write_block(packet.properties, tables.CONNACK))
    return _frame(0x20, present, _check(packet.reason_code, reasons.CONNACK_311))


def _publish(packet: Publish, version: int) -> bytes:
    return encode_publish(packet, version)


def _ack(first: int, known: frozenset[int]) -> Callable[[Ack, int], bytes]:
    def encode_ack(packet: Ack, version: int) -> bytes:
        packet_id = _id(packet.packet_id)
        plain = packet.properties is NO_PROPERTIES or packet.properties == NO_PROPERTIES
        if version != V5 or (plain and not packet.reason_code):
            return bytes((first, 2)) + packet_id
        code = _check(packet.reason_code, known)
        if plain:
            return bytes((first, 3)) + packet_id + code
        return _frame(first, packet_id, code, write_block(packet.properties, tables.ACK))

    return encode_ack


def _subscribe(packet: Subscribe, version: int) -> bytes:
    parts = [_id(packet.packet_id)]
    if version == V5:
        parts.append(write_block(packet.properties, tables.SUBSCRIBE))
    for one in packet.subscriptions:
        options = one.qos
        if version == V5:
            options |= one.no_local << 2 | one.retain_as_published << 3 | one.retain_handling << 4
        parts += [write_text(one.filter), bytes((options,))]
    return _frame(0x82, *parts)


def _suback(packet: SubAck, version: int) -> bytes:
    if version == V5:
        codes = [_check(code, reasons.SUBACK) for code in packet.reason_codes]
        return _frame(0x90, _id(packet.packet_id), write_block(packet.properties, tables.ACK), *codes)
    return _frame(0x90, _id(packet.packet_id), bytes(min(code, 0x80) for code in packet.reason_codes))


def _unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    block = write_block(packet.properties, tables.UNSUBSCRIBE) if version == V5 else b""
    return _frame(0xA2, _id(packet.packet_id), block, *map(write_text, packet.filters))


def _unsuback(packet: UnsubAck, version: int) -> bytes:
    if version != V5:
        return _frame(0xB0, _id(packet.packet_id))
    codes = [_check(code, reasons.UNSUBACK) for code in packet.reason_codes]
    return _frame(0xB0, _id(packet.packet_id), write_block(packet.properties, tables.ACK), *codes)


_DISCONNECT_CODES = reasons.DISCONNECT_FROM_CLIENT | reasons.DISCONNECT_FROM_SERVER
_AUTH_CODES = reasons.AUTH_FROM_CLIENT | reasons.AUTH_FROM_SERVER


def _disconnect(packet: Disconnect, version: int) -> bytes:
    plain = packet.properties == NO_PROPERTIES
    if version != V5 or (plain and not packet.reason_code):
        return DISCONNECT
    code = _check(packet.reason_code, _DISCONNECT_CODES)
    if plain:
        return b"\xe0\x01" + code
    return _frame(0xE0, code, write_block(packet.properties, tables.DISCONNECT_FROM_CLIENT))


def _auth(packet: Auth, version: int) -> bytes:
    if version != V5:
        raise ValueError("3.1.1 has no AUTH")
    if packet.properties == NO_PROPERTIES and not packet.reason_code:
        return b"\xf0\x00"
    return _frame(0xF0, _check(packet.reason_code, _AUTH_CODES), write_block(packet.properties, tables.AUTH))


def _pingreq(_packet: PingReq, _version: int) -> bytes:
    return PINGREQ


def _pingresp(_packet: PingResp, _version: int) -> bytes:
    return PINGRESP


_ENCODERS: Final[dict[type, Callable[[Any, int], bytes]]] = {
    Connect: _connect,
    ConnAck: _connack,
    Publish: _publish,
    PubAck: _ack(0x40, reasons.PUBACK),
    PubRec: _ack(0x50, reasons.PUBREC),
    PubRel: _ack(0x62, reasons.PUBREL),
    PubComp: _ack(0x70, reasons.PUBCOMP),
    Subscribe: _subscribe,
    SubAck: _suback,
    Unsubscribe: _unsubscribe,
    UnsubAck: _unsuback,
    PingReq: _pingreq,
    PingResp: _pingresp,
    Disconnect: _disconnect,
    Auth: _auth,
}
