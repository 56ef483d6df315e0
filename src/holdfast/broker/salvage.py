"""Salvage of a damaged store: a new one that ends before the damage, and files with the messages that came after it.

Changes depend on each other, so a store goes no further than the first that is missing. What was stored behind the
damage is still worth having: its messages are written as JSON lines, as `holdfast send --as message` takes them. If a
table is damaged, no store can be made; then all messages that can be read are in files.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from holdfast import wire
from holdfast.core.codecs import read_message, read_ready
from holdfast.core.queue import QueueRecord
from holdfast.core.records import (
    LAST,
    SCHEDULED_KEY,
    Message,
    ShardHead,
    Table,
    message_key,
    ready_key,
    scheduled_key,
    seq_of,
    shard_key,
)
from holdfast.errors import InvalidArgument, StoreCorrupt
from holdfast.store import RocksStore
from holdfast.store.directory import Directory
from holdfast.store.rocks_check import check_store
from holdfast.store.rocks_log import read_mark
from holdfast.store.rocks_salvage import copy_files, end_before_damage
from holdfast.units import MILLISECOND, SECOND

PAGE = 256


class QueueFile(NamedTuple):
    """Messages of one queue that were written to a file."""

    namespace: str
    queue: str
    messages: int
    path: Path


class Salvaged(NamedTuple):
    """What became of a damaged store."""

    kept: int | None
    """Messages in the new store; None if there is none."""
    settled: int
    """Those among them that were settled behind the damage: they will be delivered again."""
    files: list[QueueFile]
    unreadable: int
    """Places in tables that could not be read."""


def salvage(data_dir: Path, target: Path, now: int) -> Salvaged:
    """Make the data directory `target` of what can be read in `data_dir`, which is not changed."""
    if target.exists() and any(target.iterdir()):
        raise InvalidArgument(field="--to", problem=f"{target} exists and is not empty")
    if not (data_dir / "store" / "FORMAT").exists():
        raise InvalidArgument(field="--data-dir", problem=f"{data_dir} has no store")
    source = Directory(data_dir / "store")
    rest = target / "behind-the-damage"
    try:
        copy_files(source, target / "store")
        copy_files(source, rest)
        end_before_damage(target / "store", read_mark(source.synced))
        return _compare(target, rest, now)
    finally:
        source.release()
        shutil.rmtree(rest, ignore_errors=True)


def _compare(target: Path, rest: Path, now: int) -> Salvaged:
    """Keep the store that ends before the damage, if all of it can be read; write what only the other one has."""
    damaged = _Contents(rest, skip_damaged=True)
    try:
        kept = _Contents(target / "store") if _is_whole(target / "store") else None
        if kept is None:
            shutil.rmtree(target / "store")
        messages = settled = 0
        files: list[QueueFile] = []
        for record in damaged.queues():
            missing: dict[int, set[int]] = {}  # in the new store, by shard
            for shard in record.shards:
                live, known = damaged.live(shard), 1
                if kept is not None:
                    known = kept.next_seq(shard)
                    before = kept.live(shard)
                    messages += len(before)
                    settled += sum(seq not in live for seq in before)
                missing[shard] = {seq for seq in live if seq >= known}
            if any(missing.values()):
                found = (message for shard, seqs in missing.items() for message in damaged.messages(shard, seqs))
                files.append(_write(record, found, target / "messages", now))
        if kept is not None:
            kept.close()
        return Salvaged(messages if kept is not None else None, settled, files, damaged.unreadable)
    finally:
        damaged.close()


def _is_whole(path: Path) -> bool:
    directory = Directory(path)
    try:
        return all(finding.ok for finding in check_store(directory))
    finally:
        directory.release()


def _write(record: QueueRecord, messages: Iterator[Message], directory: Path, now: int) -> QueueFile:
    """One line for each message, partition by partition: messages of one key stay in order."""
    path = directory / quote(record.namespace, safe="") / f"{quote(record.name, safe='')}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with path.open("wb") as file:
        for message in messages:
            if not message.expires_at or message.expires_at > now:
                file.write(_line(message, now) + b"\n")
                written += 1
    return QueueFile(record.namespace, record.name, written, path)


def _line(message: Message, now: int) -> bytes:
    """A message as a producer would send it again."""
    extra = message.extra
    properties: dict[str, str | list[str]] = {}
    for name, _ in extra.properties:
        values = [value for other, value in extra.properties if other == name]
        properties[name] = values if len(values) > 1 else values[0]
    draft = wire.Draft(
        base64=message.payload,
        content_type=extra.content_type,
        key=extra.key,
        message_id=extra.message_id,
        priority=message.priority,
        deliver_at=message.deliver_at // MILLISECOND if message.deliver_at > now else None,
        ttl=(message.expires_at - now) / SECOND if message.expires_at else None,
        properties=properties,
        correlation_id=extra.correlation_id,
        reply_to=extra.reply_to,
    )
    return msgspec.json.encode(draft)


class _Contents:
    """What can be read in a store, table by table. `unreadable` counts places that were left out."""

    def __init__(self, path: Path, *, skip_damaged: bool = False) -> None:
        self._store = RocksStore(path, skip_damaged=skip_damaged)
        self.unreadable = 0

    def close(self) -> None:
        self._store.close()

    def queues(self) -> Iterator[QueueRecord]:
        for _, value in self._rows(Table.QUEUES, b"", b"\xff" * 8):
            yield msgspec.msgpack.decode(value, type=QueueRecord)

    def next_seq(self, shard: int) -> int:
        head = self._store.get(Table.SHARDS, shard_key(shard))
        return msgspec.msgpack.decode(head, type=ShardHead).next_seq if head is not None else 1

    def live(self, shard: int) -> set[int]:
        """The sequences of messages that are waiting or leased."""
        ready = self._rows(Table.READY, ready_key(shard, 0, 0), ready_key(shard, 255, LAST))
        scheduled = self._rows(Table.SCHEDULED, scheduled_key(shard, 0, 0), scheduled_key(shard, LAST, LAST))
        return {read_ready(key, value).seq for key, value in ready} | {
            SCHEDULED_KEY.unpack(key)[2] for key, _ in scheduled
        }

    def messages(self, shard: int, seqs: set[int]) -> Iterator[Message]:
        for key, value in self._rows(Table.MESSAGES, message_key(shard, 0), message_key(shard, LAST)):
            if seq_of(key) in seqs:
                yield read_message(seq_of(key), value)

    def _rows(self, table: Table, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Records from the start up to what cannot be read, then from the end back to it."""
        stopped_at = yield from self._read(table, start, end, reverse=False)
        if stopped_at is not None:
            self.unreadable += 1
            yield from self._read(table, stopped_at, end, reverse=True)

    def _read(
        self, table: Table, start: bytes, end: bytes, *, reverse: bool
    ) -> Generator[tuple[bytes, bytes], None, bytes | None]:
        """Records as far as they can be read. Returns None if that is to the end, else where it stopped."""
        limit = PAGE
        while True:
            try:
                rows = self._store.scan(table, start, end, limit, reverse)
            except StoreCorrupt:
                if limit == 1:
                    return start
                limit = 1  # up to the very place
                continue
            if not rows:
                return None
            yield from rows
            if reverse:
                end = rows[-1][0]
            else:
                start = rows[-1][0] + b"\0"
