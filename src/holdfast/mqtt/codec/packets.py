"""The packets, as values. Bytes are turned into these by `decoder`, and these into bytes by `encode`.

One class a packet type for both versions: what 3.1.1 lacks (properties, reason codes, subscription options) has its
default there. All are frozen and hold nothing but leaves, so the garbage collector need not look at them.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from holdfast.mqtt.codec.properties import NO_PROPERTIES, Properties

V311: Final = 4
V5: Final = 5


class Will(msgspec.Struct, frozen=True, gc=False):
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


class Connect(msgspec.Struct, frozen=True, gc=False):
    """`clean_start` is 3.1.1's clean session."""

    client_id: str
    version: int = V5
    clean_start: bool = True
    keep_alive_s: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = NO_PROPERTIES


class ConnAck(msgspec.Struct, frozen=True, gc=False):
    """In 3.1.1 `reason_code` is a return code, 0 to 5: see `reasons.return_code_311`."""

    session_present: bool = False
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


class Publish(msgspec.Struct, frozen=True, gc=False):
    """`packet_id` is 0 at QoS 0. `topic` is empty where a topic alias stands for it."""

    topic: str
    payload: bytes
    qos: int = 0
    packet_id: int = 0
    retain: bool = False
    dup: bool = False
    properties: Properties = NO_PROPERTIES


class PubAck(msgspec.Struct, frozen=True, gc=False):
    packet_id: int
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


class PubRec(msgspec.Struct, frozen=True, gc=False):
    packet_id: int
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


class PubRel(msgspec.Struct, frozen=True, gc=False):
    packet_id: int
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


class PubComp(msgspec.Struct, frozen=True, gc=False):
    packet_id: int
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


class Subscription(msgspec.Struct, frozen=True, gc=False):
    """One filter of a SUBSCRIBE with its options; 3.1.1 knows only the QoS."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties = NO_PROPERTIES


class SubAck(msgspec.Struct, frozen=True, gc=False):
    packet_id: int
    reason_codes: tuple[int, ...]
    properties: Properties = NO_PROPERTIES


class Unsubscribe(msgspec.Struct, frozen=True, gc=False):
    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


class UnsubAck(msgspec.Struct, frozen=True, gc=False):
    """In 3.1.1 there are no reason codes."""

    packet_id: int
    reason_codes: tuple[int, ...] = ()
    properties: Properties = NO_PROPERTIES


class PingReq(msgspec.Struct, frozen=True, gc=False):
    pass


class PingResp(msgspec.Struct, frozen=True, gc=False):
    pass


class Disconnect(msgspec.Struct, frozen=True, gc=False):
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


class Auth(msgspec.Struct, frozen=True, gc=False):
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


Ack: TypeAlias = PubAck | PubRec | PubRel | PubComp
Packet: TypeAlias = (
    Connect | ConnAck | Publish | Ack | Subscribe | SubAck | Unsubscribe | UnsubAck
    | PingReq | PingResp | Disconnect | Auth
)  # fmt: skip
