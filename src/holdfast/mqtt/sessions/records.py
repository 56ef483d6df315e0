"""The records of MQTT sessions: keys and values. Messages are in `messages`.

    table               key                               value
    MQTT_SESSIONS       namespace NUL client              SessionRecord
    MQTT_SUBSCRIPTIONS  namespace NUL client NUL filter   SubscriptionRecord
    MQTT_OUTGOING       namespace NUL client NUL order    OutgoingRecord: queued or in flight towards the client
    MQTT_INCOMING       namespace NUL client NUL id       (empty) a QoS 2 packet identifier that was not released yet
    MQTT_MESSAGES       id                                message: once, however many refer to it
    MQTT_RETAINED       namespace NUL topic               id of the message

`client` is the client identifier; if the session has an owner, this and the byte 0xFF stand before it. `order` and
message ids are eight bytes, packet identifiers two, big-endian. No client identifier, filter or topic contains NUL: the
codec refuses them. The values are a version byte and msgpack; `core/records.py` says how to change
one.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

import msgspec

from holdfast.errors import FormatUnknown
from holdfast.mqtt.sessions.session import OWNER_END, Terms

_VERSION: Final = b"\1"


class WillRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`block` holds the will's properties as on the wire."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    block: bytes


class SessionRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`ended_at` is 0 while the client is connected; `will_at` is when a delayed will is due, 0 if it is not yet;
    `owner` is the name of who may adopt a session without an owner in its key, as older versions stored it."""

    protocol: int
    expiry_s: int
    ended_at: int
    will_at: int = 0
    will: WillRecord | None = None
    owner: str = ""


class SubscriptionRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`terms` is there for a subscription of a bridge's."""

    qos: int
    no_local: bool
    retain_as_published: bool
    identifier: int
    terms: Terms | None = None


class OutgoingRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Not sent yet while `packet_id` is 0; received by the client and to be released when `message` is 0."""

    message: int
    qos: int
    retain: bool
    packet_id: int
    ids: tuple[int, ...] = ()
    share: str = ""


_encode = msgspec.msgpack.Encoder().encode
_sessions = msgspec.msgpack.Decoder(SessionRecord)
_subscriptions = msgspec.msgpack.Decoder(SubscriptionRecord)
_outgoing = msgspec.msgpack.Decoder(OutgoingRecord)

R = TypeVar("R")


def write(record: SessionRecord | SubscriptionRecord | OutgoingRecord) -> bytes:
    return _VERSION + _encode(record)


def _read(decoder: msgspec.msgpack.Decoder[R], value: bytes) -> R:
    if value[:1] != _VERSION:
        raise FormatUnknown(path="an MQTT session record", found=value[0] if value else "nothing", known=_VERSION[0])
    return decoder.decode(value[1:])


def read_session(value: bytes) -> SessionRecord:
    return _read(_sessions, value)


def read_subscription(value: bytes) -> SubscriptionRecord:
    return _read(_subscriptions, value)


def read_outgoing(value: bytes) -> OutgoingRecord:
    return _read(_outgoing, value)


def retained_key(namespace: str, topic: str) -> bytes:
    return f"{namespace}\0{topic}".encode()


class SessionKey(NamedTuple):
    """Which session a record belongs to."""

    namespace: str
    owner: str
    client_id: str


def split_key(key: bytes) -> tuple[SessionKey, bytes]:
    """The session, and what follows it."""
    namespace, client, rest = key.split(b"\0", 2)
    owner, _, client_id = client.rpartition(OWNER_END)
    return SessionKey(namespace.decode(), owner.decode(), client_id.decode()), rest
