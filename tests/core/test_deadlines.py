"""The heap of leases: what is settled or extended falls off, what is current ends in time."""

from __future__ import annotations

from holdfast.core.deliveries import STALE_MAX, Deadlines, Deliveries, Delivery


def leases(*ids: int) -> Deliveries:
    deliveries = Deliveries()
    for each in ids:
        deliveries[each] = Delivery(each, each, 128, each, each, b"", 0, 0, 0, 0, deadline=50, token=-each)
    return deliveries


def filled(deliveries: Deliveries) -> Deadlines:
    deadlines = Deadlines(deliveries)
    found = deliveries.values()
    deadlines.add(50, [delivery.id for delivery in found], [delivery.token for delivery in found])
    return deadlines


def test_leases_end_in_their_order() -> None:
    deadlines = filled(leases(1, 2, 3))
    assert deadlines.take(49, 10) == []
    assert deadlines.take(50, 2) == [1, 2]
    assert deadlines.first() == 50
    assert deadlines.take(50, 2) == [3]
    assert deadlines.first() is None


def test_settled_leases_do_not_end() -> None:
    deliveries = leases(1, 2, 3)
    deadlines = filled(deliveries)
    deliveries.remove([1, 3])
    assert deadlines.take(99, 10) == [2]
    deliveries.remove([2])
    assert deadlines.first() is None
    assert deadlines.size == 0


def test_an_extended_lease_ends_at_its_new_deadline() -> None:
    deliveries = leases(1, 2)
    deadlines = filled(deliveries)
    deliveries[1].deadline = 80
    deadlines.add(80, [1], [-1])
    assert deadlines.take(70, 10) == [2]
    assert deadlines.first() == 80


def test_a_lease_that_was_granted_again_has_another_token() -> None:
    deliveries = leases(1)
    deadlines = filled(deliveries)
    deliveries[1].token = 77
    deadlines.add(50, [1], [77])
    assert deadlines.take(50, 10) == [1]
    assert deadlines.first() is None


def test_what_is_stale_is_forgotten_when_it_is_the_most() -> None:
    deliveries = leases(*range(1, STALE_MAX + 10))
    deadlines = filled(deliveries)
    deadlines.add(10, [0], [-5])
    last = STALE_MAX + 9
    deliveries.remove(list(range(1, last)))
    deadlines.tidy()
    assert deadlines.size == 1
    assert deadlines.first() == 50
    assert deadlines.take(50, 10) == [last]
