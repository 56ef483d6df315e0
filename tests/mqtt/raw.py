"""Raw packets for conformance cases: bytes as hexadecimal with the fields set apart, and who sends them when."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.mqtt.codec import V5, V311
from holdfast.mqtt.rules import Rule

BOTH = (V311, V5)
ONLY_311 = (V311,)
ONLY_5 = (V5,)


class Case(NamedTuple):
    """`raw` is sent in each of `versions` and must break `rule`. `connect`: as the first packet, else after it."""

    what: str
    rule: Rule
    raw: bytes
    versions: tuple[int, ...] = BOTH
    from_client: bool = True
    connect: bool = False


def frame(first: int, body: str | bytes) -> bytes:
    raw = bytes.fromhex(body) if isinstance(body, str) else body
    assert len(raw) < 128
    return bytes((first, len(raw))) + raw


def text(value: str | bytes) -> str:
    raw = value.encode() if isinstance(value, str) else value
    return (len(raw).to_bytes(2, "big") + raw).hex()


def block(properties: str) -> str:
    return f"{len(bytes.fromhex(properties)):02x}" + properties


def connect(version: int, flags: str, payload: str, properties: str = "") -> bytes:
    body = text("MQTT") + f"{version:02x}" + flags + "003c"
    return frame(0x10, body + (block(properties) if version == V5 else "") + payload)


def refused(what: str, rule: Rule, raw: bytes, versions: tuple[int, ...] = BOTH) -> Case:
    return Case(what, rule, raw, versions)


def connects(what: str, rule: Rule, flags: str, payload: str, versions: tuple[int, ...] = BOTH) -> list[Case]:
    return [hello(what, rule, connect(version, flags, payload), (version,)) for version in versions]


def property_5(what: str, rule: Rule, properties: str) -> Case:
    """A property of a PUBLISH from a client."""
    return refused(what, rule, frame(0x30, text("t") + block(properties)), ONLY_5)


def hello(what: str, rule: Rule, raw: bytes, versions: tuple[int, ...] = ONLY_5) -> Case:
    """The first packet of a connection; where it does not tell its version, errors are named after v5."""
    return Case(what, rule, raw, versions, connect=True)


def subscribe_5(what: str, rule: Rule, properties: str) -> Case:
    """A property of a SUBSCRIBE."""
    return refused(what, rule, frame(0x82, "0001" + block(properties) + text("a") + "00"), ONLY_5)


def each(
    what: str, rule: Rule, firsts: tuple[int, ...], body: str = "", versions: tuple[int, ...] = BOTH
) -> list[Case]:
    """The same body after several first bytes."""
    return [refused(f"{what} {first:02x}", rule, frame(first, body), versions) for first in firsts]


def from_server(what: str, rule: Rule, raw: bytes, versions: tuple[int, ...] = BOTH) -> Case:
    return Case(what, rule, raw, versions, from_client=False)
