"""A broker's life for tests of the exporter: an engine on a memory disk, and what is seen of it in store and lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.broker.export.exporter import Exported, Exporter
from holdfast.broker.export.retention import KEEP_ALL, RetentionPolicy
from holdfast.broker.export.worker import InThread
from holdfast.core import journal
from holdfast.core.codecs import read_message
from holdfast.core.commands import Draft, Settlement, Verb
from holdfast.core.journal import Row
from holdfast.core.queue import GroupKind
from holdfast.core.records import LAST, Extra, Message, Origin, Table, journal_key, message_key
from holdfast.engine.cursors import cursor_commit
from holdfast.engine.engine import Engine
from holdfast.engine.groups import add_group
from holdfast.engine.messages import edit_message
from holdfast.engine.queues import create_queue
from holdfast.journal.manifest import manifest_path, parse
from holdfast.store import MemoryDisk, MemoryStore
from holdfast.store.contract import Store
from holdfast.units import SECOND, parse_instant

NODE = 7
NOON = parse_instant("2026-03-01T12:00:00Z")
TASKS = ("default", "tasks")


def _do_nothing(_: object) -> None:
    """No fault."""


class Life:
    """An engine, its store and its lake; `restart` is what a new process sees after a crash."""

    def __init__(self, directory: Path, store: Store | None = None) -> None:
        self.lake = directory / "lake"
        self.disk = MemoryDisk()
        self.store = store or MemoryStore(self.disk)
        self.now = NOON
        self.engine = self._open()

    def _open(self) -> Engine:
        engine = Engine(self.store, NODE)
        engine.open(self.now)
        return engine

    def restart(self) -> None:
        self.store = MemoryStore(self.disk)
        self.engine = self._open()

    def exporter(
        self,
        reached: Callable[[str], None] = _do_nothing,
        rows: int = 1_000_000,
        size_bytes: int = 1 << 30,
        throttle: Callable[[float], None] = _do_nothing,
        retention: RetentionPolicy = KEEP_ALL,
    ) -> Exporter:
        exporter = Exporter(
            self.store,
            self.lake,
            NODE,
            rows,
            size_bytes,
            converter=InThread(),
            retention=retention,
            throttle=throttle,
            clock=lambda: self.now,
            reached=reached,
        )
        exporter.recover(self.engine.record.exported_lsn)
        return exporter

    # --- doing ------------------------------------------------------------------------------------------------------

    def enqueue(self, count: int = 1, queue: str = "tasks", extra: Extra | None = None) -> list[int]:
        drafts = [Draft(b"payload %d" % n) for n in range(count)]
        if extra is not None:
            drafts = [Draft(b"payload", extra=extra)]
        ids = self.engine.enqueue(("default", queue), drafts, "http", self.now).ids
        self.write()
        return ids

    def settle(self, verb: Verb, count: int = 1, error: str = "", queue: str = "tasks") -> None:
        """Lease and settle, in two commits."""
        name = ("default", queue)
        found = self.engine.lease(name, "workers", count, -1, "worker-1", "mqtt", self.now)
        self.write()
        settlements = [
            Settlement(one.message.id, one.token, verb, error=error, partition=one.partition) for one in found
        ]
        self.engine.settle(name, "workers", settlements, self.now)
        self.write()

    def edit(self, message_id: int, priority: int | None = None, deliver_at: int | None = None) -> None:
        edit_message(self.engine, TASKS, message_id, priority, deliver_at, self.now)
        self.write()

    def write(self) -> None:
        self.engine.write()
        self.now += SECOND // 1000

    def every_event(self) -> None:
        """Something of every kind that the journal knows."""
        properties = (("tenant", "a"), ("tenant", "b"), ("color", "red"))
        extra = Extra(key="k", message_id="mine", properties=properties, correlation_id="c-1")
        self.enqueue(5)
        self.enqueue(extra=extra)
        self.enqueue(extra=extra)  # a duplicate
        self.enqueue(extra=Extra(origin=Origin(42, "elsewhere", "workers", "rejected")))
        delayed = Draft(b"later", deliver_at=self.now + 3600 * SECOND, priority=3)
        self.engine.enqueue(TASKS, [delayed, Draft(b"")], "mqtt", self.now)
        self.write()
        create_queue(self.engine, ("default", "quiet"), {"journal": "metadata"}, self.now)
        create_queue(self.engine, ("default", "silent"), {"journal": "off"}, self.now)
        self.enqueue(3, "quiet")
        self.enqueue(3, "silent")
        self.settle(Verb.ACK, 3)
        self.settle(Verb.NACK, error="broke")
        self.settle(Verb.EXTEND)
        self.settle(Verb.RELEASE)
        self.settle(Verb.REJECT, error="no good")
        self.settle(Verb.ACK, 3, queue="silent")
        queue = self.engine.queue(("default", "quiet"), self.now)
        add_group(self.engine, queue, "log", GroupKind.CURSOR, self.now, earliest=True)
        self.write()
        for partition in range(len(queue.shards)):
            high = queue.shards[partition].head.next_seq - 1
            for _ in cursor_commit(self.engine, ("default", "quiet"), "log", partition, high, lambda: self.now):
                self.write()
        self.write()

    # --- looking ----------------------------------------------------------------------------------------------------

    def blocks(self) -> list[int]:
        """Numbers of the blocks in the store."""
        rows = self.store.scan(Table.JOURNAL, b"", journal_key(LAST), 1 << 30)
        return [int.from_bytes(key, "big") for key, _ in rows]

    def messages(self) -> list[bytes]:
        """Keys of the message records in the store."""
        return [key for key, _ in self.store.scan(Table.MESSAGES, b"", b"\xff" * 12, 1 << 30)]

    def journal(self) -> list[Row]:
        """The rows of all blocks in the store, expanded one by one."""
        found: list[Row] = []
        for _, value in self.store.scan(Table.JOURNAL, b"", journal_key(LAST), 1 << 30):
            found += journal.rows(journal.read_block(value), NODE, self.fetch)
        return found

    def fetch(self, shard: int, first: int, count: int) -> list[Message]:
        low, high = message_key(shard, first), message_key(shard, first + count)
        rows = self.store.scan(Table.MESSAGES, low, high, count)
        return [read_message(seq, value) for seq, (_, value) in enumerate(rows, first)]

    # --- exporting --------------------------------------------------------------------------------------------------

    def apply(self, exported: Exported) -> None:
        """What the node does with it."""
        self.engine.exported(exported.last_block, exported.last_lsn, exported.removal, exported.chain)
        self.engine.write()

    def export_all(self, exporter: Exporter) -> list[Exported]:
        done = []
        while exported := exporter.export(self.engine.record.exported_block, True):
            self.apply(exported)
            done.append(exported)
        return done

    def manifest(self) -> Path:
        return manifest_path(self.lake / "journal", NODE)

    def segments(self) -> list[Path]:
        """The files that the manifest names, in its order."""
        if not self.manifest().exists():
            return []
        lines = self.manifest().read_bytes().splitlines()
        return [self.lake / "journal" / parse(line).segment for line in lines]

    def tables(self) -> Iterator[pa.Table]:
        for path in self.segments():
            yield pq.ParquetFile(path).read()

    def lake_rows(self) -> list[dict[str, Any]]:
        return [row for table in self.tables() for row in table.to_pylist()]

    def lake_lsns(self) -> list[int]:
        return [row["lsn"] for row in self.lake_rows()]
