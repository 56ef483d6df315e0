"""The bytes that a namespace stores: bounded by its quota, and counted only when that is near."""

from __future__ import annotations

import pytest

from holdfast.broker.commit.admission import StoredBytes
from holdfast.errors import QuotaExceeded
from holdfast.quotas import Quota, Quotas
from holdfast.units import SECOND


class Stored:
    """What is stored, and how often it was counted."""

    def __init__(self, limit: int) -> None:
        self.size_bytes = 0
        self.counted = 0
        self.quotas = Quotas({Quota.STORED_BYTES: limit})
        self.admission = StoredBytes(self.quotas, self._count)

    def _count(self, _: str) -> int:
        self.counted += 1
        return self.size_bytes

    def add(self, size_bytes: int, now: int = 0) -> None:
        self.admission.admit("acme", size_bytes, now)
        self.size_bytes += size_bytes


def test_without_a_limit_nothing_is_counted() -> None:
    stored = Stored(0)
    stored.add(1 << 60)
    assert stored.counted == 0


def test_it_is_counted_once_and_then_added_up_until_the_limit_is_near() -> None:
    stored = Stored(100)
    for _ in range(10):
        stored.add(10)
    assert stored.counted == 1
    with pytest.raises(QuotaExceeded, match="quota stored_bytes of 100"):
        stored.add(1)
    assert stored.size_bytes == 100


def test_what_was_consumed_is_room_again_within_a_second() -> None:
    stored = Stored(100)
    stored.add(100)
    stored.size_bytes = 0
    stored.add(100)  # nobody was refused yet: it is counted when it must be
    with pytest.raises(QuotaExceeded):
        stored.add(1)
    stored.size_bytes = 0
    with pytest.raises(QuotaExceeded):
        stored.add(1, SECOND // 2)
    stored.add(1, SECOND)
    assert (stored.size_bytes, stored.counted) == (1, 4)


def test_a_limit_that_is_raised_holds_immediately() -> None:
    stored = Stored(100)
    with pytest.raises(QuotaExceeded):
        stored.add(101)
    stored.quotas.set_own("acme", {Quota.STORED_BYTES: 200})
    stored.add(101)


def test_a_namespace_that_stores_too_much_is_counted_once_a_second_however_often_it_tries() -> None:
    stored = Stored(100)
    stored.size_bytes = 200
    for _ in range(1_000):
        with pytest.raises(QuotaExceeded):
            stored.add(1)
    assert stored.counted == 1
