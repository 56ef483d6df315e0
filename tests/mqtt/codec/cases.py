"""Packets that break a rule, as raw bytes: what is sent, and the rule it must be refused by."""

from __future__ import annotations

from holdfast.mqtt import rules
from holdfast.mqtt.codec import V5
from holdfast.mqtt.rules import Rule
from tests.mqtt.raw import (
    BOTH,
    ONLY_5,
    ONLY_311,
    Case,
    block,
    connect,
    connects,
    each,
    frame,
    from_server,
    hello,
    property_5,
    refused,
    subscribe_5,
    text,
)

ID = text("c")  # a client identifier
_OVERLONG = b"\xc0\xaf"
_SURROGATE = b"\xed\xa0\x80"

FRAMING = [
    refused("packet type 0", rules.TYPE_RESERVED, b"\x00\x00"),
    refused("packet type 15 in 3.1.1", rules.TYPE_RESERVED, b"\xf0\x00", ONLY_311),
    *each("first byte", rules.FLAGS_RESERVED, (0x11, 0x21, 0x41, 0x42, 0x51, 0x54, 0x71, 0x91, 0xB8, 0xC1, 0xD2)),
    *each("PUBREL", rules.FLAGS_PUBREL, (0x60, 0x61, 0x63, 0x6A)),
    *each("SUBSCRIBE", rules.FLAGS_SUBSCRIBE, (0x80, 0x83, 0x8A)),
    *each("UNSUBSCRIBE", rules.FLAGS_UNSUBSCRIBE, (0xA0, 0xA3)),
    *each("DISCONNECT", rules.FLAGS_DISCONNECT, (0xE1, 0xE2, 0xE8)),
    *each("AUTH", rules.FLAGS_AUTH, (0xF1, 0xF2, 0xF8), versions=ONLY_5),
    *each("from a client", rules.WRONG_DIRECTION, (0x20, 0x90, 0xB0, 0xD0)),
    *[
        case._replace(from_client=False)
        for case in each("from a server", rules.WRONG_DIRECTION, (0x10, 0x82, 0xA2, 0xC0))
    ],
    refused("a length of five bytes", rules.LENGTH_TOO_LONG, b"\xc0\xff\xff\xff\xff"),
    refused("a length of five bytes, all but empty", rules.LENGTH_TOO_LONG, b"\xc0\x80\x80\x80\x80\x01"),
    refused("a length of two bytes for 0", rules.LENGTH_NOT_MINIMAL, b"\xc0\x80\x00", ONLY_5),
    refused("a length of three bytes for 2", rules.LENGTH_NOT_MINIMAL, b"\x40\x82\x80\x00\x00\x01", ONLY_5),
    refused("a PINGREQ with a body", rules.TRAILING, frame(0xC0, "00")),
    from_server("a PINGRESP with a body", rules.TRAILING, frame(0xD0, "00")),
    refused("a PUBLISH without a topic", rules.TRUNCATED, frame(0x30, "")),
    refused("a PUBLISH with half a topic length", rules.TRUNCATED, frame(0x30, "00")),
    refused("a topic longer than the packet", rules.TRUNCATED, frame(0x30, "0005 6162")),
    refused("QoS 1 and no packet identifier", rules.TRUNCATED, frame(0x32, text("t"))),
    refused("QoS 1 and half a packet identifier", rules.TRUNCATED, frame(0x32, text("t") + "00")),
    refused("a PUBACK without an identifier", rules.TRUNCATED, frame(0x40, "")),
    refused("a PUBACK with half an identifier", rules.TRUNCATED, frame(0x40, "01")),
    refused("a long PUBACK in 3.1.1", rules.TRAILING, frame(0x40, "0001 00"), ONLY_311),
    refused("a DISCONNECT with a body in 3.1.1", rules.TRAILING, frame(0xE0, "00"), ONLY_311),
    from_server("a long UNSUBACK in 3.1.1", rules.TRAILING, frame(0xB0, "0001 00"), ONLY_311),
    from_server("a long CONNACK in 3.1.1", rules.TRAILING, frame(0x20, "0000 00"), ONLY_311),
    from_server("a CONNACK without a code", rules.TRUNCATED, frame(0x20, "00")),
    refused("bytes after the properties of a PUBACK", rules.TRAILING, frame(0x40, "0001 00 00 00"), ONLY_5),
    refused("bytes after the properties of a DISCONNECT", rules.TRAILING, frame(0xE0, "00 00 00"), ONLY_5),
    refused(
        "bytes after the properties of an AUTH",
        rules.TRAILING,
        frame(0xF0, "18" + block("15" + text("m")) + "00"),
        ONLY_5,
    ),
    from_server("bytes after the properties of a CONNACK", rules.TRAILING, frame(0x20, "0000 00 00"), ONLY_5),
    refused("a filter without options", rules.TRUNCATED, frame(0x82, "0001" + text("a")), ONLY_311),
    refused("a filter without options", rules.TRUNCATED, frame(0x82, "0001 00" + text("a")), ONLY_5),
    refused("half a filter", rules.TRUNCATED, frame(0xA2, "0001 0005 61"), ONLY_311),
]

STRINGS = [
    *[
        refused(f"a topic of {raw.hex()}", rules.STRING_NOT_UTF8, frame(0x30, text(raw) + "00"))
        for raw in (b"\xff", b"\x80", _OVERLONG, _SURROGATE, b"\xed\xbf\xbf", b"\xf4\x90\x80\x80", b"\xe2\x82")
    ],
    refused("NUL in a topic", rules.STRING_HAS_NUL, frame(0x30, text("a\0b") + "00")),
    refused("NUL in a filter", rules.STRING_HAS_NUL, frame(0xA2, "0001" + text("\0")), ONLY_311),
    refused("a surrogate in a filter", rules.STRING_NOT_UTF8, frame(0xA2, "0001 00" + text(_SURROGATE)), ONLY_5),
    *connects("a client identifier that is not UTF-8", rules.STRING_NOT_UTF8, "02", text(b"\xff")),
    *connects("a user name that is not UTF-8", rules.STRING_NOT_UTF8, "82", ID + text(b"\xc3")),
    *connects("NUL in a client identifier", rules.STRING_HAS_NUL, "02", text("\0")),
    property_5("a content type that is not UTF-8", rules.STRING_NOT_UTF8, "03" + text(_OVERLONG)),
    property_5("NUL in a response topic", rules.STRING_HAS_NUL, "08" + text("a\0")),
    property_5("a user property whose name is not UTF-8", rules.PAIR_NOT_UTF8, "26" + text(_SURROGATE) + text("v")),
    property_5("a user property whose value is not UTF-8", rules.PAIR_NOT_UTF8, "26" + text("n") + text(b"\xff")),
    property_5("NUL in the name of a user property", rules.PAIR_NOT_UTF8, "26" + text("\0") + text("v")),
    property_5("NUL in the value of a user property", rules.PAIR_NOT_UTF8, "26" + text("n") + text("\0")),
]

IDENTIFIERS = [
    refused("PUBLISH QoS 1, identifier 0", rules.ID_ZERO, frame(0x32, text("t") + "0000 00")),
    refused("PUBLISH QoS 2, identifier 0", rules.ID_ZERO, frame(0x34, text("t") + "0000 00")),
    from_server("a server's PUBLISH, identifier 0", rules.ID_ZERO_FROM_SERVER, frame(0x32, text("t") + "0000 00")),
    *each("identifier 0", rules.ID_ZERO_ACK, (0x40, 0x50, 0x62, 0x70), "0000"),
    refused("PUBACK with a code, identifier 0", rules.ID_ZERO_ACK, frame(0x40, "0000 00"), ONLY_5),
    refused("SUBSCRIBE, identifier 0", rules.ID_ZERO, frame(0x82, "0000" + text("a") + "00"), ONLY_311),
    refused("SUBSCRIBE, identifier 0", rules.ID_ZERO, frame(0x82, "0000 00" + text("a") + "00"), ONLY_5),
    refused("UNSUBSCRIBE, identifier 0", rules.ID_ZERO, frame(0xA2, "0000" + text("a")), ONLY_311),
    refused("UNSUBSCRIBE, identifier 0", rules.ID_ZERO, frame(0xA2, "0000 00" + text("a")), ONLY_5),
    from_server("SUBACK, identifier 0", rules.ID_ZERO_SUBACK, frame(0x90, "0000 00 00")),
    from_server("UNSUBACK, identifier 0", rules.ID_ZERO_SUBACK, frame(0xB0, "0000 00 00")),
]

PROPERTIES = [
    refused("a PUBLISH without a property length", rules.PROPERTIES_MISSING, frame(0x30, text("t")), ONLY_5),
    refused("a SUBSCRIBE without a property length", rules.PROPERTIES_MISSING, frame(0x82, "0001"), ONLY_5),
    refused("an AUTH without a property length", rules.PROPERTIES_MISSING, frame(0xF0, "18"), ONLY_5),
    refused("properties longer than the PUBLISH", rules.TRUNCATED, frame(0x30, text("t") + "05 01 00"), ONLY_5),
    refused("a property length that never ends", rules.LENGTH_TOO_LONG, frame(0x30, text("t") + "ffffffff 01"), ONLY_5),
    refused("a property length cut off", rules.TRUNCATED, frame(0x30, text("t") + "ffff"), ONLY_5),
    refused(
        "a property length of two bytes for 1", rules.LENGTH_NOT_MINIMAL, frame(0x30, text("t") + "8100 00"), ONLY_5
    ),
    refused("properties longer than the SUBSCRIBE", rules.TRUNCATED, frame(0x82, "0001 05 00"), ONLY_5),
    property_5("no such property", rules.PROPERTY_NOT_ALLOWED, "7f 00"),
    property_5("property 0", rules.PROPERTY_NOT_ALLOWED, "00"),
    property_5("receive maximum in a PUBLISH", rules.PROPERTY_NOT_ALLOWED, "21 0001"),
    property_5("will delay in a PUBLISH", rules.PROPERTY_NOT_ALLOWED, "18 00000001"),
    refused("a topic alias in a PUBACK", rules.PROPERTY_NOT_ALLOWED, frame(0x40, "0001 00" + block("23 0001")), ONLY_5),
    subscribe_5("a reason string in a SUBSCRIBE", rules.PROPERTY_NOT_ALLOWED, "1f" + text("a")),
    hello("content type in a CONNECT", rules.PROPERTY_NOT_ALLOWED, connect(V5, "02", ID, "03" + text("a"))),
    hello(
        "session expiry in a will",
        rules.PROPERTY_NOT_ALLOWED,
        connect(V5, "06", ID + block("11 00000001") + text("t") + text("")),
    ),
    property_5("a number cut off", rules.TRUNCATED, "02 0000"),
    property_5("a string cut off", rules.TRUNCATED, "03 0005 61"),
    property_5("a string length cut off", rules.TRUNCATED, "03 00"),
    property_5("binary data cut off", rules.TRUNCATED, "09 0002 61"),
    property_5("binary data without a length", rules.TRUNCATED, "09"),
    property_5("half a user property", rules.TRUNCATED, "26" + text("n")),
    property_5("a user property cut off", rules.TRUNCATED, "26" + text("n") + "0002 61"),
    *[
        property_5(f"{name} twice", rules.PROPERTY_TWICE, one + one)
        for name, one in {
            "payload format": "01 01",
            "message expiry": "02 00000001",
            "content type": "03" + text("a"),
            "response topic": "08" + text("a"),
            "correlation data": "09 0001 61",
            "topic alias": "23 0001",
        }.items()
    ],
    *[
        hello(f"{name} twice", rules.PROPERTY_TWICE, connect(V5, "02", ID, one + one))
        for name, one in {
            "session expiry": "11 00000001",
            "authentication method": "15" + text("m"),
            "request problem information": "17 01",
            "request response information": "19 01",
            "receive maximum": "21 0001",
            "topic alias maximum": "22 0001",
            "maximum packet size": "27 00000100",
        }.items()
    ],
    *[
        from_server(f"{name} twice", rules.PROPERTY_TWICE, frame(0x20, "0000" + block(one + one)), ONLY_5)
        for name, one in {
            "assigned client identifier": "12" + text("c"),
            "server keep alive": "13 0001",
            "response information": "1a" + text("a"),
            "server reference": "1c" + text("a"),
            "reason string": "1f" + text("a"),
            "maximum QoS": "24 01",
            "retain available": "25 01",
            "wildcards available": "28 01",
            "subscription identifiers available": "29 01",
            "shared available": "2a 01",
        }.items()
    ],
    subscribe_5("a subscription identifier twice", rules.PROPERTY_TWICE, "0b01 0b02"),
    subscribe_5("subscription identifier 0", rules.PROPERTY_VALUE, "0b00"),
    subscribe_5("a subscription identifier of five bytes", rules.LENGTH_TOO_LONG, "0bffffffff01"),
    property_5("payload format 2", rules.PROPERTY_VALUE, "01 02"),
    *[
        hello(name, rules.PROPERTY_VALUE, connect(V5, "02", ID, value))
        for name, value in {
            "receive maximum 0": "21 0000",
            "maximum packet size 0": "27 00000000",
            "request problem information 2": "17 02",
            "request response information 2": "19 02",
        }.items()
    ],
    *[
        from_server(f"{name} 2", rules.PROPERTY_VALUE, frame(0x20, "0000" + block(identifier + "02")), ONLY_5)
        for name, identifier in {
            "maximum QoS": "24",
            "retain available": "25",
            "wildcards available": "28",
            "subscription identifiers available": "29",
            "shared available": "2a",
        }.items()
    ],
    from_server(
        "subscription identifier 0 in a PUBLISH", rules.PROPERTY_VALUE, frame(0x30, text("t") + block("0b00")), ONLY_5
    ),
    property_5("topic alias 0", rules.ALIAS_ZERO, "23 0000"),
    property_5("+ in a response topic", rules.RESPONSE_TOPIC_WILDCARD, "08" + text("a/+")),
    property_5("# in a response topic", rules.RESPONSE_TOPIC_WILDCARD, "08" + text("#")),
    property_5("an empty response topic", rules.RESPONSE_TOPIC_EMPTY, "08" + text("")),
    property_5("a subscription identifier from a client", rules.SUBSCRIPTION_ID_FROM_CLIENT, "0b 01"),
    from_server(
        "session expiry from a server",
        rules.SESSION_EXPIRY_FROM_SERVER,
        frame(0xE0, "00" + block("11 00000001")),
        ONLY_5,
    ),
    hello("authentication data alone", rules.AUTH_DATA_WITHOUT_METHOD, connect(V5, "02", ID, "16" + text("d"))),
    from_server(
        "authentication data alone",
        rules.AUTH_DATA_WITHOUT_METHOD,
        frame(0x20, "0000" + block("16" + text("d"))),
        ONLY_5,
    ),
    refused("an AUTH without a method", rules.AUTH_METHOD_MISSING, frame(0xF0, "18 00"), ONLY_5),
]

CONNECTS = [
    *[
        hello(f"{first:02x} first", rules.CONNECT_NOT_FIRST, bytes((first, 0)))
        for first in (0x00, 0x20, 0x30, 0x40, 0x82, 0xC0, 0xE0, 0xF0, ord("G"))
    ],
    hello("flags of a CONNECT", rules.FLAGS_RESERVED, b"\x12\x00"),
    refused("a second CONNECT", rules.CONNECT_TWICE, connect(V5, "02", ID)),
    hello("MQTT 3.1", rules.PROTOCOL_LEVEL, frame(0x10, text("MQIsdp") + "03 02 003c" + ID), ONLY_311),
    hello("mqtt in small letters", rules.PROTOCOL_NAME, frame(0x10, text("mqtt") + "04 02 003c" + ID)),
    hello("an empty protocol name", rules.PROTOCOL_NAME, frame(0x10, "0000")),
    hello("nothing in a CONNECT", rules.TRUNCATED, frame(0x10, "")),
    hello("no level", rules.TRUNCATED, frame(0x10, text("MQTT"))),
    hello("level 3", rules.PROTOCOL_LEVEL, frame(0x10, text("MQTT") + "03 02 003c" + ID), ONLY_311),
    hello("level 6", rules.PROTOCOL_LEVEL, frame(0x10, text("MQTT") + "06 02 003c 00" + ID)),
    hello("a CONNECT whose length is too long", rules.LENGTH_TOO_LONG, b"\x10\xff\xff\xff\xff"),
    hello(
        "a CONNECT whose length is not minimal", rules.LENGTH_NOT_MINIMAL, b"\x10\x8e\x00" + connect(V5, "02", ID)[2:]
    ),
    hello("no flags", rules.TRUNCATED, frame(0x10, text("MQTT") + "04"), ONLY_311),
    hello("half a keep alive", rules.TRUNCATED, frame(0x10, text("MQTT") + "0402 00"), ONLY_311),
    *connects("the reserved flag", rules.CONNECT_RESERVED, "03", ID),
    *connects("will QoS 1 and no will", rules.WILL_QOS_UNUSED, "0a", ID),
    *connects("will QoS 2 and no will", rules.WILL_QOS_UNUSED, "12", ID),
    *connects("will retain and no will", rules.WILL_RETAIN_UNUSED, "22", ID),
    *connects("will QoS 3", rules.WILL_QOS_3, "1e", ID + text("t") + text("p")),
    *connects("no client identifier", rules.CLIENT_ID_MISSING, "02", ""),
    *connects("half a client identifier", rules.TRUNCATED, "02", "0005 61"),
    *connects("no will topic", rules.WILL_MISSING, "06", ID, ONLY_311),
    *connects("no will properties", rules.PROPERTIES_MISSING, "06", ID, ONLY_5),
    *connects("no will topic", rules.WILL_MISSING, "06", ID + "00", ONLY_5),
    *connects("no will payload", rules.WILL_MISSING, "06", ID + text("t"), ONLY_311),
    *connects("an empty will topic", rules.TOPIC_EMPTY, "06", ID + text("") + text("p"), ONLY_311),
    *connects("+ in a will topic", rules.WILL_TOPIC_WILDCARD, "06", ID + text("a/+") + text("p"), ONLY_311),
    *connects("# in a will topic", rules.WILL_TOPIC_WILDCARD, "06", ID + "00" + text("#") + text("p"), ONLY_5),
    *connects("no user name", rules.USERNAME_MISSING, "82", ID),
    *connects("no password", rules.PASSWORD_MISSING, "c2", ID + text("u")),
    *connects("a password alone", rules.PASSWORD_ALONE, "42", ID + text("p"), ONLY_311),
    *connects("a user name without its flag", rules.USERNAME_UNUSED, "02", ID + text("u")),
    *connects("a password without its flag", rules.PASSWORD_UNUSED, "82", ID + text("u") + text("p")),
    *connects("a byte after the password", rules.CONNECT_TRAILING, "c2", ID + text("u") + text("p") + "00"),
    *connects("no client identifier for a kept session", rules.CLIENT_ID_EMPTY, "00", text(""), ONLY_311),
    from_server("CONNACK flags", rules.CONNACK_FLAGS, frame(0x20, "02 00 00")),
    from_server("CONNACK flags", rules.CONNACK_FLAGS, frame(0x20, "81 00 00")),
    from_server("a refusal with a session", rules.CONNACK_SESSION, frame(0x20, "01 05"), ONLY_311),
    from_server("a refusal with a session", rules.CONNACK_SESSION, frame(0x20, "01 87 00"), ONLY_5),
    from_server("return code 6", rules.CONNACK_CODE, frame(0x20, "00 06"), ONLY_311),
    from_server("reason code 1", rules.CONNACK_CODE, frame(0x20, "00 01 00"), ONLY_5),
    from_server("a DISCONNECT code in a CONNACK", rules.CONNACK_CODE, frame(0x20, "00 8e 00"), ONLY_5),
]

PUBLISHES = [
    *each("QoS 3", rules.QOS_3, (0x36, 0x37, 0x3E, 0x3F), text("t") + "0001 00"),
    *each("DUP at QoS 0", rules.DUP_QOS_0, (0x38, 0x39), text("t") + "00"),
    refused("an empty topic", rules.TOPIC_EMPTY, frame(0x30, "0000"), ONLY_311),
    refused("an empty topic, no alias", rules.TOPIC_EMPTY, frame(0x30, "0000 00"), ONLY_5),
    refused("an empty topic, other properties", rules.TOPIC_EMPTY, frame(0x30, "0000" + block("01 01")), ONLY_5),
    *[
        refused(f"topic {topic}", rules.TOPIC_WILDCARD, frame(0x30, text(topic) + "00"))
        for topic in ("+", "#", "a/+/b", "a/#", "a+", "#a")
    ],
]


def _filters(rule: Rule, *wrong: str) -> list[Case]:
    return [
        case
        for one in wrong
        for case in (
            refused(f"SUBSCRIBE {one}", rule, frame(0x82, "0001" + text(one) + "00"), ONLY_311),
            refused(f"SUBSCRIBE {one}", rule, frame(0x82, "0001 00" + text(one) + "00"), ONLY_5),
            refused(f"UNSUBSCRIBE {one}", rule, frame(0xA2, "0001" + text(one)), ONLY_311),
            refused(f"UNSUBSCRIBE {one}", rule, frame(0xA2, "0001 00" + text(one)), ONLY_5),
        )
    ]


def _options(what: str, rule: Rule, options: str, versions: tuple[int, ...], wanted: str = "a") -> list[Case]:
    return [
        refused(what, rule, frame(0x82, "0001" + ("00" if version == V5 else "") + text(wanted) + options), (version,))
        for version in versions
    ]


SUBSCRIPTIONS = [
    *_filters(rules.FILTER_EMPTY, ""),
    *_filters(rules.FILTER_HASH, "a#", "a/#/b", "##", "#/a", "a/b#", "#a", "$share/g/a#"),
    *_filters(rules.FILTER_PLUS, "a+", "+a", "a/b+/c", "++", "$share/g/+a"),
    *_filters(rules.SHARE_NAME_EMPTY, "$share/", "$share//a"),
    *_filters(rules.SHARE_FORM, "$share/g", "$share/g/", "$share/g+/a", "$share/#/a", "$share/+/a"),
    refused("a SUBSCRIBE without a filter", rules.SUBSCRIBE_EMPTY, frame(0x82, "0001"), ONLY_311),
    refused("a SUBSCRIBE without a filter", rules.SUBSCRIBE_EMPTY, frame(0x82, "0001 00"), ONLY_5),
    refused("an UNSUBSCRIBE without a filter", rules.UNSUBSCRIBE_EMPTY, frame(0xA2, "0001"), ONLY_311),
    refused("an UNSUBSCRIBE without a filter", rules.UNSUBSCRIBE_EMPTY, frame(0xA2, "0001 00"), ONLY_5),
    *[
        case
        for bit in ("04", "08", "10", "20", "40", "80")
        for case in _options(f"option {bit}", rules.OPTIONS_RESERVED, bit, ONLY_311)
    ],
    *[case for bit in ("40", "80", "c1") for case in _options(f"option {bit}", rules.OPTIONS_RESERVED, bit, ONLY_5)],
    *_options("QoS 3", rules.OPTIONS_QOS_3, "03", BOTH),
    *_options("retain handling 3", rules.RETAIN_HANDLING_3, "30", ONLY_5),
    *_options("no local on a share", rules.NO_LOCAL_SHARED, "04", ONLY_5, "$share/g/a"),
    from_server("a SUBACK without a code", rules.SUBACK_EMPTY, frame(0x90, "0001"), ONLY_311),
    from_server("a SUBACK without a code", rules.SUBACK_EMPTY, frame(0x90, "0001 00"), ONLY_5),
    from_server("an UNSUBACK without a code", rules.UNSUBACK_EMPTY, frame(0xB0, "0001 00"), ONLY_5),
]

CODES = [
    refused("PUBACK 0x01", rules.PUBACK_CODE, frame(0x40, "0001 01"), ONLY_5),
    refused("PUBACK 0x92", rules.PUBACK_CODE, frame(0x40, "0001 92 00"), ONLY_5),
    refused("PUBREC 0x11", rules.PUBREC_CODE, frame(0x50, "0001 11"), ONLY_5),
    refused("PUBREL 0x10", rules.PUBREL_CODE, frame(0x62, "0001 10"), ONLY_5),
    refused("PUBCOMP 0x80", rules.PUBCOMP_CODE, frame(0x70, "0001 80"), ONLY_5),
    from_server("SUBACK 3", rules.SUBACK_CODE, frame(0x90, "0001 03"), ONLY_311),
    from_server("SUBACK 0x87 in 3.1.1", rules.SUBACK_CODE, frame(0x90, "0001 87"), ONLY_311),
    from_server("SUBACK 3", rules.SUBACK_CODE, frame(0x90, "0001 00 00 03"), ONLY_5),
    from_server("UNSUBACK 1", rules.UNSUBACK_CODE, frame(0xB0, "0001 00 01"), ONLY_5),
    refused("DISCONNECT 0x01", rules.DISCONNECT_CODE, frame(0xE0, "01"), ONLY_5),
    refused("a client says that the session was taken over", rules.DISCONNECT_CODE, frame(0xE0, "8e 00"), ONLY_5),
    from_server("a server disconnects with the will", rules.DISCONNECT_CODE, frame(0xE0, "04"), ONLY_5),
    refused("AUTH 0x01", rules.AUTH_CODE, frame(0xF0, "01 00"), ONLY_5),
    refused("a client says that authentication succeeded", rules.AUTH_CODE, frame(0xF0, ""), ONLY_5),
    from_server("a server re-authenticates", rules.AUTH_CODE, frame(0xF0, "19 00"), ONLY_5),
]

ALL = [*FRAMING, *STRINGS, *IDENTIFIERS, *PROPERTIES, *CONNECTS, *PUBLISHES, *SUBSCRIPTIONS, *CODES]
