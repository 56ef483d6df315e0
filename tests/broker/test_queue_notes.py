"""What fronts keep beside queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.broker.node import Node
from holdfast.broker.parts import queue_notes
from holdfast.core.records import Table
from holdfast.errors import QueueNotFound
from holdfast.store.memory import MemoryStore
from tests.http_api.conftest import config_for

NAME = ("default", "orders")


async def test_a_note_is_kept_with_its_queue_over_a_restart(tmp_path: Path) -> None:
    store = MemoryStore()
    node = Node(config_for(tmp_path), store)
    await node.start()
    await node.queues.create(NAME)
    assert node.queue_notes.get("sqs", NAME) == b""
    await node.queue_notes.put("sqs", NAME, b"one")
    await node.queue_notes.put("sqs", NAME, b"two")
    assert (node.queue_notes.get("sqs", NAME), node.queue_notes.get("other", NAME)) == (b"two", b"")
    await node.stop()
    node = Node(config_for(tmp_path), store)
    await node.start()
    assert node.queue_notes.get("sqs", NAME) == b"two"
    await node.queues.delete(NAME)
    with pytest.raises(QueueNotFound):
        node.queue_notes.get("sqs", NAME)
    with pytest.raises(QueueNotFound):
        node.queue_notes.put("sqs", NAME, b"three")
    await node.queues.create(NAME)
    assert node.queue_notes.get("sqs", NAME) == b"", "another queue of the same name"
    await node.stop()


async def test_notes_of_deleted_queues_do_not_stay_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_notes, "STALE_MAX", 3)
    store = MemoryStore()
    node = Node(config_for(tmp_path), store)
    await node.start()
    for number in range(20):
        name = ("default", f"queue-{number}")
        await node.queues.create(name)
        await node.queue_notes.put("sqs", name, b"x")
        await node.queues.delete(name)
    await node.queues.create(NAME)
    await node.queue_notes.put("sqs", NAME, b"x")
    prefix = queue_notes.PREFIX
    assert len(store.scan(Table.META, prefix, prefix[:-1] + b"\1", 100)) <= 4
    assert node.queue_notes.get("sqs", NAME) == b"x"
    await node.stop()
