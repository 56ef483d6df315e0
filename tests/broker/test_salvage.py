"""What salvage keeps of a damaged store, message by message. tests/cli/test_store.py has the command."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast.broker.salvage import Salvaged, salvage
from holdfast.core.commands import Draft, Settlement
from holdfast.core.records import Extra
from holdfast.store import RocksStore
from holdfast.store.rocks_log import logs_of
from holdfast.units import MILLISECOND, MINUTE, SECOND
from tests.engine.rig import START, TASKS, Rig

KEPT = [b"kept %d" % number for number in range(3)]


@pytest.fixture
def cell(tmp_path: Path) -> Rig:
    cell = Rig(lambda: RocksStore(tmp_path / "data" / "store"))
    cell.create_queue(message_ttl=0, partitions=1)
    cell.create_group("g")
    cell.enqueue(*KEPT)
    return cell


def log_bytes(tmp_path: Path) -> int:
    return sum(log.stat().st_size for log in logs_of(tmp_path / "data" / "store" / "db"))


def salvaged(cell: Rig, tmp_path: Path, damage_at: int) -> tuple[Salvaged, list[dict[str, Any]]]:
    """What becomes of the store as a kill leaves it, with a flipped bit in its log; and the lines of its one file."""
    cell.engine.store.sync()
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / "data", killed)
    cell.close()
    (log,) = logs_of(killed / "store" / "db")
    content = bytearray(log.read_bytes())
    content[damage_at] ^= 1
    log.write_bytes(content)
    result = salvage(killed, tmp_path / "new", cell.now)
    lines = [line for file in result.files for line in file.path.read_text().splitlines()]
    return result, [json.loads(line) for line in lines]


def spoil(cell: Rig) -> None:
    """Something to lose: with its 40 KiB the log is in another block behind it."""
    cell.enqueue(b"lost" + b"x" * (40 << 10))


def test_messages_behind_the_damage_are_written_as_they_were_sent(cell: Rig, tmp_path: Path) -> None:
    at = log_bytes(tmp_path)
    spoil(cell)
    properties = (("colour", "red"), ("colour", "blue"), ("size", "7"))
    cell.enqueue(
        Draft(b"first", priority=2, extra=Extra(key="k", message_id="m", properties=properties)),
        Draft(b"delayed", deliver_at=START + MINUTE),
        Draft(b"short", ttl=MINUTE),
        Draft(b"expired", ttl=SECOND),
    )
    cell.now += 2 * SECOND
    result, lines = salvaged(cell, tmp_path, at + 20)
    assert (result.kept, result.settled, result.unreadable) == (len(KEPT), 0, 0)
    assert [b64decode(line.pop("base64")) for line in lines] == [b"first", b"delayed", b"short"]
    assert lines == [
        {"key": "k", "message_id": "m", "priority": 2, "properties": {"colour": ["red", "blue"], "size": "7"}},
        {"deliver_at": (START + MINUTE) // MILLISECOND},
        {"ttl": 58.0},
    ]


def test_what_was_settled_behind_the_damage_is_counted(cell: Rig, tmp_path: Path) -> None:
    at = log_bytes(tmp_path)
    spoil(cell)
    leased = cell.lease(2)
    cell.engine.settle(TASKS, "g", [Settlement(one.message.id, one.token) for one in leased[:1]], cell.now)
    cell.engine.write()
    result, _ = salvaged(cell, tmp_path, at + 20)
    assert (result.kept, result.settled) == (len(KEPT), 1)


def test_of_a_damaged_table_the_messages_on_both_sides_are_saved(cell: Rig, tmp_path: Path) -> None:
    payloads = [Random(number).randbytes(8 << 10) for number in range(9)]
    for payload in payloads:
        cell.enqueue(payload)
    cell.close()  # what was in the log is in tables now, and large payloads in blobs
    (blob,) = (tmp_path / "data" / "store" / "db").glob("*.blob")
    content = bytearray(blob.read_bytes())
    content[content.index(payloads[4]) + 100] ^= 1
    blob.write_bytes(content)
    result = salvage(tmp_path / "data", tmp_path / "new", START)
    assert (result.kept, result.unreadable) == (None, 1)
    (file,) = result.files
    saved = [b64decode(json.loads(line)["base64"]) for line in file.path.read_text().splitlines()]
    assert sorted(saved) == sorted([*KEPT, *payloads[:4], *payloads[5:]])
