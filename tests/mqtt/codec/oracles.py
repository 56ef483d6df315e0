"""Other people's codecs, to compare ours with.

paho-mqtt speaks both versions: its client encodes what a client sends, its packet functions decode what a server sends.
`mqtt5` encodes and decodes all packets of MQTT 5. Neither is typed all the way, so they come in as Any here, and
nowhere else.

Some differences are theirs: paho refuses U+FEFF in properties, which the standard allows [MQTT-1.5.4-3], and sends no
reason codes in acknowledgements, and does not know 0x99 in a CONNACK. `mqtt5` does not tell a property that is absent
from one that has its default, and knows neither the empty AUTH nor 0x8C in a DISCONNECT.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import msgspec

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
)  # fmt: skip

_client: Any = importlib.import_module("paho.mqtt.client")
_packet: Any = importlib.import_module("paho.mqtt._packet")
_properties: Any = importlib.import_module("paho.mqtt.properties")
_types: Any = importlib.import_module("paho.mqtt.packettypes").PacketTypes
_options: Any = importlib.import_module("paho.mqtt.subscribeoptions").SubscribeOptions
_reason: Any = importlib.import_module("paho.mqtt.reasoncodes").ReasonCode
_mqtt5: Any = importlib.import_module("mqtt5")

# --- paho -----------------------------------------------------------------------------------------------------------

_PAHO_NAMES = {
    "payload_format": "PayloadFormatIndicator",
    "message_expiry_s": "MessageExpiryInterval",
    "content_type": "ContentType",
    "response_topic": "ResponseTopic",
    "correlation_data": "CorrelationData",
    "session_expiry_s": "SessionExpiryInterval",
    "assigned_client_id": "AssignedClientIdentifier",
    "server_keep_alive_s": "ServerKeepAlive",
    "authentication_method": "AuthenticationMethod",
    "authentication_data": "AuthenticationData",
    "request_problem_information": "RequestProblemInformation",
    "will_delay_s": "WillDelayInterval",
    "request_response_information": "RequestResponseInformation",
    "response_information": "ResponseInformation",
    "server_reference": "ServerReference",
    "reason_string": "ReasonString",
    "receive_maximum": "ReceiveMaximum",
    "topic_alias_maximum": "TopicAliasMaximum",
    "topic_alias": "TopicAlias",
    "maximum_qos": "MaximumQoS",
    "retain_available": "RetainAvailable",
    "maximum_packet_bytes": "MaximumPacketSize",
    "wildcards_available": "WildcardSubscriptionAvailable",
    "subscription_ids_available": "SubscriptionIdentifierAvailable",
    "shared_available": "SharedSubscriptionAvailable",
}


def _to_paho(properties: Properties, kind: int) -> Any:
    made = _properties.Properties(kind)
    for field, name in _PAHO_NAMES.items():
        value = getattr(properties, field)
        if value is not None:
            setattr(made, name, value)
    if properties.user_properties:
        made.UserProperty = list(properties.user_properties)
    if properties.subscription_ids:
        many = list(properties.subscription_ids)
        made.SubscriptionIdentifier = many[0] if kind == _types.SUBSCRIBE else many
    return made


def _from_paho(properties: Any) -> Properties:
    if properties is None:
        return NO_PROPERTIES
    values = {field: getattr(properties, name, None) for field, name in _PAHO_NAMES.items()}
    ids = getattr(properties, "SubscriptionIdentifier", [])
    pairs = getattr(properties, "UserProperty", [])
    return Properties(**values, subscription_ids=tuple(ids), user_properties=tuple(pairs))


def paho_encode(packet: Packet, version: int) -> bytes:
    """What paho's client sends for it."""
    # A client identifier must not be empty here: paho would choose one.
    client = _client.Client(_client.CallbackAPIVersion.VERSION2, "x", protocol=version)
    sent: list[bytes] = []
    client._packet_queue = lambda _command, raw, _mid, _qos, _info=None: sent.append(bytes(raw))
    v5 = version == V5
    match packet:
        case Connect():
            client._client_id = packet.client_id.encode()
            client._clean_start = client._clean_session = packet.clean_start
            client._username = None if packet.username is None else packet.username.encode()
            client._password = packet.password
            client._connect_properties = _to_paho(packet.properties, _types.CONNECT) if v5 else None
            if packet.will is not None:
                client._will = True
                client._will_topic = packet.will.topic.encode()
                client._will_payload = packet.will.payload
                client._will_qos = packet.will.qos
                client._will_retain = packet.will.retain
                client._will_properties = _to_paho(packet.will.properties, _types.WILLMESSAGE) if v5 else None
            client._send_connect(packet.keep_alive_s)
        case Publish():
            properties = _to_paho(packet.properties, _types.PUBLISH) if v5 else None
            client._sock = object()  # it looks whether there is one
            client._send_publish(
                packet.packet_id, packet.topic.encode(), packet.payload, packet.qos, packet.retain, packet.dup, None,
                properties,
            )  # fmt: skip
            client._sock = None
        case PubAck() | PubRec() | PubRel() | PubComp():
            send = {
                PubAck: client._send_puback,
                PubRec: client._send_pubrec,
                PubRel: client._send_pubrel,
                PubComp: client._send_pubcomp,
            }
            send[type(packet)](packet.packet_id)
        case Subscribe():
            client._mid_generate = lambda: packet.packet_id
            wanted = [
                (
                    one.filter.encode(),
                    _options(one.qos, one.no_local, one.retain_as_published, one.retain_handling) if v5 else one.qos,
                )
                for one in packet.subscriptions
            ]
            client._send_subscribe(False, wanted, _to_paho(packet.properties, _types.SUBSCRIBE) if v5 else None)
        case Unsubscribe():
            client._mid_generate = lambda: packet.packet_id
            properties = _to_paho(packet.properties, _types.UNSUBSCRIBE) if v5 else None
            client._send_unsubscribe(False, [one.encode() for one in packet.filters], properties)
        case Disconnect():
            code = _reason(_types.DISCONNECT, identifier=packet.reason_code) if v5 else None
            client._send_disconnect(code, _to_paho(packet.properties, _types.DISCONNECT) if v5 else None)
        case _:
            assert isinstance(packet, PingReq)
            client._send_pingreq()
    return sent[0]


def paho_decode(raw: bytes, version: int) -> Packet:
    """What paho makes of a server's packet."""
    start = 1 + next(at for at, byte in enumerate(raw[1:], 1) if byte < 0x80)
    protocol = _client.MQTTProtocolVersion(version)
    kind = raw[0] >> 4

    def read(name: str) -> Any:
        return getattr(_packet, f"decode_{name}")(raw[0], raw[start:], protocol)

    if kind == 2:
        got = read("connack")
        return ConnAck(
            bool(got.flags), int(got.rc) if version == V311 else got.reason.value, _from_paho(got.properties)
        )
    if kind == 3:
        got = read("publish")
        return Publish(
            got.topic.decode(), bytes(got.payload), got.qos, got.mid, got.retain, got.dup, _from_paho(got.properties)
        )
    acks: dict[int, tuple[str, Callable[..., Packet]]] = {
        4: ("puback", PubAck),
        5: ("pubrec", PubRec),
        6: ("pubrel", PubRel),
        7: ("pubcomp", PubComp),
    }
    if kind in acks:
        name, make = acks[kind]
        got = read(name)
        return make(got.mid, got.reason.value, _from_paho(got.properties))
    if kind == 9:
        got = read("suback")
        return SubAck(got.mid, tuple(code.value for code in got.reason_codes), _from_paho(got.properties))
    if kind == 11:
        got = read("unsuback")
        return UnsubAck(got.mid, tuple(code.value for code in got.reason_codes), _from_paho(got.properties))
    assert kind == 14
    got = read("disconnect")
    return Disconnect(0 if got.reason is None else got.reason.value, _from_paho(got.properties))


# --- mqtt5 ----------------------------------------------------------------------------------------------------------

# our field: (its name, what it takes for absent)
_MQTT5_NAMES: dict[str, tuple[str, object]] = {
    "payload_format": ("payload_format_indicator", 0),
    "message_expiry_s": ("message_expiry_interval", None),
    "content_type": ("content_type", None),
    "response_topic": ("response_topic", None),
    "correlation_data": ("correlation_data", None),
    "session_expiry_s": ("session_expiry_interval", None),
    "assigned_client_id": ("assigned_client_id", None),
    "server_keep_alive_s": ("server_keep_alive", None),
    "authentication_method": ("authentication_method", None),
    "authentication_data": ("authentication_data", None),
    "request_problem_information": ("request_problem_info", True),
    "will_delay_s": ("will_delay_interval", 0),
    "request_response_information": ("request_response_info", False),
    "response_information": ("response_info", None),
    "server_reference": ("server_reference", None),
    "reason_string": ("reason_str", None),
    "receive_maximum": ("receive_max", 65535),
    "topic_alias_maximum": ("topic_alias_max", 0),
    "topic_alias": ("topic_alias", None),
    "maximum_qos": ("max_qos", 2),
    "retain_available": ("retain_available", True),
    "maximum_packet_bytes": ("max_packet_size", None),
    "wildcards_available": ("wildcard_subscription_available", True),
    "subscription_ids_available": ("subscription_id_available", True),
    "shared_available": ("shared_subscription_available", True),
}
_MQTT5_KINDS: dict[type, str] = {
    Connect: "Connect", ConnAck: "ConnAck", Publish: "Publish", PubAck: "PubAck", PubRec: "PubRec", PubRel: "PubRel",
    PubComp: "PubComp", Subscribe: "Subscribe", SubAck: "SubAck", Unsubscribe: "Unsubscribe", UnsubAck: "UnsubAck",
    PingReq: "PingReq", PingResp: "PingResp", Disconnect: "Disconnect", Auth: "Auth",
}  # fmt: skip


def _absent(field: str, kind: str) -> object:
    # The one field whose default depends on the packet.
    return 0 if (field, kind) == ("session_expiry_s", "Connect") else _MQTT5_NAMES[field][1]


def _normal(properties: Properties, kind: str) -> Properties:
    """With what has its default taken for absent, as mqtt5 does."""
    same = {
        field: None
        for field in _MQTT5_NAMES
        if getattr(properties, field) is not None and getattr(properties, field) == _absent(field, kind)
    }
    return msgspec.structs.replace(properties, **same)


def normal(packet: Packet) -> Packet:
    """The packet as mqtt5 can tell it."""
    if isinstance(packet, PingReq | PingResp):
        return packet
    changed: dict[str, Any] = {"properties": _normal(packet.properties, type(packet).__name__)}
    if isinstance(packet, Connect) and packet.will is not None:
        will = msgspec.structs.replace(packet.will, properties=_normal(packet.will.properties, "Will"))
        changed["will"] = will
    return msgspec.structs.replace(packet, **changed)


def _to_mqtt5_properties(properties: Properties) -> dict[str, Any]:
    values = {
        name: getattr(properties, field)
        for field, (name, _) in _MQTT5_NAMES.items()
        if getattr(properties, field) is not None
    }
    for name, absent in _MQTT5_NAMES.values():
        if isinstance(absent, bool) and name in values:
            values[name] = bool(values[name])
    if "max_qos" in values:
        values["max_qos"] = _mqtt5.QoS(values["max_qos"])
    if properties.user_properties:
        values["user_properties"] = list(properties.user_properties)
    return values


def mqtt5_encode(packet: Packet) -> bytes:
    """What mqtt5 writes for it."""
    kind = _MQTT5_KINDS[type(packet)]
    make = getattr(_mqtt5, f"{kind}Packet")
    if isinstance(packet, PingReq | PingResp):
        return bytes(make().write())
    named = _to_mqtt5_properties(packet.properties)
    positional: list[Any] = []
    ids = list(packet.properties.subscription_ids)
    match packet:
        case Connect():
            positional = [packet.client_id]
            named |= {"username": packet.username, "password": packet.password, "clean_start": packet.clean_start}
            named["keep_alive"] = packet.keep_alive_s
            if packet.will is not None:
                one = packet.will
                more = _to_mqtt5_properties(one.properties)
                named["will"] = _mqtt5.Will(
                    one.topic, payload=one.payload, qos=_mqtt5.QoS(one.qos), retain=one.retain, **more
                )
        case ConnAck():
            named |= {"session_present": packet.session_present}
        case Publish():
            positional = [packet.topic, packet.payload]
            named |= {"qos": _mqtt5.QoS(packet.qos), "retain": packet.retain, "duplicate": packet.dup}
            named |= {"packet_id": packet.packet_id or None, "subscription_ids": ids}
        case Subscribe():
            wanted = [
                _mqtt5.TopicFilter(
                    one.filter,
                    max_qos=_mqtt5.QoS(one.qos),
                    no_local=one.no_local,
                    retain_as_published=one.retain_as_published,
                    retain_handling=_mqtt5.RetainHandling(one.retain_handling),
                )
                for one in packet.subscriptions
            ]
            positional = [packet.packet_id, wanted]
            named["subscription_id"] = ids[0] if ids else None
        case Unsubscribe():
            positional = [packet.packet_id, list(packet.filters)]
        case SubAck() | UnsubAck():
            codes = getattr(_mqtt5, f"{kind}ReasonCode")
            positional = [packet.packet_id, [codes(code) for code in packet.reason_codes]]
        case PubAck() | PubRec() | PubRel() | PubComp():
            positional = [packet.packet_id]
        case _:
            pass
    if hasattr(packet, "reason_code"):
        named["reason_code"] = getattr(_mqtt5, f"{kind}ReasonCode")(packet.reason_code)
    return bytes(make(*positional, **named).write())


def mqtt5_decode(raw: bytes) -> Packet:
    """What mqtt5 reads from it."""
    got, size = _mqtt5.read(memoryview(raw))
    assert size == len(raw)
    kind = type(got).__name__.removesuffix("Packet")
    make: Any = next(one for one, name in _MQTT5_KINDS.items() if name == kind)
    if make in (PingReq, PingResp):
        return make()  # type: ignore[no-any-return]
    values: dict[str, Any] = {"properties": _from_mqtt5_properties(got, kind)}
    for ours, theirs in (("packet_id", "packet_id"), ("reason_code", "reason_code"), ("dup", "duplicate")):
        if ours in make.__struct_fields__:
            values[ours] = getattr(got, theirs) or 0
    for same in ("client_id", "username", "password", "clean_start", "session_present", "topic", "payload", "retain"):
        if same in make.__struct_fields__:
            values[same] = getattr(got, same)
    match kind:
        case "Connect":
            values["keep_alive_s"] = got.keep_alive
            if got.will is not None:
                will = got.will
                more = _from_mqtt5_properties(will, "Will")
                values["will"] = Will(will.topic, will.payload or b"", int(will.qos), will.retain, more)
        case "Publish":
            values |= {"qos": int(got.qos), "dup": bool(got.duplicate)}
        case "Subscribe":
            values["subscriptions"] = tuple(
                Subscription(
                    one.pattern, int(one.max_qos), one.no_local, one.retain_as_published, int(one.retain_handling)
                )
                for one in got.topic_filters
            )
        case "Unsubscribe":
            values["filters"] = tuple(got.patterns)
        case "SubAck" | "UnsubAck":
            values["reason_codes"] = tuple(int(code) for code in got.reason_codes)
        case _:
            pass
    return make(**values)  # type: ignore[no-any-return]


def _from_mqtt5_properties(got: Any, kind: str) -> Properties:
    values: dict[str, Any] = {}
    for field, (name, _) in _MQTT5_NAMES.items():
        value = getattr(got, name, None)
        if value is not None and value != _absent(field, kind):
            values[field] = int(value) if isinstance(value, bool) else value
    ids = getattr(got, "subscription_ids", None) or [getattr(got, "subscription_id", None)]
    values["subscription_ids"] = tuple(one for one in ids if one is not None)
    return Properties(**values, user_properties=tuple(got.user_properties))
