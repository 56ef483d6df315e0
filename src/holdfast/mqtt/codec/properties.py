"""Properties of MQTT 5: one typed value for all packets, the table of who may carry what, and both directions.

A property that a packet may not carry is refused when read and left out when written, so that a will's properties can
go out with its message, and a message to a 3.1.1 client with none.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, TypeAlias

import msgspec

from holdfast.mqtt import rules
from holdfast.mqtt.rules import Rule, Violation

VARINT_MAX: Final = 268_435_455  # four bytes of seven bits
_UNSIGNED_32_MAX = 0xFFFF_FFFF


class Properties(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Every property of every packet; None (or an empty tuple) where it was not given."""

    payload_format: int | None = None
    message_expiry_s: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_ids: tuple[int, ...] = ()
    session_expiry_s: int | None = None
    assigned_client_id: str | None = None
    server_keep_alive_s: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_s: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    maximum_packet_bytes: int | None = None
    wildcards_available: int | None = None
    subscription_ids_available: int | None = None
    shared_available: int | None = None

    def get(self, name: str) -> str | None:
        """The first user property of this name."""
        for key, value in self.user_properties:
            if key == name:
                return value
        return None


NO_PROPERTIES: Final = Properties()

# --- reading one value: (bytes, position) to (value, position after it) ---------------------------------------------

Value: TypeAlias = int | str | bytes | tuple[object, ...]
Reader: TypeAlias = Callable[[bytes, int], tuple[Value, int]]
Writer: TypeAlias = Callable[[Any], bytes]  # of the type that the field has


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A variable byte integer that must end inside `data` and be as short as can be."""
    value = shift = 0
    for position in range(at, at + 4):
        if position >= len(data):
            raise Violation(rules.TRUNCATED)
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if not byte and shift:
                raise Violation(rules.LENGTH_NOT_MINIMAL)
            return value, position + 1
        shift += 7
    raise Violation(rules.LENGTH_TOO_LONG)


def check_text(raw: bytes) -> str:
    """What a UTF-8 encoded string must be; control characters and non-characters the standard leaves to the receiver,
    and we let them pass."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise Violation(rules.STRING_NOT_UTF8) from None
    if "\0" in text:
        raise Violation(rules.STRING_HAS_NUL)
    return text


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    start = at + 2
    stop = start + int.from_bytes(data[at:start], "big")
    if start > len(data) or stop > len(data):
        raise Violation(rules.TRUNCATED)
    return data[start:stop], stop


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    start = at + 2
    stop = start + int.from_bytes(data[at:start], "big")
    if start > len(data) or stop > len(data):
        raise Violation(rules.TRUNCATED)
    return check_text(data[start:stop]), stop


def _unsigned(size: int) -> Callable[[bytes, int], tuple[int, int]]:
    def read(data: bytes, at: int) -> tuple[int, int]:
        after = at + size
        if after > len(data):
            raise Violation(rules.TRUNCATED)
        return int.from_bytes(data[at:after], "big"), after

    return read


_read_u8 = _unsigned(1)
_read_u16 = _unsigned(2)
_read_u32 = _unsigned(4)


def _checked(read: Callable[[bytes, int], tuple[int, int]], low: int, high: int, rule: Rule) -> Reader:
    def read_checked(data: bytes, at: int) -> tuple[int, int]:
        value, after = read(data, at)
        if not low <= value <= high:
            raise Violation(rule)
        return value, after

    return read_checked


def _read_response_topic(data: bytes, at: int) -> tuple[str, int]:
    topic, after = _read_text(data, at)
    if not topic:
        raise Violation(rules.RESPONSE_TOPIC_EMPTY)
    if "+" in topic or "#" in topic:
        raise Violation(rules.RESPONSE_TOPIC_WILDCARD)
    return topic, after


def _refused(rule: Rule) -> Reader:
    def refuse(_data: bytes, _at: int) -> tuple[Value, int]:
        raise Violation(rule)

    return refuse


def _read_subscription_id(data: bytes, at: int) -> tuple[tuple[int], int]:
    value, after = read_varint(data, at)
    if not value:
        raise Violation(rules.PROPERTY_VALUE)
    return (value,), after


_read_flag = _checked(_read_u8, 0, 1, rules.PROPERTY_VALUE)

# --- writing one value ----------------------------------------------------------------------------------------------


BYTES: Final = tuple(bytes((value,)) for value in range(256))  # cheaper to look up than to make


def write_varint(value: int) -> bytes:
    if value < 0x80:
        return BYTES[value]
    if value < 0x4000:
        return BYTES[value & 0x7F | 0x80] + BYTES[value >> 7]
    if value > VARINT_MAX:
        raise ValueError(f"{value} does not fit into four bytes of seven bits")
    return BYTES[value & 0x7F | 0x80] + write_varint(value >> 7)


_write_u8 = Struct(">B").pack
_write_u16 = Struct(">H").pack
_write_u32 = Struct(">I").pack


def write_bytes(value: bytes) -> bytes:
    return _write_u16(len(value)) + value


def write_text(value: str) -> bytes:
    raw = value.encode()
    if b"\0" in raw:
        raise ValueError("a string cannot contain U+0000")
    return _write_u16(len(raw)) + raw


def _write_pair(pair: tuple[str, str]) -> bytes:
    name = pair[0].encode()
    value = pair[1].encode()
    if b"\0" in name or b"\0" in value:
        raise ValueError("a string cannot contain U+0000")
    return b"&" + _write_u16(len(name)) + name + _write_u16(len(value)) + value


# --- the table ------------------------------------------------------------------------------------------------------

USER_PROPERTY: Final = 0x26
SUBSCRIPTION_ID: Final = 0x0B

# identifier: (field, how it is read, how it is written)
_FIELDS: Final[dict[int, tuple[str, Reader, Writer]]] = {
    0x01: ("payload_format", _read_flag, _write_u8),
    0x02: ("message_expiry_s", _read_u32, _write_u32),
    0x03: ("content_type", _read_text, write_text),
    0x08: ("response_topic", _read_response_topic, write_text),
    0x09: ("correlation_data", _read_bytes, write_bytes),
    0x11: ("session_expiry_s", _read_u32, _write_u32),
    0x12: ("assigned_client_id", _read_text, write_text),
    0x13: ("server_keep_alive_s", _read_u16, _write_u16),
    0x15: ("authentication_method", _read_text, write_text),
    0x16: ("authentication_data", _read_bytes, write_bytes),
    0x17: ("request_problem_information", _read_flag, _write_u8),
    0x18: ("will_delay_s", _read_u32, _write_u32),
    0x19: ("request_response_information", _read_flag, _write_u8),
    0x1A: ("response_information", _read_text, write_text),
    0x1C: ("server_reference", _read_text, write_text),
    0x1F: ("reason_string", _read_text, write_text),
    0x21: ("receive_maximum", _checked(_read_u16, 1, 0xFFFF, rules.PROPERTY_VALUE), _write_u16),
    0x22: ("topic_alias_maximum", _read_u16, _write_u16),
    0x23: ("topic_alias", _checked(_read_u16, 1, 0xFFFF, rules.ALIAS_ZERO), _write_u16),
    0x24: ("maximum_qos", _read_flag, _write_u8),
    0x25: ("retain_available", _read_flag, _write_u8),
    0x27: ("maximum_packet_bytes", _checked(_read_u32, 1, _UNSIGNED_32_MAX, rules.PROPERTY_VALUE), _write_u32),
    0x28: ("wildcards_available", _read_flag, _write_u8),
    0x29: ("subscription_ids_available", _read_flag, _write_u8),
    0x2A: ("shared_available", _read_flag, _write_u8),
}


class Table:
    """The properties one kind of packet may carry, in one direction. All but PINGs may carry user properties."""

    __slots__ = ("many_ids", "readers", "writers")

    def __init__(self, *identifiers: int, many_ids: bool = False, refused: dict[int, Rule] | None = None) -> None:
        self.many_ids = many_ids
        self.readers: dict[int, tuple[str, Reader]] = {}
        self.writers: list[tuple[str, bytes, Writer]] = []
        for identifier in identifiers:
            if identifier == SUBSCRIPTION_ID:
                self.readers[identifier] = ("subscription_ids", _read_subscription_id)
            else:
                field, reader, writer = _FIELDS[identifier]
                self.readers[identifier] = (field, reader)
                self.writers.append((field, bytes((identifier,)), writer))
        for identifier, rule in (refused or {}).items():
            self.readers[identifier] = ("", _refused(rule))


_MESSAGE = (0x01, 0x02, 0x03, 0x08, 0x09)
CONNECT: Final = Table(0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x27)
WILL: Final = Table(*_MESSAGE, 0x18)
CONNACK: Final = Table(
    *(0x11, 0x12, 0x13, 0x15, 0x16, 0x1A, 0x1C, 0x1F, 0x21, 0x22, 0x24, 0x25, 0x27, 0x28, 0x29, 0x2A)
)
PUBLISH_FROM_CLIENT: Final = Table(*_MESSAGE, 0x23, refused={SUBSCRIPTION_ID: rules.SUBSCRIPTION_ID_FROM_CLIENT})
PUBLISH_FROM_SERVER: Final = Table(*_MESSAGE, SUBSCRIPTION_ID, 0x23, many_ids=True)
ACK: Final = Table(0x1F)
SUBSCRIBE: Final = Table(SUBSCRIPTION_ID)
UNSUBSCRIBE: Final = Table()
DISCONNECT_FROM_CLIENT: Final = Table(0x11, 0x1F, 0x1C)
DISCONNECT_FROM_SERVER: Final = Table(0x1F, 0x1C, refused={0x11: rules.SESSION_EXPIRY_FROM_SERVER})
AUTH: Final = Table(0x15, 0x16, 0x1F)

# --- a whole block --------------------------------------------------------------------------------------------------


def read_block(block: bytes, table: Table) -> Properties:
    """The properties in `block`, the bytes after the property length."""
    if not block:
        return NO_PROPERTIES
    found: dict[str, Value] = {}
    pairs: list[tuple[str, str]] = []
    readers = table.readers
    at = 0
    end = len(block)
    while at < end:
        identifier = block[at]
        if identifier == USER_PROPERTY:
            # A queue's message carries several of these, so they are read here and not by a call: 0.5 µs each, not 1.
            try:
                middle = at + 3 + (block[at + 1] << 8 | block[at + 2])
                stop = middle + 2 + (block[middle] << 8 | block[middle + 1])
                name = block[at + 3 : middle].decode()
                value = block[middle + 2 : stop].decode()
            except IndexError:
                raise Violation(rules.TRUNCATED) from None
            except UnicodeDecodeError:
                raise Violation(rules.PAIR_NOT_UTF8) from None
            if stop > end:
                raise Violation(rules.TRUNCATED)
            if "\0" in name or "\0" in value:
                raise Violation(rules.PAIR_NOT_UTF8)
            pairs.append((name, value))
            at = stop
        else:
            entry = readers.get(identifier)
            if entry is None:
                raise Violation(rules.PROPERTY_NOT_ALLOWED, f"0x{identifier:02X}")
            field, reader = entry
            read, at = reader(block, at + 1)
            found[field] = _join(identifier, found[field], read, table) if field in found else read
    if pairs:
        found["user_properties"] = tuple(pairs)
    return Properties(**found)  # type: ignore[arg-type]  # the table gives each field its type


def _join(identifier: int, before: Value, value: Value, table: Table) -> Value:
    """Only a server's PUBLISH may repeat a property: one subscription identifier for each subscription that matched."""
    if identifier == SUBSCRIPTION_ID and table.many_ids and isinstance(before, tuple) and isinstance(value, tuple):
        return before + value
    raise Violation(rules.PROPERTY_TWICE, f"0x{identifier:02X}")


def write_block(properties: Properties, table: Table) -> bytes:
    """The property length and the properties that `table` allows."""
    if properties is NO_PROPERTIES:
        return b"\0"
    parts = [
        head + write(value) for field, head, write in table.writers if (value := getattr(properties, field)) is not None
    ]
    if properties.subscription_ids and SUBSCRIPTION_ID in table.readers:
        parts += [b"\x0b" + write_varint(one) for one in properties.subscription_ids]
    parts += map(_write_pair, properties.user_properties)
    block = b"".join(parts)
    return write_varint(len(block)) + block
