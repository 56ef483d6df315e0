"""Bytes to packets: all packets of a read together, however the reads cut them.

Each read is parsed where it lies. Only an incomplete packet at its end is copied aside, once; until the rest of it has
arrived further reads are appended and not looked at, so the work is linear in the bytes received whatever the cuts. A
packet is refused from its fixed header (type, flags, size) before its body is kept.

PUBLISH and the short PUBACK are decoded inside the loop, without a call for each field: together they are nearly all
of a broker's packets, and a QoS 1 PUBLISH costs less than a microsecond this way against three through `Body`.
"""

from __future__ import annotations

from typing import Final

from holdfast.mqtt import rules
from holdfast.mqtt.codec import connecting, subscribing
from holdfast.mqtt.codec import properties as tables
from holdfast.mqtt.codec.body import Body
from holdfast.mqtt.codec.packets import V5, V311, Packet, PingReq, PingResp, PubAck, Publish
from holdfast.mqtt.codec.properties import NO_PROPERTIES, VARINT_MAX, check_text, read_block, read_varint
from holdfast.mqtt.rules import ProtocolError, Rule, Violation

PACKET_BYTES_MAX: Final = VARINT_MAX + 5  # what the fixed header can express

# A publisher repeats its topics: a validated topic is kept by its bytes. 64 topics of 256 bytes bound what a
# connection can hold with it to 16 KiB; a full cache is cleared.
TOPICS_CACHED_MAX: Final = 64
TOPIC_CACHED_BYTES_MAX: Final = 256

_CONNECT = 1
_PUBLISH = 3
_PUBACK = 0x40
_PING_REQ = PingReq()
_PING_RESP = PingResp()

# --- the first byte -------------------------------------------------------------------------------------------------

_FROM_CLIENT = frozenset((1, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15))
_FROM_SERVER = frozenset((2, 3, 4, 5, 6, 7, 9, 11, 13, 14, 15))
_FLAG_RULES: dict[int, Rule] = {
    6: rules.FLAGS_PUBREL,
    8: rules.FLAGS_SUBSCRIBE,
    10: rules.FLAGS_UNSUBSCRIBE,
    14: rules.FLAGS_DISCONNECT,
    15: rules.FLAGS_AUTH,
}


def _broken_by(first: int, version: int, from_client: bool) -> Rule | None:
    """The rule that a packet with this first byte breaks, if any, once CONNECT is over."""
    kind, flags = first >> 4, first & 0x0F
    if kind == 0 or (kind == 15 and version == V311):
        return rules.TYPE_RESERVED
    if kind == _PUBLISH:
        if flags & 0x06 == 0x06:
            return rules.QOS_3
        return rules.DUP_QOS_0 if flags & 0x0E == 0x08 else None
    if flags != (2 if kind in (6, 8, 10) else 0):
        return _FLAG_RULES.get(kind, rules.FLAGS_RESERVED)
    if kind not in (_FROM_CLIENT if from_client else _FROM_SERVER):
        return rules.WRONG_DIRECTION
    return rules.CONNECT_TWICE if kind == _CONNECT else None


# by (version, from client): the first bytes that break a rule, and the packet type of each other (0 for those)
_BROKEN: dict[tuple[int, bool], dict[int, Rule]] = {
    (version, from_client): {
        first: rule for first in range(256) if (rule := _broken_by(first, version, from_client)) is not None
    }
    for version in (V311, V5)
    for from_client in (True, False)
}
_KINDS: dict[tuple[int, bool], bytes] = {
    who: bytes(0 if first in broken else first >> 4 for first in range(256)) for who, broken in _BROKEN.items()
}


# --- the decoder ----------------------------------------------------------------------------------------------------


class Decoder:
    """Decodes one side of one connection.

    With `version` None a CONNECT must come first and decides it; `version` then says how to answer, also when the
    CONNECT was refused. `max_connect_bytes` bounds the CONNECT alone: what a stranger may make us keep. The limits
    count whole packets, fixed header included. `from_client` False decodes what a server sends, for clients and tests.
    """

    __slots__ = (
        "_error", "_kinds", "_need", "_tail", "_topics", "connected", "from_client", "max_connect_bytes",
        "max_packet_bytes", "version",
    )  # fmt: skip

    def __init__(
        self,
        version: int | None = None,
        max_packet_bytes: int = PACKET_BYTES_MAX,
        *,
        max_connect_bytes: int | None = None,
        from_client: bool = True,
    ) -> None:
        if version is None and not from_client:
            raise ValueError("a server's packets do not carry their version: give it")
        self.version = version
        self.connected = version is not None
        self._kinds = _KINDS[version or V5, from_client]
        self.max_packet_bytes = max_packet_bytes
        self.max_connect_bytes = max_packet_bytes if max_connect_bytes is None else max_connect_bytes
        self.from_client = from_client
        self._tail = bytearray()
        self._need = 0
        self._error: ProtocolError | None = None
        self._topics: dict[bytes, str] = {}

    @property
    def buffered_bytes(self) -> int:
        """How much of an incomplete packet is kept."""
        return len(self._tail)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Packet]:
        """The packets that `data` completes.

        At a violation ProtocolError is raised; the packets before it are in its `packets`. It is raised again at every
        later call: a connection does not recover from one.
        """
        if self._error is not None:
            raise self._error.again()
        if self._tail:
            self._tail += data
            if len(self._tail) < self._need:
                return []
            data = bytes(self._tail)
            self._tail = bytearray()
        elif type(data) is not bytes:
            data = bytes(data)
        packets: list[Packet] = []
        try:
            at = 0 if self.connected else self._read_connect(data, packets)
            if self.connected:
                self._read_run(data, at, packets)
        except Violation as broken:
            rule = broken.rule
            message = f"{rule.text}: {broken.detail}" if broken.detail else rule.text
            self._tail = bytearray()
            self._error = ProtocolError(rule.reason_code, message, rule.clause(self.version or V5), packets)
            raise self._error from None
        return packets

    def _keep(self, data: bytes, at: int, need: int) -> None:
        """Copy an incomplete packet aside, to be looked at again when `need` bytes of it are there."""
        self._tail += memoryview(data)[at:]
        self._need = need

    # --- CONNECT ----------------------------------------------------------------------------------------------------

    def _read_connect(self, data: bytes, packets: list[Packet]) -> int:
        """The first packet. Returns where it ends, or 0 when it is not complete."""
        if not data:
            return 0
        if data[0] != 0x10:
            raise Violation(rules.FLAGS_RESERVED if data[0] >> 4 == _CONNECT else rules.CONNECT_NOT_FIRST)
        length, start, minimal = _read_length(data, 1)
        stop = start + length
        if start and stop > self.max_connect_bytes:
            raise Violation(rules.PACKET_TOO_LARGE)
        if not start or stop > len(data):
            self._keep(data, 0, stop if start else len(data) + 1)
            return 0
        body = Body(data[start:stop])
        level = connecting.read_version(body)
        self.version = V5 if level >= V5 else V311
        self._kinds = _KINDS[self.version, True]
        if level not in (V311, V5):
            raise Violation(rules.PROTOCOL_LEVEL, str(level))
        if level == V5 and not minimal:
            raise Violation(rules.LENGTH_NOT_MINIMAL)
        packets.append(connecting.read_connect(body, level))
        self.connected = True
        return stop

    # --- everything else --------------------------------------------------------------------------------------------

    def _read_run(self, data: bytes, at: int, packets: list[Packet]) -> None:  # noqa: C901, PLR0912, PLR0915 - one loop
        end = len(data)
        limit = self.max_packet_bytes
        v5 = self.version == V5
        kinds = self._kinds
        topics = self._topics
        append = packets.append
        while at < end:
            first = data[at]
            kind = kinds[first]
            if not kind:
                raise Violation(_BROKEN[self.version or V5, self.from_client][first])
            start = at + 2
            if start > end:
                self._keep(data, at, 2)
                return
            length = data[at + 1]
            if length > 0x7F and start < end and 0 < data[start] < 0x80:
                length += (data[start] << 7) - 0x80
                start += 1
            elif length > 0x7F:
                length, start, minimal = _read_length(data, at + 1)
                if v5 and not minimal:
                    raise Violation(rules.LENGTH_NOT_MINIMAL)
                if not start:
                    self._keep(data, at, end - at + 1)
                    return
            stop = start + length
            if stop - at > limit:
                raise Violation(rules.PACKET_TOO_LARGE)
            if stop > end:
                self._keep(data, at, stop - at)
                return
            if first == _PUBACK and length == 2:
                packet_id = data[start] << 8 | data[start + 1]
                if not packet_id:
                    raise Violation(rules.ID_ZERO_ACK)
                append(PubAck(packet_id))
            elif kind == _PUBLISH:
                if length < 2:
                    raise Violation(rules.TRUNCATED)
                middle = start + 2 + (data[start] << 8 | data[start + 1])
                raw = data[start + 2 : middle]
                qos = first >> 1 & 3
                payload_at = middle + 2 if qos else middle
                if payload_at > stop:
                    raise Violation(rules.TRUNCATED)
                topic = topics.get(raw)
                if topic is None:
                    topic = self._check_topic(raw)
                packet_id = 0
                if qos:
                    packet_id = data[middle] << 8 | data[middle + 1]
                    if not packet_id:
                        raise Violation(rules.ID_ZERO if self.from_client else rules.ID_ZERO_FROM_SERVER)
                properties = NO_PROPERTIES
                if v5:
                    if payload_at == stop:
                        raise Violation(rules.PROPERTIES_MISSING)
                    size = data[payload_at]
                    payload_at += 1
                    if size:
                        block_at = payload_at
                        if size > 0x7F:
                            size, block_at = _read_block_length(data, block_at - 1, stop)
                        payload_at = block_at + size
                        if payload_at > stop:
                            raise Violation(rules.TRUNCATED)
                        table = tables.PUBLISH_FROM_CLIENT if self.from_client else tables.PUBLISH_FROM_SERVER
                        properties = read_block(data[block_at:payload_at], table)
                if not topic and properties.topic_alias is None:
                    raise Violation(rules.TOPIC_EMPTY)
                append(
                    Publish(topic, data[payload_at:stop], qos, packet_id, first & 1 == 1, first & 8 == 8, properties)
                )
            else:
                append(self._read_other(kind, Body(data[start:stop])))
            at = stop

    def _check_topic(self, raw: bytes) -> str:
        topic = check_text(raw)
        if "+" in topic or "#" in topic:
            raise Violation(rules.TOPIC_WILDCARD, repr(topic))
        if len(raw) <= TOPIC_CACHED_BYTES_MAX:
            if len(self._topics) >= TOPICS_CACHED_MAX:
                self._topics.clear()
            self._topics[raw] = topic
        return topic

    def _read_other(self, kind: int, body: Body) -> Packet:
        version = self.version or V5
        match kind:
            case 2:
                return connecting.read_connack(body, version)
            case 4 | 5 | 6 | 7:
                return subscribing.read_ack(kind, body, version)
            case 8:
                return subscribing.read_subscribe(body, version)
            case 9:
                return subscribing.read_suback(body, version)
            case 10:
                return subscribing.read_unsubscribe(body, version)
            case 11:
                return subscribing.read_unsuback(body, version)
            case 14:
                return connecting.read_disconnect(body, version, self.from_client)
            case 15:
                return connecting.read_auth(body, self.from_client)
            case _:
                body.finish()
                return _PING_REQ if kind == 12 else _PING_RESP


def _read_length(data: bytes, at: int) -> tuple[int, int, bool]:
    """A remaining length: its value, where it ends (0 while it is not complete), and whether it is minimal.

    The version that asks for the minimum may not be known yet, and 3.1.1 does not: the caller decides.
    """
    value = shift = 0
    for position in range(at, min(at + 4, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1, bool(byte) or not shift
        shift += 7
    if len(data) - at >= 4:
        raise Violation(rules.LENGTH_TOO_LONG)
    return 0, 0, True


def _read_block_length(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """A property length of more than one byte that must end before `stop`: its value and where it ends."""
    size, taken = read_varint(data[at : min(at + 4, stop)], 0)
    return size, at + taken
