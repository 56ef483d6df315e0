"""MQTT 3.1.1 and 5.0 on the wire: bytes to packets and packets to bytes, for both sides of a connection. Pure."""

from holdfast.mqtt.codec.decoder import PACKET_BYTES_MAX, Decoder
from holdfast.mqtt.codec.encode import DISCONNECT, PINGREQ, PINGRESP, encode
from holdfast.mqtt.codec.fit import encode_within, without_explanation
from holdfast.mqtt.codec.packets import (
    V5,
    V311,
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
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)  # fmt: skip
from holdfast.mqtt.codec.properties import NO_PROPERTIES, Properties
from holdfast.mqtt.codec.publish import PreparedPublish, encode_puback, encode_pubacks, encode_publish
from holdfast.mqtt.codec.reasons import return_code_311
from holdfast.mqtt.rules import ProtocolError

__all__ = [
    "DISCONNECT",
    "NO_PROPERTIES",
    "PACKET_BYTES_MAX",
    "PINGREQ",
    "PINGRESP",
    "V5",
    "V311",
    "Auth",
    "ConnAck",
    "Connect",
    "Decoder",
    "Disconnect",
    "Packet",
    "PingReq",
    "PingResp",
    "PreparedPublish",
    "Properties",
    "ProtocolError",
    "PubAck",
    "PubComp",
    "PubRec",
    "PubRel",
    "Publish",
    "SubAck",
    "Subscribe",
    "Subscription",
    "UnsubAck",
    "Unsubscribe",
    "Will",
    "encode",
    "encode_puback",
    "encode_pubacks",
    "encode_publish",
    "encode_within",
    "return_code_311",
    "without_explanation",
]
