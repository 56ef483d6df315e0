"""Reading the packets that open a connection: CONNECT, CONNACK, AUTH. And DISCONNECT, which ends it."""

from __future__ import annotations

from holdfast.mqtt import rules
from holdfast.mqtt.codec import properties as tables
from holdfast.mqtt.codec import reasons
from holdfast.mqtt.codec.body import Body
from holdfast.mqtt.codec.packets import V5, V311, Auth, ConnAck, Connect, Disconnect, Will
from holdfast.mqtt.codec.properties import NO_PROPERTIES, Properties
from holdfast.mqtt.rules import Violation

_V31 = 3  # it had another name, and is not spoken here; its clients understand the refusal of 3.1.1
_CLEAN = 0x02
_WILL = 0x04
_WILL_RETAIN = 0x20
_PASSWORD = 0x40
_USERNAME = 0x80


def read_version(body: Body) -> int:
    """The protocol's name and level. Another protocol is refused before anything else is read."""
    name = body.binary()
    if name == b"MQIsdp":
        return _V31
    if name != b"MQTT":
        raise Violation(rules.PROTOCOL_NAME)
    return body.u8()


def read_connect(body: Body, version: int) -> Connect:
    """The rest of a CONNECT, after its version."""
    flags = body.u8()
    _check_flags(flags, version)
    keep_alive_s = body.u16()
    properties = NO_PROPERTIES
    if version == V5:
        properties = body.properties(tables.CONNECT)
        _check_method(properties)
    client_id = body.text(rules.CLIENT_ID_MISSING)
    if version == V311 and not client_id and not flags & _CLEAN:
        raise Violation(rules.CLIENT_ID_EMPTY)
    will = _read_will(body, flags, version) if flags & _WILL else None
    username = body.text(rules.USERNAME_MISSING) if flags & _USERNAME else None
    password = body.binary(rules.PASSWORD_MISSING) if flags & _PASSWORD else None
    if username is None and password is None:
        body.finish(rules.USERNAME_UNUSED)
    body.finish(rules.PASSWORD_UNUSED if password is None else rules.CONNECT_TRAILING)
    clean_start = bool(flags & _CLEAN)
    return Connect(client_id, version, clean_start, keep_alive_s, username, password, will, properties)


def _check_flags(flags: int, version: int) -> None:
    if flags & 0x01:
        raise Violation(rules.CONNECT_RESERVED)
    if flags & _WILL:
        if flags & 0x18 == 0x18:
            raise Violation(rules.WILL_QOS_3)
    elif flags & 0x18:
        raise Violation(rules.WILL_QOS_UNUSED)
    elif flags & _WILL_RETAIN:
        raise Violation(rules.WILL_RETAIN_UNUSED)
    if version == V311 and flags & _PASSWORD and not flags & _USERNAME:
        raise Violation(rules.PASSWORD_ALONE)


def _read_will(body: Body, flags: int, version: int) -> Will:
    properties = body.properties(tables.WILL) if version == V5 else NO_PROPERTIES
    topic = body.text(rules.WILL_MISSING)
    if not topic:
        raise Violation(rules.TOPIC_EMPTY)
    if "+" in topic or "#" in topic:
        raise Violation(rules.WILL_TOPIC_WILDCARD)
    payload = body.binary(rules.WILL_MISSING)
    return Will(topic, payload, flags >> 3 & 3, bool(flags & _WILL_RETAIN), properties)


def _check_method(properties: Properties) -> None:
    if properties.authentication_data is not None and properties.authentication_method is None:
        raise Violation(rules.AUTH_DATA_WITHOUT_METHOD)


def read_connack(body: Body, version: int) -> ConnAck:
    flags = body.u8()
    if flags > 1:
        raise Violation(rules.CONNACK_FLAGS)
    reason_code = body.u8()
    if reason_code not in (reasons.CONNACK if version == V5 else reasons.CONNACK_311):
        raise Violation(rules.CONNACK_CODE)
    if flags and reason_code:
        raise Violation(rules.CONNACK_SESSION)
    properties = NO_PROPERTIES
    if version == V5:
        properties = body.properties(tables.CONNACK)
        _check_method(properties)
    body.finish()
    return ConnAck(bool(flags), reason_code, properties)


def read_disconnect(body: Body, version: int, from_client: bool) -> Disconnect:
    """3.1.1: nothing inside. 5: reason code and properties may both be left out, or the properties alone."""
    if not body.more() or version == V311:
        body.finish()
        return Disconnect()
    reason_code = body.u8()
    known = reasons.DISCONNECT_FROM_CLIENT if from_client else reasons.DISCONNECT_FROM_SERVER
    if reason_code not in known:
        raise Violation(rules.DISCONNECT_CODE)
    properties = NO_PROPERTIES
    if body.more():
        properties = body.properties(tables.DISCONNECT_FROM_CLIENT if from_client else tables.DISCONNECT_FROM_SERVER)
    body.finish()
    return Disconnect(reason_code, properties)


def read_auth(body: Body, from_client: bool) -> Auth:
    """An empty AUTH stands for success without properties."""
    reason_code = body.u8() if body.more() else reasons.SUCCESS
    if reason_code not in (reasons.AUTH_FROM_CLIENT if from_client else reasons.AUTH_FROM_SERVER):
        raise Violation(rules.AUTH_CODE)
    if not body.data:
        return Auth()
    properties = body.properties(tables.AUTH)
    if properties.authentication_method is None:
        raise Violation(rules.AUTH_METHOD_MISSING)
    body.finish()
    return Auth(reason_code, properties)
