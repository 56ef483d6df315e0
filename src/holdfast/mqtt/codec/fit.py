"""Making packets small enough: a sender may not exceed the receiver's maximum packet size, and what it must then leave
out is said by the v5 standard: reason string and user properties, which explain but do not matter."""

from __future__ import annotations

import msgspec

from holdfast.mqtt.codec.encode import encode
from holdfast.mqtt.codec.packets import (
    V5,
    Auth,
    ConnAck,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    SubAck,
    UnsubAck,
)  # fmt: skip

_EXPLAINED = (ConnAck, PubAck, PubRec, PubRel, PubComp, SubAck, UnsubAck, Disconnect, Auth)
_Explained = ConnAck | PubAck | PubRec | PubRel | PubComp | SubAck | UnsubAck | Disconnect | Auth
_SILENCED = (PubAck, PubRec, PubRel, PubComp, SubAck, UnsubAck, Auth)


def encode_within(packet: Packet, version: int, limit_bytes: int) -> bytes | None:
    """The packet in at most `limit_bytes`; None if it cannot be made to fit.

    User properties go first, then the reason string, then both [MQTT-3.2.2-19 and -20, and the like of each packet].
    None means for a PUBLISH to drop it as if it had been sent [MQTT-3.1.2-25], for any other packet to close.
    """
    raw = encode(packet, version)
    if len(raw) <= limit_bytes:
        return raw
    if version != V5 or not isinstance(packet, _EXPLAINED):
        return None
    for leave_out in (("user_properties",), ("reason_string",), ("user_properties", "reason_string")):
        raw = encode(_without(packet, leave_out), version)
        if len(raw) <= limit_bytes:
            return raw
    return None


def without_explanation(packet: Packet) -> Packet:
    """The packet for a client that asked for no problem information: reason string and user properties go only with
    PUBLISH, CONNACK and DISCONNECT then [MQTT-3.1.2-29]."""
    return _without(packet, ("user_properties", "reason_string")) if isinstance(packet, _SILENCED) else packet


def _without(packet: _Explained, fields: tuple[str, ...]) -> _Explained:
    defaults: dict[str, object] = {"user_properties": (), "reason_string": None}
    properties = msgspec.structs.replace(packet.properties, **{field: defaults[field] for field in fields})
    return msgspec.structs.replace(packet, properties=properties)
