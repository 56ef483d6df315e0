"""Reading SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK, and the acknowledgements of a PUBLISH."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from holdfast.mqtt import rules
from holdfast.mqtt.codec import properties as tables
from holdfast.mqtt.codec import reasons
from holdfast.mqtt.codec.body import Body
from holdfast.mqtt.codec.packets import (
    V5,
    V311,
    Ack,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)  # fmt: skip
from holdfast.mqtt.codec.properties import NO_PROPERTIES, Properties
from holdfast.mqtt.rules import Rule, Violation
from holdfast.mqtt.topics import SHARE_PREFIX, broken_filter_rule

_MakeAck: TypeAlias = Callable[[int, int, Properties], Ack]

# by packet type: the packet, its reason codes, the rule they break otherwise
_ACKS: dict[int, tuple[_MakeAck, frozenset[int], Rule]] = {
    4: (PubAck, reasons.PUBACK, rules.PUBACK_CODE),
    5: (PubRec, reasons.PUBREC, rules.PUBREC_CODE),
    6: (PubRel, reasons.PUBREL, rules.PUBREL_CODE),
    7: (PubComp, reasons.PUBCOMP, rules.PUBCOMP_CODE),
}


def read_ack(kind: int, body: Body, version: int) -> Ack:
    """PUBACK, PUBREC, PUBREL or PUBCOMP. In v5 the reason code and the properties can be left out from the end."""
    make, codes, rule = _ACKS[kind]
    packet_id = body.packet_id(rules.ID_ZERO_ACK)
    reason_code = reasons.SUCCESS
    properties = NO_PROPERTIES
    if version == V5 and body.more():
        reason_code = body.u8()
        if reason_code not in codes:
            raise Violation(rule)
        if body.more():
            properties = body.properties(tables.ACK)
    body.finish()
    return make(packet_id, reason_code, properties)


def read_subscribe(body: Body, version: int) -> Subscribe:
    packet_id = body.packet_id(rules.ID_ZERO)
    properties = body.properties(tables.SUBSCRIBE) if version == V5 else NO_PROPERTIES
    if not body.more():
        raise Violation(rules.SUBSCRIBE_EMPTY)
    subscriptions: list[Subscription] = []
    while body.more():
        topic_filter = _read_filter(body)
        options = body.u8()
        _check_options(options, version, topic_filter)
        subscriptions.append(
            Subscription(topic_filter, options & 3, bool(options & 4), bool(options & 8), options >> 4)
        )
    return Subscribe(packet_id, tuple(subscriptions), properties)


def _read_filter(body: Body) -> str:
    topic_filter = body.text()
    broken = broken_filter_rule(topic_filter)
    if broken is not None:
        raise Violation(broken, repr(topic_filter))
    return topic_filter


def _check_options(options: int, version: int, topic_filter: str) -> None:
    if options & (0xFC if version == V311 else 0xC0):
        raise Violation(rules.OPTIONS_RESERVED)
    if options & 0x03 == 0x03:
        raise Violation(rules.OPTIONS_QOS_3)
    if options & 0x30 == 0x30:
        raise Violation(rules.RETAIN_HANDLING_3)
    if options & 0x04 and topic_filter.startswith(SHARE_PREFIX):
        raise Violation(rules.NO_LOCAL_SHARED)


def read_unsubscribe(body: Body, version: int) -> Unsubscribe:
    packet_id = body.packet_id(rules.ID_ZERO)
    properties = body.properties(tables.UNSUBSCRIBE) if version == V5 else NO_PROPERTIES
    if not body.more():
        raise Violation(rules.UNSUBSCRIBE_EMPTY)
    filters: list[str] = []
    while body.more():
        filters.append(_read_filter(body))
    return Unsubscribe(packet_id, tuple(filters), properties)


def read_suback(body: Body, version: int) -> SubAck:
    packet_id = body.packet_id(rules.ID_ZERO_SUBACK)
    properties = body.properties(tables.ACK) if version == V5 else NO_PROPERTIES
    codes = body.rest()
    if not codes:
        raise Violation(rules.SUBACK_EMPTY)
    if not (reasons.SUBACK if version == V5 else reasons.SUBACK_311).issuperset(codes):
        raise Violation(rules.SUBACK_CODE)
    return SubAck(packet_id, tuple(codes), properties)


def read_unsuback(body: Body, version: int) -> UnsubAck:
    packet_id = body.packet_id(rules.ID_ZERO_SUBACK)
    if version == V311:
        body.finish()
        return UnsubAck(packet_id)
    properties = body.properties(tables.ACK)
    codes = body.rest()
    if not codes:
        raise Violation(rules.UNSUBACK_EMPTY)
    if not reasons.UNSUBACK.issuperset(codes):
        raise Violation(rules.UNSUBACK_CODE)
    return UnsubAck(packet_id, tuple(codes), properties)
