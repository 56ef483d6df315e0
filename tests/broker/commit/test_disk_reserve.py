"""How much may be enqueued before the disk is looked at again."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from holdfast.broker.commit.admission import COPIES, MESSAGE_BYTES, DiskReserve, Inbox
from holdfast.errors import DiskFull
from holdfast.store.contract import Store
from holdfast.units import MIB, SECOND

FREE_BYTES = 10 * MIB
KEPT_BYTES = 2 * MIB


class Disk:
    """A store of which only the room on its disk matters."""

    def __init__(self) -> None:
        self.free: int | None = FREE_BYTES
        self.looks = 0

    def room(self) -> int | None:
        self.looks += 1
        return self.free


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def inbox() -> Inbox:
    return Inbox(1_000, 100 * MIB)


@pytest.fixture
def reserve(disk: Disk, inbox: Inbox, tmp_path: Path) -> DiskReserve:
    return DiskReserve(cast("Store", disk), KEPT_BYTES, tmp_path, inbox)


def test_what_is_admitted_within_a_second_counts_against_the_room(reserve: DiskReserve, disk: Disk) -> None:
    """The store has written it, in its log and for a while in a table too, when the system is asked again."""
    each = COPIES * (100_000 + MESSAGE_BYTES)
    for number in range((FREE_BYTES - KEPT_BYTES) // each):
        reserve.admit(SECOND, 1, 100_000)
        disk.free = FREE_BYTES - (number + 1) * each
    assert disk.looks == 1
    with pytest.raises(DiskFull):
        reserve.admit(SECOND, 1, 100_000)
    assert disk.looks == 2


def test_before_something_is_refused_because_of_what_was_counted_the_system_is_asked_again(
    reserve: DiskReserve, disk: Disk
) -> None:
    for _ in range(20):
        reserve.admit(SECOND, 1, MIB)
    assert 5 <= disk.looks <= 10
    disk.free = None
    reserve.admit(2 * SECOND, 1, 100 * MIB)


def test_what_waits_for_its_commit_is_not_on_the_disk_yet(reserve: DiskReserve, inbox: Inbox) -> None:
    inbox.size_bytes = 3 * MIB
    reserve.admit(SECOND, 0, MIB)
    inbox.size_bytes = 4 * MIB
    with pytest.raises(DiskFull):
        reserve.admit(SECOND, 0, 1)
    inbox.size_bytes = 0
    reserve.admit(2 * SECOND, 0, 1)


def test_a_request_that_does_not_fit_is_refused_and_a_smaller_one_is_not(reserve: DiskReserve) -> None:
    with pytest.raises(DiskFull):
        reserve.admit(SECOND, 1, 4 * MIB)
    reserve.admit(SECOND, 1, 3 * MIB)


def test_it_is_logged_once_though_smaller_requests_fit(reserve: DiskReserve, disk: Disk) -> None:
    with capture_logs() as logs:
        for second in range(1, 4):
            with pytest.raises(DiskFull):
                reserve.admit(second * SECOND, 1, 4 * MIB)
            reserve.admit(second * SECOND, 1, 1)
        disk.free = 2 * FREE_BYTES
        reserve.admit(5 * SECOND, 1, 4 * MIB)
    assert [line["log_level"] for line in logs] == ["error", "info"]


def test_many_small_messages_take_more_than_their_payloads(reserve: DiskReserve) -> None:
    with pytest.raises(DiskFull):
        reserve.admit(SECOND, 8_192, 8_192)
    reserve.admit(SECOND, 4_096, 4_096)
