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
from holdfast.units import MIB
from tests.power.small_disk import SmallDisk, small_disk
from tests.test_server import Server, serving
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.crash

R = TypeVar("R")

DISK_BYTES = 96 * MIB
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
        with SyncClient(url, retries=Retries(attempts=1)) as client:
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
            confirmed.add(client.send("orders", os.urandom(128 * 1024)).id)
        except HoldfastError as error:
            return confirmed, error


def drain(client: SyncClient) -> set[str]:
    """Lease and ack everything. Returns the messages whose ack was confirmed."""
    acked: set[str] = set()
    while leased := eventually(lambda: client.receive("orders", group="billing", limit=50)):
        for message in leased:
            eventually(message.ack)
            acked.add(message.id)
    return acked


@pytest.mark.parametrize("journal", ["false", "true"], ids=["without a journal", "with a journal"])
def test_a_server_that_has_filled_its_disk_is_drained_and_takes_messages_again(
    disk: SmallDisk, journal: str, tmp_path: Path
) -> None:
    """The lake is on another disk, so that what is acked is exported and makes room."""
    settings = {"HOLDFAST_JOURNAL_ENABLED": journal, "HOLDFAST_JOURNAL_SEGMENT_AGE": "1s"}
    with served(disk, **settings, HOLDFAST_JOURNAL_DIRECTORY=str(tmp_path / "lake")) as (_, client):
        fill_and_drain(client)
        sent = eventually(lambda: client.send("orders", b"there is room again"))
        assert drain(client) == {sent.id}


def fill_and_drain(client: SyncClient) -> None:
    """Until the disk is really full, and then until the queue is empty."""
    client.create_group("orders", "billing")
    confirmed, error = send_until_refused(client)
    assert isinstance(error, (DiskFull, StoreUnavailable)), "a flush beside it may have met the full disk first"
    with pytest.raises((DiskFull, StoreUnavailable)):
        client.send("orders", b"one more")
    acked = drain(client)
    assert confirmed <= acked, "a confirmed message is missing"
    assert len(acked - confirmed) <= 1, "of the one that was refused it is not known"


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
        first = eventually(lambda: client.receive("orders", group="billing", limit=50))
        for message in first:
            eventually(message.ack)
        server.process.kill()
        server.exit_code()
    with served(disk) as (_, client):
        assert {message.id for message in first} | drain(client) == sent
        filler.unlink()
        again = eventually(lambda: client.send("orders", b"there is room again"))
        assert drain(client) == {again.id}
