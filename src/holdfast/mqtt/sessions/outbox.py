"""The effects of a turn: records to write, and bytes for each connection, some of them held until records are durable.

The output of a connection is one ordered stream. Once something in it must wait for a sync, everything behind it waits
too, also in later turns, until that sync is reported: so PUBACKs stay in order [MQTT-4.6.0-2], a retained message does
not overtake its SUBACK, and an alias is set before it is used. What only waits behind something of an earlier turn goes
out with that one's sync, not with its own turn's: else what comes after that sync would overtake it. What is sent at
most once waits for the write of its turn, and what is behind it does too. Records of a turn are one batch.
"""

from __future__ import annotations

import msgspec

from holdfast.core.effects import Op
from holdfast.mqtt.codec import Packet, encode, encode_within, without_explanation
from holdfast.mqtt.sessions.connection import Connection


class Output(msgspec.Struct, frozen=True):
    """Bytes for one connection; after them it is closed if `close`. `acks` of them are PUBACKs that were held."""

    connection: Connection
    data: bytes
    close: bool
    acks: int = 0


class OutboxBatch(msgspec.Struct, frozen=True):
    """Write `ops` as one batch, send `now` immediately, and when the batches of this turn and of all before it are
    durable, what `Outbox.mark_synced` gives."""

    number: int
    ops: list[Op]
    now: list[Output]
    held: list[Output]


def _join(parts: list[bytes], joined: dict[tuple[int, ...], bytes]) -> bytes:
    """The parts of an output as one: the same bytes for all who get the same parts, as the subscribers of a topic do.
    The parts are referred to by the connections meanwhile, so that each is known by its identity."""
    if len(parts) < 2:
        return parts[0] if parts else b""
    key = tuple(map(id, parts))
    found = joined.get(key)
    if found is None:
        found = joined[key] = b"".join(parts)
    return found


class Outbox:
    """Collects the effects of one turn after another."""

    __slots__ = ("_behind", "_dirty", "number", "ops", "sent", "synced", "unfinished", "unsent_bytes", "urgent")

    def __init__(self) -> None:
        self.number = 1
        self.synced = 0
        self.urgent = False  # something waits for the turn, and not for a sync
        self.ops: list[Op] = []
        self.sent = [0] * 16  # packets by the number of their kind
        self.unsent_bytes = 0  # about what was collected since output was taken last, for all connections together
        # For whom more waits that has room, when this has been sent: `Hub.pump_unfinished` is called then.
        self.unfinished: dict[Connection, None] = {}
        self._dirty: list[Connection] = []
        self._behind: dict[int, dict[Connection, None]] = {}  # whose output waits for the sync of an earlier turn

    def send(self, connection: Connection, data: bytes, count: int = 1) -> None:
        """Packets of one kind."""
        self.sent[data[0] >> 4] += count
        self.unsent_bytes += len(data)
        if connection.held or connection.held_turn > self.synced:
            connection.held.append(data)
        else:
            connection.out.append(data)
            self.urgent = True
        if not connection.dirty:
            connection.dirty = True
            self._dirty.append(connection)

    def send_when_written(self, connection: Connection, data: bytes, count: int) -> None:
        """Packets that may be sent only when what this turn brings is written, and so everything behind them."""
        self.send(connection, data, count)
        connection.written_turn = self.number

    def send_packet(self, connection: Connection, packet: Packet) -> bool:
        """Any packet but PUBLISH. False if it cannot be made small enough for the client."""
        version = connection.version
        if not connection.wants_problems:
            packet = without_explanation(packet)
        if connection.packet_bytes_max >= 0x1_0000:
            data: bytes | None = encode(packet, version)
        else:
            data = encode_within(packet, version, connection.packet_bytes_max)
        if data is None:
            return False
        self.send(connection, data)
        return True

    def hold(self, connection: Connection) -> None:
        """What follows may be sent only when this turn's records are durable."""
        connection.held_turn = self.number

    def reserve(self, connection: Connection, data: bytes, acks: int = 0) -> int:
        """Put answers in their place in the stream, to be sent when this turn is durable: so many PUBACKs, or one
        PUBREC. They can be replaced until the turn is taken."""
        self.sent[data[0] >> 4] += acks or 1
        connection.held_turn = self.number
        connection.held_acks += acks
        connection.untaken_acks += acks
        held = connection.held
        held.append(data)
        if not connection.dirty:
            connection.dirty = True
            self._dirty.append(connection)
        return len(held) - 1

    def fit(self, connection: Connection, packet: Packet) -> bytes:
        """The packet as the client can take it; nothing if it cannot."""
        if not connection.wants_problems:
            packet = without_explanation(packet)
        return encode_within(packet, connection.version, connection.packet_bytes_max) or b""

    def count_ack(self, connection: Connection) -> None:
        """A PUBACK was sent; while it is held the client's message counts against our Receive Maximum."""
        if connection.held_turn > self.synced:
            connection.held_acks += 1
            connection.untaken_acks += 1

    def close(self, connection: Connection) -> None:
        connection.closing = self.urgent = True
        if not connection.dirty:
            connection.dirty = True
            self._dirty.append(connection)

    def take_ready(self) -> list[Output]:
        """What waits for nothing, and may be sent before the turn is taken. What waits for the sync of an earlier turn
        goes out with that one; the rest stays for `take`."""
        ready: list[Output] = []
        rest: list[Connection] = []
        joined: dict[tuple[int, ...], bytes] = {}
        self.unsent_bytes = 0
        for connection in self._dirty:
            if connection.written_turn >= self.number or connection.held_turn >= self.number:
                rest.append(connection)
            else:
                self._take_unheld(connection, ready, joined)
        self._dirty = rest
        self.urgent = self.urgent and bool(rest)
        return ready

    @property
    def empty(self) -> bool:
        """Whether there is nothing to take."""
        return not self._dirty and not self.ops

    def take(self) -> OutboxBatch:
        """End the turn. What waits for its write is in `now` too, which is sent when it is written."""
        now: list[Output] = []
        held: list[Output] = []
        joined: dict[tuple[int, ...], bytes] = {}
        for connection in self._dirty:
            if connection.held_turn < self.number:
                self._take_unheld(connection, now, joined)
                continue
            connection.dirty = False
            if connection.out:
                now.append(Output(connection, _join(connection.out, joined), False))
                connection.out.clear()
            acks, connection.untaken_acks = connection.untaken_acks, 0
            held.append(Output(connection, _join(connection.held, joined), connection.closing, acks))
            connection.held.clear()
        batch = OutboxBatch(self.number, self.ops, now, held)
        self.number += 1
        self.urgent = False
        self.unsent_bytes = 0
        self.ops = []
        self._dirty = []
        return batch

    def _take_unheld(self, connection: Connection, ready: list[Output], joined: dict[tuple[int, ...], bytes]) -> None:
        """What does not wait for the sync of this turn: it is ready, or goes out with the earlier one it waits for."""
        connection.dirty = False
        if connection.held_turn > self.synced:
            self._behind.setdefault(connection.held_turn, {})[connection] = None
            return
        parts = connection.out
        if connection.held:  # the sync that it waited for has ended within this turn
            parts = parts + connection.held
        ready.append(Output(connection, _join(parts, joined), connection.closing))
        connection.out.clear()
        connection.held.clear()
        connection.held_acks -= connection.untaken_acks
        connection.untaken_acks = 0

    def mark_synced(self, batch: OutboxBatch) -> list[Output]:
        """A turn and all before it are durable: what was held for it, and what waited behind it in later turns."""
        self.synced = batch.number
        for output in batch.held:
            output.connection.held_acks -= output.acks
        if not self._behind:
            return batch.held
        freed: list[Output] = []
        for turn in [turn for turn in self._behind if turn <= batch.number]:
            for connection in self._behind.pop(turn):
                # else it goes with the turn that it has to wait for since
                if connection.held_turn <= self.synced and connection.written_turn < self.number:
                    freed.append(Output(connection, b"".join(connection.held), connection.closing))
                    connection.held.clear()
                    connection.held_acks -= connection.untaken_acks
                    connection.untaken_acks = 0
        return batch.held + freed
