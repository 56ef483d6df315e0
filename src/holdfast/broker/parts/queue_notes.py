"""What a front keeps beside a queue and the broker does not look at: settings that only its protocol has.

A note belongs to a queue, not to a name: one of a queue that was deleted is not that of the next with its name.
"""

from __future__ import annotations

import msgspec

from holdfast.broker.cell import Cell
from holdfast.broker.submission import Submission
from holdfast.core.effects import Op
from holdfast.core.records import Table, queue_key
from holdfast.engine.catalog import QueueName

PREFIX = b"note\0"
"""Of keys in META; the front, NUL, the namespace, NUL and the queue's name follow."""

STALE_MAX = 1_000  # notes of deleted queues that are kept before they are removed together


class _Note(msgspec.Struct, frozen=True, array_like=True):
    """`created_at` is that of the queue it belongs to."""

    created_at: int
    content: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Note).decode


class QueueNotes:
    """See the module. All notes are in memory too: there are hardly more of them than queues."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._notes: dict[tuple[str, QueueName], _Note] = {}

    def load(self) -> None:
        """Read what is stored."""
        self._notes = {
            _read_key(key): _decode(value)
            for key, value in self._cell.store.scan(Table.META, PREFIX, PREFIX[:-1] + b"\1", 1 << 30)
        }

    def get(self, front: str, name: QueueName) -> bytes:
        """The note of a queue that exists; empty if it has none."""
        note = self._notes.get((front, name))
        return note.content if note is not None and note.created_at == self._created_at(name) else b""

    def put(self, front: str, name: QueueName, content: bytes) -> Submission[None]:
        """Keep a note beside a queue that exists. It is written in the same batch as what was applied before it in this
        pass of the loop, so that a queue that was just created has it from the beginning."""
        note = _Note(self._created_at(name), content)
        ops: list[Op] = [(Table.META, _key(front, name), _encode(note)), *self._forget_stale()]
        submission = self._cell.write_records(ops)
        self._notes[front, name] = note
        return submission

    def _forget_stale(self) -> list[Op]:
        """Forget the notes of queues that are gone, if there are many."""
        queues = self._cell.engine.queues
        if len(self._notes) < len(queues) + STALE_MAX:
            return []
        stale = [place for place in self._notes if place[1] not in queues]
        for place in stale:
            del self._notes[place]
        return [(Table.META, _key(*place), None) for place in stale]

    def _created_at(self, name: QueueName) -> int:
        return self._cell.engine.queue(name, self._cell.clock()).record.created_at


def _key(front: str, name: QueueName) -> bytes:
    return PREFIX + front.encode() + b"\0" + queue_key(*name)


def _read_key(key: bytes) -> tuple[str, QueueName]:
    front, namespace, name = key[len(PREFIX) :].decode().split("\0")
    return front, (namespace, name)
