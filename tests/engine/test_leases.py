"""Who has what under lease, and which delivery a token is for."""

from __future__ import annotations

from holdfast.core.commands import Settlement, Verb
from holdfast.engine.leases import DeliveryLocator, delivery_of_token, leases_of
from holdfast.errors import LeaseLost
from holdfast.units import SECOND
from tests.engine.rig import TASKS, Rig

NOWHERE = ("default", "nowhere")


def held(cell: Rig, consumer: str) -> list[tuple[bytes, int]]:
    found = leases_of(cell.engine, TASKS, "g", consumer, "test", cell.now)
    return [(leased.message.payload, leased.attempt) for leased in found]


def test_a_consumer_has_what_it_leased_in_that_order_until_the_deadline(cell: Rig) -> None:
    cell.create_queue(partitions=3, delivery_timeout="10s", retry={"initial_backoff": "1s"})
    for number in range(3):
        cell.enqueue(b"%d" % number)
    cell.settle(cell.lease(1, consumer="me"), Verb.NACK)
    cell.advance(2 * SECOND)
    cell.lease(2, consumer="me")
    cell.lease(1, consumer="you")
    assert held(cell, "me") == [(b"1", 1), (b"2", 1)]
    assert held(cell, "you") == [(b"0", 2)], "a retry waits behind what was enqueued before it"
    cell.restart()
    assert held(cell, "me") == [(b"1", 1), (b"2", 1)]
    cell.now += 11 * SECOND
    assert held(cell, "me") == [], "the tick that is due ends them"
    assert leases_of(cell.engine, NOWHERE, "g", "me", "test", cell.now) == []
    assert leases_of(cell.engine, TASKS, "nobody", "me", "test", cell.now) == []


def test_a_token_is_known_while_it_is_leased_and_for_a_time_after(cell: Rig) -> None:
    cell.create_queue(partitions=2)
    cell.enqueue(b"a")
    cell.enqueue(b"b")
    cell.enqueue(b"c")
    leased = cell.lease(3)

    def known(token: int) -> tuple[int, int] | None:
        return delivery_of_token(cell.engine, TASKS, "g", token)

    expected = [(one.message.id, one.partition) for one in leased]
    assert [known(one.token) for one in leased] == expected
    cell.settle(leased[:1])
    cell.settle(leased[1:2], Verb.RELEASE)
    assert [known(one.token) for one in leased] == expected
    assert known(1) is None
    assert delivery_of_token(cell.engine, TASKS, "nobody", leased[2].token) is None
    assert delivery_of_token(cell.engine, NOWHERE, "g", leased[2].token) is None


def test_a_lease_has_a_deadline_until_it_ends(cell: Rig) -> None:
    cell.create_queue(partitions=2, delivery_timeout="10s")
    cell.enqueue(b"a")
    cell.enqueue(b"b")
    first, second = cell.lease(2)
    queue = cell.queue()

    def deadline(token: int, partition: int = first.partition, group: str = "g") -> int | None:
        return queue.lease_deadline(group, partition, first.message.id, token)

    assert deadline(first.token) == first.deadline == cell.now + 10 * SECOND
    assert deadline(second.token) is None
    assert deadline(first.token, partition=second.partition) is None
    for nowhere in (first.partition + 2, first.partition - 2):  # the queue has two, so these are not the same again
        assert deadline(first.token, partition=nowhere) is None
    assert deadline(first.token, group="nobody") is None
    cell.now += SECOND
    cell.settle([first], Verb.EXTEND)
    assert deadline(first.token) == cell.now + 10 * SECOND
    assert deadline(second.token) is None
    cell.settle([first])
    assert deadline(first.token) is None


def test_settlements_without_a_partition_find_it(cell: Rig) -> None:
    cell.create_queue(partitions=3)
    for number in range(3):
        cell.enqueue(b"%d" % number)
    leased = cell.lease(3)
    locator = DeliveryLocator(cell.queue(), "g")
    assert [locator.find(one.message.id) for one in leased] == [one.partition for one in leased]
    assert locator.find(17) == -1
    settlements = [Settlement(one.message.id, one.token) for one in leased]
    results = cell.engine.settle(TASKS, "g", [*settlements, Settlement(17, 18)], cell.now)
    assert results[:3] == [None, None, None]
    assert isinstance(results[3], LeaseLost)
    assert cell.engine.settle(TASKS, "g", settlements, cell.now) == [None] * 3, "acked before: answered the same"


def test_acks_without_a_partition_find_it(cell: Rig) -> None:
    cell.create_queue(partitions=3)
    for _ in range(3):
        cell.enqueue(b"m", b"m")
    leased = cell.lease(6)
    ids, tokens = [one.message.id for one in leased], [one.token for one in leased]
    together = [index for index, one in enumerate(leased) if one.partition == leased[0].partition]
    some = [ids[index] for index in together], [tokens[index] for index in together]
    assert cell.engine.ack(TASKS, "g", *some, cell.now) == [None, None], "all in one partition"
    results = cell.engine.ack(TASKS, "g", [*ids, 17], [*tokens, 18], cell.now)
    assert results[:6] == [None] * 6
    assert isinstance(results[6], LeaseLost)
    [lost] = cell.engine.ack(TASKS, "g", [17], [18], cell.now)
    assert isinstance(lost, LeaseLost)
    assert cell.live() == []


def test_an_ack_of_nothing_settles_nothing(cell: Rig) -> None:
    cell.create_queue(partitions=2)
    cell.enqueue(b"m")
    cell.lease()
    assert DeliveryLocator(cell.queue(), "g").split([], []) == {}
    assert cell.engine.ack(TASKS, "g", [], [], cell.now) == []


def test_settlements_whose_partitions_are_known_go_to_several(memory: Rig) -> None:
    memory.create_queue(partitions=3)
    for number in range(3):
        memory.enqueue(b"%d" % number)
    leased = memory.lease(3)
    assert {one.partition for one in leased} == {0, 1, 2}
    assert memory.settle(leased) == [None] * 3
    assert memory.live() == []
