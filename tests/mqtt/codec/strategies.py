"""Packets for hypothesis: every kind, in both versions, from both sides, within what the standards allow."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from holdfast.mqtt.codec import (
    NO_PROPERTIES,
    V5,
    V311,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
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
    reasons,
)  # fmt: skip

# A stream of packets takes long to make up, longer on a busy machine; that says nothing about the codec.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFF_FFFF)
positive_u16 = st.integers(1, 0xFFFF)
flags = st.integers(0, 1)
qos_levels = st.integers(0, 2)
packet_ids = positive_u16
blobs = st.binary(max_size=40)
# Everything UTF-8 can carry but NUL: control characters, U+FEFF and non-characters included.
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
texts = st.text(characters, max_size=20)

level_characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0/+#")
levels = st.text(level_characters, max_size=5) | st.sampled_from(["", "a", "b", "$SYS"])
topics = st.lists(levels, min_size=1, max_size=5).map("/".join).filter(bool)


@st.composite
def plain_filters(draw: st.DrawFn) -> str:
    parts = draw(st.lists(levels | st.just("+"), max_size=4))
    if draw(st.booleans()) or not parts:
        parts.append("#")
    return "/".join(parts)


filters = plain_filters().filter(lambda text: text and not text.startswith("$share/"))
shared_filters = st.builds("$share/{}/{}".format, st.text(level_characters, min_size=1, max_size=5), filters | topics)
any_filters = filters | shared_filters

_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "payload_format": flags,
    "message_expiry_s": u32,
    "content_type": texts,
    "response_topic": topics,
    "correlation_data": blobs,
    "session_expiry_s": u32,
    "assigned_client_id": texts,
    "server_keep_alive_s": u16,
    "authentication_method": texts,
    "authentication_data": blobs,
    "request_problem_information": flags,
    "will_delay_s": u32,
    "request_response_information": flags,
    "response_information": texts,
    "server_reference": texts,
    "reason_string": texts,
    "receive_maximum": positive_u16,
    "topic_alias_maximum": u16,
    "topic_alias": positive_u16,
    "maximum_qos": flags,
    "retain_available": flags,
    "maximum_packet_bytes": st.integers(1, 0xFFFF_FFFF),
    "wildcards_available": flags,
    "subscription_ids_available": flags,
    "shared_available": flags,
}
_MESSAGE = ["payload_format", "message_expiry_s", "content_type", "response_topic", "correlation_data"]
_CONNECT = [
    "session_expiry_s", "request_problem_information", "request_response_information", "receive_maximum",
    "topic_alias_maximum", "maximum_packet_bytes",
]  # fmt: skip
_CONNACK = [
    "session_expiry_s", "assigned_client_id", "server_keep_alive_s", "response_information", "server_reference",
    "reason_string", "receive_maximum", "topic_alias_maximum", "maximum_qos", "retain_available",
    "maximum_packet_bytes", "wildcards_available", "subscription_ids_available", "shared_available",
]  # fmt: skip


@st.composite
def properties(draw: st.DrawFn, *names: str, ids_max: int = 0, authentication: bool = False) -> Properties:
    values = draw(st.fixed_dictionaries({}, optional={name: _FIELDS[name] for name in names}))
    values["user_properties"] = tuple(draw(st.lists(st.tuples(texts, texts), max_size=3)))
    values["subscription_ids"] = tuple(draw(st.lists(st.integers(1, 268_435_455), max_size=ids_max)))
    if authentication and draw(st.booleans()):
        values["authentication_method"] = draw(texts)
        values["authentication_data"] = draw(st.none() | blobs)
    return draw(st.just(NO_PROPERTIES) | st.just(Properties(**values)))


def if_5(version: int, strategy: st.SearchStrategy[Properties]) -> st.SearchStrategy[Properties]:
    return strategy if version == V5 else st.just(NO_PROPERTIES)


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    username = draw(st.none() | texts)
    password = draw(st.none() | blobs) if username is not None or version == V5 else None
    will = st.builds(
        Will, topics, blobs, qos_levels, st.booleans(), if_5(version, properties(*_MESSAGE, "will_delay_s"))
    )
    clean_start = draw(st.booleans())
    client_id = draw(texts.filter(bool) if version == V311 and not clean_start else texts)
    return Connect(
        client_id,
        version,
        clean_start,
        draw(u16),
        username,
        password,
        draw(st.none() | will),
        draw(if_5(version, properties(*_CONNECT, authentication=True))),
    )


@st.composite
def connacks(draw: st.DrawFn, version: int) -> ConnAck:
    known = reasons.CONNACK if version == V5 else reasons.CONNACK_311
    code = draw(st.sampled_from(sorted(known)))
    present = draw(st.booleans()) and not code
    return ConnAck(present, code, draw(if_5(version, properties(*_CONNACK, authentication=True))))


@st.composite
def publishes(draw: st.DrawFn, version: int, from_client: bool) -> Publish:
    qos = draw(qos_levels)
    allowed = properties(*_MESSAGE, "topic_alias", ids_max=0 if from_client else 3)
    props = draw(if_5(version, allowed))
    topic = draw(topics if props.topic_alias is None else st.just("") | topics)
    packet_id = draw(packet_ids) if qos else 0
    dup = draw(st.booleans()) if qos else False
    return Publish(topic, draw(st.binary(max_size=300)), qos, packet_id, draw(st.booleans()), dup, props)


def acks(version: int) -> st.SearchStrategy[Packet]:
    kinds: list[tuple[Any, frozenset[int]]] = [
        (PubAck, reasons.PUBACK),
        (PubRec, reasons.PUBREC),
        (PubRel, reasons.PUBREL),
        (PubComp, reasons.PUBCOMP),
    ]
    explained = if_5(version, properties("reason_string"))
    return st.one_of(
        *(
            st.builds(kind, packet_ids, st.sampled_from(sorted(known) if version == V5 else [0]), explained)
            for kind, known in kinds
        )
    )


def subscriptions(version: int) -> st.SearchStrategy[Subscription]:
    if version == V311:
        return st.builds(Subscription, any_filters, qos_levels)
    plain = st.builds(Subscription, filters, qos_levels, st.booleans(), st.booleans(), qos_levels)
    shared = st.builds(Subscription, shared_filters, qos_levels, st.just(False), st.booleans(), qos_levels)
    return plain | shared


def from_client(version: int) -> st.SearchStrategy[Packet]:
    """What a client sends after its CONNECT."""
    several = st.lists(subscriptions(version), min_size=1, max_size=4).map(tuple)
    some_filters = st.lists(any_filters, min_size=1, max_size=4).map(tuple)
    packets: list[st.SearchStrategy[Any]] = [
        publishes(version, True),
        acks(version),
        st.builds(Subscribe, packet_ids, several, if_5(version, properties(ids_max=1))),
        st.builds(Unsubscribe, packet_ids, some_filters, if_5(version, properties())),
        st.just(PingReq()),
    ]
    if version == V311:
        return st.one_of(*packets, st.just(Disconnect()))
    leave = st.sampled_from(sorted(reasons.DISCONNECT_FROM_CLIENT))
    prove = st.sampled_from(sorted(reasons.AUTH_FROM_CLIENT))
    return st.one_of(
        *packets,
        st.builds(Disconnect, leave, properties("session_expiry_s", "reason_string", "server_reference")),
        st.builds(Auth, prove, _auth_properties()),
    )


def from_server(version: int) -> st.SearchStrategy[Packet]:
    granted = st.lists(
        st.sampled_from(sorted(reasons.SUBACK if version == V5 else reasons.SUBACK_311)), min_size=1, max_size=4
    ).map(tuple)
    removed = st.lists(st.sampled_from(sorted(reasons.UNSUBACK)), min_size=1, max_size=4).map(tuple)
    explained = if_5(version, properties("reason_string"))
    packets: list[st.SearchStrategy[Any]] = [
        connacks(version),
        publishes(version, False),
        acks(version),
        st.builds(SubAck, packet_ids, granted, explained),
        st.builds(UnsubAck, packet_ids, removed if version == V5 else st.just(()), explained),
        st.just(PingResp()),
    ]
    if version == V311:
        return st.one_of(*packets, st.just(Disconnect()))
    leave = st.sampled_from(sorted(reasons.DISCONNECT_FROM_SERVER))
    prove = st.sampled_from(sorted(reasons.AUTH_FROM_SERVER))
    return st.one_of(
        *packets,
        st.builds(Disconnect, leave, properties("reason_string", "server_reference")),
        st.builds(Auth, prove, _auth_properties()) | st.just(Auth()),
    )


@st.composite
def _auth_properties(draw: st.DrawFn) -> Properties:
    return Properties(
        authentication_method=draw(texts),
        authentication_data=draw(st.none() | blobs),
        reason_string=draw(st.none() | texts),
        user_properties=tuple(draw(st.lists(st.tuples(texts, texts), max_size=2))),
    )
