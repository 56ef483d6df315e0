"""A server on a disk that is really full: what is stored is leased and settled, nothing confirmed is lost, and it takes
messages again when there is room, without a restart."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from holdfast.client import Retries, SyncClient
from holdfast.errors import DiskFull, HoldfastError, StoreUnavailable
from holdfast.journal.verify import verify
from holdfast.units import MIB
from tests.power.small_disk import SmallDisk, small_disk
from tests.test_server import Server, serving
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.crash

R = TypeVar("R")

DISK_BYTES = 96 * MIB
OCCUPIED_BYTES = 40 * MIB
"""By others, until they make room. What is left is enough for the reserve."""

MESSAGE_BYTES = 384 * 1024
SETTINGS = {
    "HOLDFAST_STORE_RESERVE_BYTES": "24MiB",
    "HOLDFAST_STORE_WRITE_BUFFER_BYTES": "4MiB",
    "HOLDFAST_STORE_MIN_FREE_BYTES": "0",
}
"""The server may fill its disk to the last byte: what it keeps free ordinarily is as good as nothing when others write
to the disk."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    holding = small_disk(tmp_path / "disk", DISK_BYTES)
    try:
        disk = holding.__enter__()
    except OSError as error:
        pytest.skip(f"no file system of its own can be had here: {error}")
    yield disk
    holding.__exit__(None, None, None)


@contextmanager
def served(disk: SmallDisk, **settings: str) -> Iterator[tuple[Server, SyncClient]]:
    with serving(disk.inside / "data", before=disk.entering(), **SETTINGS, **settings) as server:
        url = str(server.wait_for("HTTP API is listening")["url"])
        with SyncClient(url, retries=Retries(attempts=1), timeout=PATIENCE_SECONDS) as client:
            yield server, client


def eventually(call: Callable[[], R]) -> R:
    """The result of a call that is repeated while it is refused for a reason that passes."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return call()
        except HoldfastError as error:
            if not error.retryable or time.monotonic() > end:
                raise
        time.sleep(0.05)


def send_until_refused(client: SyncClient) -> tuple[set[str], HoldfastError]:
    """Which messages were confirmed, and the error that refused the next one."""
    confirmed: set[str] = set()
    while True:
        try:
            confirmed.add(client.send("orders", os.urandom(MESSAGE_BYTES)).id)
        except HoldfastError as error:
            return confirmed, error


def drain(client: SyncClient) -> set[str]:
    """Lease and ack everything. Returns the messages whose ack was confirmed."""
    acked: set[str] = set()
    while leased := eventually(lambda: client.receive("orders", group="billing", limit=50, timeout="1h")):
        for message in leased:
            eventually(message.ack)
            acked.add(message.id)
    return acked


LAKES = {
    "without a journal": {"HOLDFAST_JOURNAL_ENABLED": "false"},
    "with a lake on another disk": {"HOLDFAST_JOURNAL_DIRECTORY": "{elsewhere}"},
    "with a lake on the same disk": {},
}


@pytest.fixture(params=LAKES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Settings. Segments are exported as soon as there are some."""
    settings = {name: value.format(elsewhere=tmp_path / "lake") for name, value in LAKES[request.param].items()}
    return {"HOLDFAST_JOURNAL_SEGMENT_AGE": "100ms", **settings}


def test_a_server_that_has_filled_its_disk_is_drained_and_takes_messages_again(
    disk: SmallDisk, lake: dict[str, str]
) -> None:
    filler = disk.path / "filler"
    filler.write_bytes(os.urandom(OCCUPIED_BYTES))
    with served(disk, **lake) as (server, client):
        client.create_group("orders", "billing")
        confirmed, error = send_until_refused(client)
        assert isinstance(error, (DiskFull, StoreUnavailable)), "a flush beside it may have met the full disk first"
        check_drained(client, confirmed)
        filler.unlink()
        check_takes_messages(client)
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
    check_lake(disk, lake)


def test_when_others_fill_the_disk_beside_it_what_is_stored_is_drained(disk: SmallDisk, lake: dict[str, str]) -> None:
    """To the last byte, while what was sent is in the log and in memory, and segments are being written."""
    with served(disk, **lake) as (server, client):
        client.create_group("orders", "billing")
        sent = {client.send("orders", os.urandom(MESSAGE_BYTES)).id for _ in range(50)}
        filler = disk.fill()
        confirmed, _ = send_until_refused(client)
        check_drained(client, sent | confirmed)
        filler.unlink()
        check_takes_messages(client)
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
    check_lake(disk, lake)


def check_drained(client: SyncClient, confirmed: set[str]) -> None:
    acked = drain(client)
    assert confirmed <= acked, "a confirmed message is missing"
    assert len(acked - confirmed) <= 1, "of the one that was refused it is not known"


def check_lake(disk: SmallDisk, lake: dict[str, str]) -> None:
    directory = Path(lake.get("HOLDFAST_JOURNAL_DIRECTORY", disk.path / "data" / "lake"))
    assert (directory / "journal").exists() is (lake.get("HOLDFAST_JOURNAL_ENABLED") != "false")
    assert verify(directory) == []


def check_takes_messages(client: SyncClient) -> None:
    sent = eventually(lambda: client.send("orders", b"there is room again"))
    assert sent.id in drain(client)


def test_on_a_disk_that_others_have_filled_it_starts_and_is_drained_whenever_it_dies(disk: SmallDisk) -> None:
    with served(disk) as (server, client):
        client.create_group("orders", "billing")
        sent = {client.send("orders", os.urandom(1024)).id for _ in range(100)}
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
    filler = disk.fill()
    with served(disk) as (server, client):
        with pytest.raises(DiskFull):
            client.send("orders", b"one more")
        first = eventually(lambda: client.receive("orders", group="billing", limit=50, timeout="1h"))
        for message in first:
            eventually(message.ack)
        server.process.kill()
        server.exit_code()
    with served(disk) as (_, client):
        assert {message.id for message in first} | drain(client) == sent
        filler.unlink()
        again = eventually(lambda: client.send("orders", b"there is room again"))
        assert drain(client) == {again.id}
