"""A cursor over the body of one packet, for the packets that are not on the hot path."""

from __future__ import annotations

from holdfast.mqtt import rules
from holdfast.mqtt.codec.properties import Properties, Table, check_text, read_block, read_varint
from holdfast.mqtt.rules import Rule, Violation


class Body:
    """Reads fields in order. `missing` is the rule broken when nothing is left where a field must be."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def more(self) -> bool:
        return self.at < len(self.data)

    def u8(self) -> int:
        if not self.more():
            raise Violation(rules.TRUNCATED)
        self.at += 1
        return self.data[self.at - 1]

    def u16(self, missing: Rule = rules.TRUNCATED) -> int:
        stop = self.at + 2
        if stop > len(self.data):
            raise Violation(rules.TRUNCATED if self.more() else missing)
        value = int.from_bytes(self.data[self.at : stop], "big")
        self.at = stop
        return value

    def packet_id(self, zero: Rule) -> int:
        value = self.u16()
        if not value:
            raise Violation(zero)
        return value

    def binary(self, missing: Rule = rules.TRUNCATED) -> bytes:
        return self._take(self.u16(missing))

    def text(self, missing: Rule = rules.TRUNCATED) -> str:
        return check_text(self.binary(missing))

    def properties(self, table: Table) -> Properties:
        if not self.more():
            raise Violation(rules.PROPERTIES_MISSING)
        size, self.at = read_varint(self.data, self.at)
        return read_block(self._take(size), table)

    def finish(self, trailing: Rule = rules.TRAILING) -> None:
        if self.more():
            raise Violation(trailing)

    def rest(self) -> bytes:
        rest = self.data[self.at :]
        self.at = len(self.data)
        return rest

    def _take(self, size: int) -> bytes:
        stop = self.at + size
        if stop > len(self.data):
            raise Violation(rules.TRUNCATED)
        raw = self.data[self.at : stop]
        self.at = stop
        return raw
