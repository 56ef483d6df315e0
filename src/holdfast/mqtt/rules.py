"""What the standards forbid: every rule about the form of a packet, with its number in both versions.

A rule names the reason code that a v5 peer gets, the normative statement it breaks in MQTT 3.1.1 and in MQTT 5.0,
and what is wrong in a few words. Many things are called malformed or a protocol error by the standards without a
number of their own; those carry the number of the general statement (`MQTT-4.8.0-1` and `MQTT-4.13.1-1`: close the
connection). A rule with an empty 3.1.1 clause cannot be broken in that version.

The codec raises `Violation` inside; its caller sees `ProtocolError`, which knows the version. That one stands apart
from the tree in `holdfast.errors`: it speaks of bytes on the wire, carries the wire's own codes, and is answered with a
packet on this connection or with silence.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MALFORMED = 0x81
PROTOCOL_ERROR = 0x82
UNSUPPORTED_VERSION = 0x84
CLIENT_ID_NOT_VALID = 0x85
FILTER_INVALID = 0x8F
TOPIC_INVALID = 0x90
ALIAS_INVALID = 0x94
TOO_LARGE = 0x95

GENERAL_311 = "MQTT-4.8.0-1"
GENERAL_5 = "MQTT-4.13.1-1"


class Rule(msgspec.Struct, frozen=True, gc=False):
    """One thing a peer must not do."""

    reason_code: int
    text: str
    v311: str = GENERAL_311
    v5: str = GENERAL_5

    def clause(self, version: int) -> str:
        return self.v311 if version == 4 else self.v5


class Violation(Exception):
    """A rule was broken. Raised inside the codec, where the version need not be known."""

    def __init__(self, rule: Rule, detail: str = "") -> None:
        self.rule = rule
        self.detail = detail
        super().__init__(rule.text, detail)


class ProtocolError(Exception):
    """The peer broke the protocol: answer with `reason_code` where its version allows it, and close the connection.

    `packets` are those of the same read that came before the offending one; they are still to be handled.
    """

    def __init__(self, reason_code: int, message: str, clause: str, packets: Sequence[object] = ()) -> None:
        self.reason_code = reason_code
        self.message = message
        self.clause = clause
        self.packets = packets
        super().__init__(reason_code, message, clause)

    def again(self) -> ProtocolError:
        """The same error for data that comes after it; what came before was handed out already."""
        return ProtocolError(self.reason_code, self.message, self.clause)

    def __str__(self) -> str:
        return f"{self.message} [{self.clause}], reason code 0x{self.reason_code:02X}"


def _numbered(reason_code: int, clause: str, text: str) -> Rule:
    """A rule that has the same number in both versions."""
    return Rule(reason_code, text, clause, clause)


def _only_5(reason_code: int, text: str, clause: str = GENERAL_5) -> Rule:
    return Rule(reason_code, text, "", clause)


# --- framing --------------------------------------------------------------------------------------------------------

LENGTH_TOO_LONG = Rule(MALFORMED, "a length takes more than four bytes")
LENGTH_NOT_MINIMAL = _only_5(MALFORMED, "a length takes more bytes than it needs", "MQTT-1.5.5-1")
PACKET_TOO_LARGE = Rule(TOO_LARGE, "the packet is larger than the receiver takes", v5="MQTT-3.2.2-15")
TYPE_RESERVED = Rule(MALFORMED, "the packet type is reserved")
WRONG_DIRECTION = Rule(PROTOCOL_ERROR, "only the other side sends this packet")
FLAGS_RESERVED = Rule(MALFORMED, "reserved flags of the fixed header are wrong", "MQTT-2.2.2-2", "MQTT-2.1.3-1")
FLAGS_PUBREL = _numbered(MALFORMED, "MQTT-3.6.1-1", "the flags of a PUBREL are not 0010")
FLAGS_SUBSCRIBE = _numbered(MALFORMED, "MQTT-3.8.1-1", "the flags of a SUBSCRIBE are not 0010")
FLAGS_UNSUBSCRIBE = _numbered(MALFORMED, "MQTT-3.10.1-1", "the flags of an UNSUBSCRIBE are not 0010")
FLAGS_DISCONNECT = _numbered(MALFORMED, "MQTT-3.14.1-1", "the flags of a DISCONNECT are not 0")
FLAGS_AUTH = _only_5(MALFORMED, "the flags of an AUTH are not 0", "MQTT-3.15.1-1")
TRUNCATED = Rule(MALFORMED, "a field reaches past the end of the packet")
TRAILING = Rule(MALFORMED, "bytes follow the last field of the packet")

# --- strings and packet identifiers ---------------------------------------------------------------------------------

STRING_NOT_UTF8 = Rule(MALFORMED, "a string is not well-formed UTF-8", "MQTT-1.5.3-1", "MQTT-1.5.4-1")
STRING_HAS_NUL = Rule(MALFORMED, "a string contains U+0000", "MQTT-1.5.3-2", "MQTT-1.5.4-2")
PAIR_NOT_UTF8 = _only_5(MALFORMED, "a user property is not two proper strings", "MQTT-1.5.7-1")
ID_ZERO = Rule(PROTOCOL_ERROR, "the packet identifier is 0", "MQTT-2.3.1-1", "MQTT-2.2.1-3")
ID_ZERO_FROM_SERVER = Rule(PROTOCOL_ERROR, "the packet identifier is 0", "MQTT-2.3.1-4", "MQTT-2.2.1-4")
ID_ZERO_ACK = Rule(PROTOCOL_ERROR, "the packet identifier is 0", "MQTT-2.3.1-6", "MQTT-2.2.1-5")
ID_ZERO_SUBACK = Rule(PROTOCOL_ERROR, "the packet identifier is 0", "MQTT-2.3.1-7", "MQTT-2.2.1-6")

# --- properties -----------------------------------------------------------------------------------------------------

PROPERTIES_MISSING = _only_5(MALFORMED, "the property length is missing", "MQTT-2.2.2-1")
PROPERTY_NOT_ALLOWED = _only_5(MALFORMED, "this packet has no such property")
PROPERTY_TWICE = _only_5(PROTOCOL_ERROR, "a property appears more than once")
PROPERTY_VALUE = _only_5(PROTOCOL_ERROR, "the value of a property is out of range")
ALIAS_ZERO = _only_5(ALIAS_INVALID, "the topic alias is 0", "MQTT-3.3.2-8")
RESPONSE_TOPIC_WILDCARD = _only_5(PROTOCOL_ERROR, "the response topic contains a wildcard", "MQTT-3.3.2-14")
RESPONSE_TOPIC_EMPTY = _only_5(PROTOCOL_ERROR, "the response topic is empty", "MQTT-4.7.3-1")
SUBSCRIPTION_ID_FROM_CLIENT = _only_5(PROTOCOL_ERROR, "a client sends no subscription identifier", "MQTT-3.3.4-6")
SESSION_EXPIRY_FROM_SERVER = _only_5(PROTOCOL_ERROR, "a server sends no session expiry", "MQTT-3.14.2-2")
AUTH_DATA_WITHOUT_METHOD = _only_5(PROTOCOL_ERROR, "authentication data comes without a method")
AUTH_METHOD_MISSING = _only_5(PROTOCOL_ERROR, "an AUTH names no authentication method")

# --- CONNECT and CONNACK --------------------------------------------------------------------------------------------

CONNECT_NOT_FIRST = _numbered(PROTOCOL_ERROR, "MQTT-3.1.0-1", "the first packet is not a CONNECT")
CONNECT_TWICE = _numbered(PROTOCOL_ERROR, "MQTT-3.1.0-2", "a second CONNECT")
PROTOCOL_NAME = _numbered(UNSUPPORTED_VERSION, "MQTT-3.1.2-1", "the protocol name is not MQTT")
PROTOCOL_LEVEL = _numbered(UNSUPPORTED_VERSION, "MQTT-3.1.2-2", "the protocol version is neither 3.1.1 (4) nor 5")
CONNECT_RESERVED = _numbered(MALFORMED, "MQTT-3.1.2-3", "the reserved flag of CONNECT is set")
WILL_MISSING = _numbered(MALFORMED, "MQTT-3.1.2-9", "the will topic or payload is missing")
WILL_QOS_UNUSED = Rule(MALFORMED, "a will QoS without a will", "MQTT-3.1.2-13", "MQTT-3.1.2-11")
WILL_QOS_3 = Rule(MALFORMED, "the will QoS is 3", "MQTT-3.1.2-14", "MQTT-3.1.2-12")
WILL_RETAIN_UNUSED = Rule(MALFORMED, "will retain without a will", "MQTT-3.1.2-15", "MQTT-3.1.2-13")
USERNAME_UNUSED = Rule(MALFORMED, "a user name, and no flag for it", "MQTT-3.1.2-18", "MQTT-3.1.2-16")
USERNAME_MISSING = Rule(MALFORMED, "the user name is missing", "MQTT-3.1.2-19", "MQTT-3.1.2-17")
PASSWORD_UNUSED = Rule(MALFORMED, "a password, and no flag for it", "MQTT-3.1.2-20", "MQTT-3.1.2-18")
PASSWORD_MISSING = Rule(MALFORMED, "the password is missing", "MQTT-3.1.2-21", "MQTT-3.1.2-19")
PASSWORD_ALONE = Rule(MALFORMED, "a password without a user name", "MQTT-3.1.2-22", "")
CLIENT_ID_MISSING = _numbered(MALFORMED, "MQTT-3.1.3-3", "the client identifier is missing")
CLIENT_ID_EMPTY = Rule(CLIENT_ID_NOT_VALID, "an empty client identifier needs a clean session", "MQTT-3.1.3-8", "")
CONNECT_TRAILING = _numbered(MALFORMED, "MQTT-3.1.4-1", "bytes follow the password")
WILL_TOPIC_WILDCARD = Rule(TOPIC_INVALID, "the will topic contains a wildcard", "MQTT-4.7.1-1", "MQTT-4.7.0-1")
CONNACK_FLAGS = Rule(MALFORMED, "reserved flags of CONNACK are set", v5="MQTT-3.2.2-1")
CONNACK_SESSION = Rule(PROTOCOL_ERROR, "a refusal says that a session is present", "MQTT-3.2.2-4", "MQTT-3.2.2-6")
CONNACK_CODE = Rule(PROTOCOL_ERROR, "CONNACK has no such code", v5="MQTT-3.2.2-8")

# --- PUBLISH and topics ---------------------------------------------------------------------------------------------

QOS_3 = _numbered(MALFORMED, "MQTT-3.3.1-4", "the QoS is 3")
DUP_QOS_0 = _numbered(MALFORMED, "MQTT-3.3.1-2", "DUP is set at QoS 0")
TOPIC_EMPTY = _numbered(PROTOCOL_ERROR, "MQTT-4.7.3-1", "the topic name is empty")
TOPIC_WILDCARD = _numbered(TOPIC_INVALID, "MQTT-3.3.2-2", "the topic name contains a wildcard")
FILTER_EMPTY = _numbered(FILTER_INVALID, "MQTT-4.7.3-1", "the topic filter is empty")
FILTER_HASH = Rule(FILTER_INVALID, "# is not the whole last level of the filter", "MQTT-4.7.1-2", "MQTT-4.7.1-1")
FILTER_PLUS = Rule(FILTER_INVALID, "+ is not a whole level of the filter", "MQTT-4.7.1-3", "MQTT-4.7.1-2")
SHARE_NAME_EMPTY = Rule(FILTER_INVALID, "the share name is empty", v5="MQTT-4.8.2-1")
SHARE_FORM = Rule(FILTER_INVALID, "a share is $share/<name>/<filter>, no wildcard in the name", v5="MQTT-4.8.2-2")

# --- acknowledgements and subscriptions -----------------------------------------------------------------------------

PUBACK_CODE = _only_5(PROTOCOL_ERROR, "PUBACK has no such reason code", "MQTT-3.4.2-1")
PUBREC_CODE = _only_5(PROTOCOL_ERROR, "PUBREC has no such reason code", "MQTT-3.5.2-1")
PUBREL_CODE = _only_5(PROTOCOL_ERROR, "PUBREL has no such reason code", "MQTT-3.6.2-1")
PUBCOMP_CODE = _only_5(PROTOCOL_ERROR, "PUBCOMP has no such reason code", "MQTT-3.7.2-1")
SUBACK_CODE = _numbered(PROTOCOL_ERROR, "MQTT-3.9.3-2", "SUBACK has no such code")
UNSUBACK_CODE = _only_5(PROTOCOL_ERROR, "UNSUBACK has no such reason code", "MQTT-3.11.3-2")
DISCONNECT_CODE = _only_5(PROTOCOL_ERROR, "this side sends no such DISCONNECT reason code", "MQTT-3.14.2-1")
AUTH_CODE = _only_5(PROTOCOL_ERROR, "this side sends no such AUTH reason code", "MQTT-3.15.2-1")
SUBSCRIBE_EMPTY = Rule(PROTOCOL_ERROR, "a SUBSCRIBE without a filter", "MQTT-3.8.3-3", "MQTT-3.8.3-2")
OPTIONS_RESERVED = Rule(MALFORMED, "reserved subscription options are set", "MQTT-3.8.3-4", "MQTT-3.8.3-5")
OPTIONS_QOS_3 = Rule(PROTOCOL_ERROR, "the requested QoS is 3", "MQTT-3.8.3-4")
RETAIN_HANDLING_3 = _only_5(PROTOCOL_ERROR, "retain handling is 3")
NO_LOCAL_SHARED = _only_5(PROTOCOL_ERROR, "no local on a shared subscription", "MQTT-3.8.3-4")
SUBACK_EMPTY = Rule(PROTOCOL_ERROR, "a SUBACK without a code", "MQTT-3.8.4-5", "MQTT-3.8.4-6")
UNSUBSCRIBE_EMPTY = _numbered(PROTOCOL_ERROR, "MQTT-3.10.3-2", "an UNSUBSCRIBE without a filter")
UNSUBACK_EMPTY = _only_5(PROTOCOL_ERROR, "an UNSUBACK without a reason code", "MQTT-3.11.3-1")

ALL = {name: value for name, value in globals().items() if isinstance(value, Rule)}
