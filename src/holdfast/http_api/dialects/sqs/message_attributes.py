"""Attributes of messages: checked, digested as SDKs do it, and kept as the message's properties.

An attribute of type `String` is a property of its name, so that consumers of other protocols see it, and their
properties are attributes here. The types of others are in one more property, `sqs-types`; binary values are in base64.
Properties that begin with `sqs-` are this module's own.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from base64 import b64decode
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final

import msgspec

from holdfast.http_api.dialects.sqs.refusals import Refusal, invalid
from holdfast.http_api.dialects.sqs.shapes import Attributes, AttributeValue

ATTRIBUTES_MAX: Final = 10
OWN_PREFIX: Final = "sqs-"
TYPES: Final = "sqs-types"
TRACE_HEADER: Final = "sqs-trace-header"
SENDER: Final = "sqs-sender"
ENCODING: Final = "sqs-encoding"
"""An attribute of messages whose payload is no text: `base64`, as their body then is."""

_NAME = re.compile(r"(?!\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
_TYPE = re.compile(r"(String|Number|Binary)(\.[^\s]{1,249})?")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
_TEXT = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")
_SIZE = Struct(">I")

Property = tuple[str, str]

_types = msgspec.json.Decoder(dict[str, str]).decode


def is_text(text: str) -> bool:
    """Whether it has only the characters that XML, and so SQS, can carry."""
    return _TEXT.fullmatch(text) is not None


def check_attributes(attributes: Attributes) -> None:
    """Raises Refusal, with the words of AWS."""
    if len(attributes) > ATTRIBUTES_MAX:
        raise invalid("MessageAttributes", len(attributes), f"A message has at most {ATTRIBUTES_MAX} attributes.")
    for name, value in attributes.items():
        if not _NAME.fullmatch(name) or name.lower().startswith(("aws.", "amazon.", OWN_PREFIX)):
            raise invalid("MessageAttributes", repr(name[:256]), "It is not a name that an attribute may have.")
        match = _TYPE.fullmatch(value.data_type)
        if match is None:
            raise invalid(
                "MessageAttributes",
                repr(name),
                f"The type {value.data_type[:256]!r} is not String, Number or Binary, or one of these with a label.",
            )
        _check_value(name, match[1], value)


def _check_value(name: str, kind: str, value: AttributeValue) -> None:
    given = value.binary_value if kind == "Binary" else value.string_value
    other = value.string_value if kind == "Binary" else value.binary_value
    if not given or other:
        raise invalid("MessageAttributes", repr(name), f"It must have exactly one value, of the type {kind}.")
    if kind == "Binary":
        try:
            b64decode(given, validate=True)
        except binascii.Error:
            raise invalid("MessageAttributes", repr(name), "Its value is not base64.") from None
    elif not is_text(given):
        raise Refusal("InvalidMessageContents", f"The attribute {name!r} has characters that are not allowed.")
    elif kind == "Number" and not _NUMBER.fullmatch(given):
        raise invalid("MessageAttributes", repr(name), "Its value is not a number.")


def size_bytes(attributes: Attributes) -> int:
    """What counts of them against the largest size of a message."""
    return sum(len(name.encode()) + len(one.data_type.encode()) + len(_raw(one)) for name, one in attributes.items())


def md5(attributes: Attributes) -> str | None:
    """The digest that SDKs compare, None of no attributes: names in order, each with its type and value, and with their
    lengths in bytes before them."""
    if not attributes:
        return None
    state = hashlib.md5(usedforsecurity=False)
    for name, value in sorted(attributes.items()):
        for part in (name.encode(), value.data_type.encode()):
            state.update(_SIZE.pack(len(part)) + part)
        raw = _raw(value)
        state.update((b"\2" if value.binary_value is not None else b"\1") + _SIZE.pack(len(raw)) + raw)
    return state.hexdigest()


def _raw(value: AttributeValue) -> bytes:
    if value.binary_value is not None:
        return b64decode(value.binary_value)
    return (value.string_value or "").encode()


# --- as properties --------------------------------------------------------------------------------------------------


def to_properties(attributes: Attributes) -> list[Property]:
    found = [
        (name, value.string_value if value.binary_value is None else value.binary_value)
        for name, value in attributes.items()
    ]
    types = {name: value.data_type for name, value in attributes.items() if value.data_type != "String"}
    properties = [(name, text or "") for name, text in found]
    return [*properties, (TYPES, msgspec.json.encode(types).decode())] if types else properties


def from_properties(properties: Mapping[str, str]) -> Attributes:
    try:
        types = _types(properties.get(TYPES, "{}"))
    except msgspec.DecodeError:  # of a producer of another protocol, who may name a property as it likes
        types = {}
    return {
        name: _value(types.get(name, "String"), text)
        for name, text in properties.items()
        if not name.startswith(OWN_PREFIX)
    }


def _value(data_type: str, text: str) -> AttributeValue:
    if data_type.startswith("Binary"):
        try:
            b64decode(text, validate=True)
            return AttributeValue(data_type=data_type, binary_value=text)
        except ValueError:
            data_type = "String"
    return AttributeValue(data_type=data_type, string_value=text)


def chosen(attributes: Attributes, names: Iterable[str]) -> Attributes:
    """Those that a receiver asks for: by name, by the beginning of names (`trace.*`), or all."""
    wanted = set(names)
    if wanted & {"All", ".*"}:
        return attributes
    prefixes = tuple(name[:-2] for name in wanted if name.endswith(".*"))
    return {name: value for name, value in attributes.items() if name in wanted or name.startswith(prefixes)}
