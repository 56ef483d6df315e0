"""What an image of the disk proves: messages and events that its journal has, and records that can be looked up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from holdfast.core.codecs import read_message
from holdfast.core.effects import Op
from holdfast.core.journal import read_block, rows
from holdfast.core.queue import QueueRecord
from holdfast.core.records import Message, Table, message_key, queue_key, seq_of
from holdfast.core.states import ENDED
from holdfast.engine.cell_record import CELL_KEY, CellRecord
from holdfast.store.memory import MemoryDisk, MemoryStore

_ENDS = {state.value for state in ENDED}


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as it was enqueued."""

    queue: str
    partition: int
    seq: int
    payload: bytes


class Evidence:
    """See the module. `take` is called with every batch that reaches the image."""

    def __init__(self, disk: MemoryDisk, namespace: str) -> None:
        self.store = MemoryStore(disk)
        self._namespace = namespace
        self.messages: dict[int, Stored] = {}
        self.ids: dict[bytes, list[int]] = {}  # by payload
        self.events: Counter[tuple[str, str, int]] = Counter()  # event, group, message id
        self.ended: set[int] = set()
        self.sources: set[int] = set()  # messages of which there was a dead letter
        self.made: set[tuple[str, int, int]] = set()  # queue, its time, and 0 for itself or the number of a group

    def take(self, ops: Sequence[Op]) -> None:
        for table, _, value in ops:
            if table is Table.JOURNAL and isinstance(value, bytes):
                self._read(value)
            elif table is Table.QUEUES and isinstance(value, bytes):
                record = msgspec.msgpack.decode(value, type=QueueRecord)
                numbers = [0, *[group.number for group in record.groups]]
                self.made.update((record.name, record.created_at, number) for number in numbers)

    def _read(self, value: bytes) -> None:
        seqs: dict[int, int] = {}

        def fetch(shard: int, first: int, count: int) -> list[Message]:
            found = self.store.scan(Table.MESSAGES, message_key(shard, first), message_key(shard, first + count), count)
            messages = [read_message(seq_of(key), record) for key, record in found]
            seqs.update((message.id, message.seq) for message in messages)
            return messages

        for row in rows(read_block(value), 0, fetch):
            self.events[row.event.value, row.group or "", row.message_id] += 1
            if row.event.value == "enqueued":
                payload = row.payload or b""
                self.messages[row.message_id] = Stored(row.queue, row.partition, seqs[row.message_id], payload)
                if row.source_id is None:
                    self.ids.setdefault(payload, []).append(row.message_id)
                else:  # it is a dead letter, or was one
                    self.sources.add(row.source_id)
            elif row.event.value in _ENDS:
                self.ended.add(row.message_id)

    def become(self, other: Evidence) -> None:
        """This image was lost, and is now as the other."""
        self.messages = dict(other.messages)
        self.ids = {payload: list(ids) for payload, ids in other.ids.items()}
        self.events = Counter(other.events)
        self.ended = set(other.ended)
        self.sources = set(other.sources)
        self.made = set(other.made)

    def queue(self, name: str) -> QueueRecord | None:
        value = self.store.get(Table.QUEUES, queue_key(self._namespace, name))
        return msgspec.msgpack.decode(value, type=QueueRecord) if value is not None else None

    def closing(self, name: str) -> bool:
        """Whether a queue is being deleted."""
        record = self.queue(name)
        return record is not None and bool(record.closing)

    def ids_reserved(self) -> int:
        """Ids up to this one are never given again, whatever is lost."""
        value = self.store.get(Table.META, CELL_KEY)
        return msgspec.msgpack.decode(value, type=CellRecord).ids_reserved if value is not None else 0
