"""The effects of a turn: records to write, and bytes for each connection, some of them held until records are durable.

The output of a connection is one ordered stream. Once something in it must wait for a sync, everything behind it waits
too, also in later turns, until that sync is reported: so PUBACKs stay in order [MQTT-4.6.0-2], a retained message does
not overtake its SUBACK, and an alias is set before it is used. What only waits behind something of an earlier turn goes
out with that one's sync, not with its own turn's: else what comes after that sync would overtake it. What is sent at
most once waits for the write of its turn, and what is behind it does too. Records of a turn are one batch.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.effects import Op
from holdfast.mqtt.codec import Packet, encode, encode_within, without_explanation
from holdfast.mqtt.sessions.connection import Connection


class Output(NamedTuple):
    """Bytes for one connection; after them it is closed if `close`."""

    connection: Connection
    data: bytes
    close: bool


class OutboxBatch(NamedTuple):
    """Write `ops` as one batch, send `now` immediately, and `held` when the batches of this turn and of all before it
    are durable; then call `Hub.synced` with `number`, and send what that gives. `due`: when `Hub.tick`
    must be called."""

    number: int
    ops: list[Op]
    now: list[Output]
    held: list[Output]
    due: int | None


class Joined(dict[tuple[int, ...], bytes]):
    """The parts of an output as one: the same bytes for all who get the same parts, as the subscribers of a topic do.
    The parts are referred to by the connections meanwhile, so that each is known by its identity."""

    def __call__(self, parts: list[bytes]) -> bytes:
        if len(parts) < 2:
            return parts[0] if parts else b""
        key = tuple(map(id, parts))
        found = self.get(key)
        if found is None:
            found = self[key] = b"".join(parts)
        return found


class Outbox:
    """Collects the effects of one turn after another."""

    __slots__ = ("_awaiting", "_behind", "_dirty", "number", "ops", "synced", "unfinished", "unsent_bytes")

    def __init__(self) -> None:
        self.number = 1
        self.synced = 0
        self.ops: list[Op] = []
        self.unsent_bytes = 0  # about what was collected since output was taken last, for all connections together
        self.unfinished: dict[Connection, None] = {}  # for whom more waits that has room, when this has been sent
        self._dirty: list[Connection] = []
        self._awaiting: dict[int, dict[Connection, int]] = {}  # PUBACKs held, by turn
        self._behind: dict[int, dict[Connection, None]] = {}  # whose output waits for the sync of an earlier turn

    def send(self, connection: Connection, data: bytes) -> None:
        self.unsent_bytes += len(data)
        if connection.held or connection.held_turn > self.synced:
            connection.held.append(data)
        else:
            connection.out.append(data)
        if not connection.dirty:
            connection.dirty = True
            self._dirty.append(connection)

    def send_when_written(self, connection: Connection, data: bytes) -> None:
        """Bytes that may be sent only when what this turn brings is written, and so everything behind them."""
        self.send(connection, data)
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

    def reserve(self, connection: Connection, data: bytes) -> int:
        """Put answers in their place in the stream, to be sent when this turn is durable. They can be replaced until
        the turn is taken."""
        connection.held_turn = self.number
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

    def count_acks(self, connection: Connection, count: int) -> None:
        """PUBACKs were sent; while they are held the client's messages count against our Receive Maximum."""
        if connection.held_turn > self.synced:
            connection.held_acks += count
            held = self._awaiting.setdefault(connection.held_turn, {})
            held[connection] = held.get(connection, 0) + count

    def close(self, connection: Connection) -> None:
        connection.closing = True
        if not connection.dirty:
            connection.dirty = True
            self._dirty.append(connection)

    def take_ready(self) -> list[Output]:
        """What waits for nothing, and may be sent before the turn is taken. What waits for the sync of an earlier turn
        goes out with that one; the rest stays for `take`."""
        return self._ready(self.number)

    def _ready(self, unwritten: int) -> list[Output]:
        """The output that waits neither for a sync nor for the write of turn `unwritten`."""
        ready: list[Output] = []
        rest: list[Connection] = []
        joined = Joined()
        self.unsent_bytes = 0
        for connection in self._dirty:
            if connection.written_turn >= unwritten:
                rest.append(connection)
                continue
            if connection.held_turn <= self.synced:  # the sync it waited for may have ended within this turn
                ready.append(Output(connection, joined(connection.out + connection.held), connection.closing))
                connection.out.clear()
                connection.held.clear()
            elif connection.held_turn < self.number:
                self._behind.setdefault(connection.held_turn, {})[connection] = None
            else:
                rest.append(connection)
                continue
            connection.dirty = False
        self._dirty = rest
        return ready

    @property
    def empty(self) -> bool:
        """Whether there is nothing to take."""
        return not self._dirty and not self.ops

    def take(self, due: int | None) -> OutboxBatch:
        now = self._ready(self.number + 1)  # `now` is sent when this turn is written
        held: list[Output] = []
        joined = Joined()
        for connection in self._dirty:
            connection.dirty = False
            if connection.out:
                now.append(Output(connection, joined(connection.out), close=False))
            held.append(Output(connection, joined(connection.held), connection.closing))
            connection.out.clear()
            connection.held.clear()
        batch = OutboxBatch(self.number, self.ops, now, held, due)
        self.number += 1
        self.ops = []
        self._dirty = []
        return batch

    def mark_synced(self, number: int) -> list[Output]:
        """A turn and all before it are durable: what waited behind them, in later turns."""
        self.synced = max(self.synced, number)
        freed: list[Output] = []
        for turn in [turn for turn in self._behind if turn <= number]:
            for connection in self._behind.pop(turn):
                # else it goes with the turn that it has to wait for since
                if connection.held_turn <= self.synced and connection.written_turn < self.number:
                    freed.append(Output(connection, b"".join(connection.held), connection.closing))
                    connection.held.clear()
        for turn in [turn for turn in self._awaiting if turn <= number]:
            for connection, count in self._awaiting.pop(turn).items():
                connection.held_acks -= count
        return freed
