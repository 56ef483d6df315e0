"""What one namespace may have: refused before it is made, and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.core.commands import Draft, Verb
from holdfast.core.queue import GroupKind
from holdfast.core.transactions import TransactionName
from holdfast.engine.engine import Limits
from holdfast.engine.groups import create_group
from holdfast.engine.queues import update_queue
from holdfast.errors import InvalidArgument, LimitExceeded, QuotaExceeded
from holdfast.quotas import ADVICE, HELD, LIMIT_MAX, Quota, Quotas, read_limits
from holdfast.store.contract import Store
from holdfast.store.memory import MemoryStore
from tests.engine.rig import Rig

WEBHOOK = {"dlq.alert_webhook": "https://example.org/dead"}


def rig(**limits: int) -> Rig:
    store = MemoryStore()
    quotas = Quotas(read_limits(limits))

    def open_store() -> Store:
        return store

    return Rig(open_store, Limits(quotas=quotas))


def refused(quota: str, act: Callable[[], object]) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded, match=f"quota {quota} of") as found:
        act()
    assert found.value.details["quota"] == quota
    return found.value


def test_queues_are_counted_by_namespace() -> None:
    one = rig(queues=2)
    one.create_queue(("acme", "a"))
    one.create_queue(("acme", "b"))
    error = refused("queues", lambda: one.create_queue(("acme", "c")))
    assert "holdfast quota set acme queues=NUMBER" in str(error)
    assert ("acme", "c") not in one.engine.queues
    one.create_queue(("other", "a"))
    one.engine.limits.quotas.set_own("acme", {Quota.QUEUES: 3})
    one.create_queue(("acme", "c"))


def test_partitions_are_counted_at_creation_and_growth() -> None:
    one = rig(partitions=12)
    one.create_queue(("acme", "a"), partitions=8)
    refused("partitions", lambda: one.create_queue(("acme", "b"), partitions=5))
    one.create_queue(("acme", "b"), partitions=2)
    refused("partitions", lambda: update_queue(one.engine, ("acme", "b"), {"partitions": 5}, one.now))
    update_queue(one.engine, ("acme", "b"), {"partitions": 4}, one.now)
    update_queue(one.engine, ("acme", "b"), {"max_depth": 4}, one.now)
    one.create_queue(("other", "a"), partitions=12)


def test_a_dead_queue_is_made_whatever_the_quota() -> None:
    one = rig(queues=1, partitions=10)
    one.create_queue(("acme", "a"))
    one.enqueue(b"x", name=("acme", "a"))
    one.consume(1, Verb.REJECT, name=("acme", "a"))
    assert ("acme", "dlq/a") in one.engine.queues


def test_groups_are_counted_over_all_queues() -> None:
    one = rig(groups=2)
    for name in ("a", "b"):
        one.create_queue(("acme", name))
    one.create_group("g", ("acme", "a"))
    one.create_group("g", ("acme", "b"))
    refused("groups", lambda: one.create_group("h", ("acme", "b")))
    one.create_queue(("other", "a"))
    one.create_group("g", ("other", "a"))


def test_consumers_alone_cannot_fill_the_groups_of_a_queue() -> None:
    one = Rig(MemoryStore, Limits(max_groups=4))
    one.create_queue()

    def create(group: str, by_consumer: bool) -> None:
        create_group(one.engine, ("default", "tasks"), group, GroupKind.LEASE, one.now, None, 0, 0, by_consumer)

    create("a", by_consumer=True)
    one.lease(group="b")
    one.lease(group="c")
    for act in (lambda: one.lease(group="d"), lambda: create("d", by_consumer=True)):
        with pytest.raises(LimitExceeded, match=r"that consumers create is limited to 3.*queues\.max_groups_per_queue"):
            act()
    create("d", by_consumer=False)
    one.lease(group="d")
    with pytest.raises(LimitExceeded, match="max_groups_per_queue"):
        create("e", by_consumer=False)


def test_webhooks_are_counted_by_queue() -> None:
    one = rig(webhooks=1)
    one.create_queue(("acme", "a"), **WEBHOOK)
    one.create_queue(("acme", "b"))
    refused("webhooks", lambda: one.create_queue(("acme", "c"), **WEBHOOK))
    refused("webhooks", lambda: update_queue(one.engine, ("acme", "b"), WEBHOOK, one.now))
    update_queue(one.engine, ("acme", "a"), WEBHOOK, one.now)
    update_queue(one.engine, ("acme", "a"), {"dlq.alert_webhook": ""}, one.now)
    update_queue(one.engine, ("acme", "b"), WEBHOOK, one.now)


def test_open_transactions_and_what_they_hold_are_counted() -> None:
    one = rig(open_transactions=2, staged_bytes=10)
    stage = one.engine.transactions.stage

    def staged(namespace: str, transaction: str, payload: bytes, chunk: int = 0) -> object:
        return stage(
            TransactionName(namespace, "token:a", transaction), [("a", [Draft(payload)])], "", "", chunk, one.now
        )

    staged("acme", "1", b"12345")
    staged("acme", "2", b"1234")
    refused("open_transactions", lambda: staged("acme", "3", b""))
    refused("staged_bytes", lambda: staged("acme", "2", b"12", 1))
    staged("acme", "2", b"1", 1)
    staged("other", "1", b"1234567890")


def test_one_principal_does_not_hold_all_transactions_of_its_namespace() -> None:
    one = rig(open_transactions=4, staged_bytes=10)
    one.engine.limits.quotas.principal_percent = 50

    def staged(identity: str, transaction: str, payload: bytes, chunk: int = 0) -> object:
        name = TransactionName("acme", transaction, identity)
        return one.engine.transactions.stage(name, [("a", [Draft(payload)])], "", "", chunk, one.now)

    staged("token:a", "1", b"12")
    staged("token:a", "2", b"123")
    error = refused("open_transactions", lambda: staged("token:a", "3", b""))
    assert "Principal 'token:a' in namespace 'acme'" in str(error)
    refused("staged_bytes", lambda: staged("token:a", "2", b"1", 1))
    staged("token:b", "3", b"12345")


def test_a_namespace_may_have_fewer_transactions_remembered_than_others() -> None:
    one = rig(remembered_transactions=2)
    for number in range(5):
        name = TransactionName("acme", str(number), "token:a")
        one.engine.transactions.stage(name, [("a", [Draft(b"x")])], "", "", 0, one.now)
        one.engine.transactions.publish(name, None, "test", one.now)
        while one.engine.transactions.move(name, one.now):
            one.engine.write()
        one.engine.write()
    one.advance(1)
    assert one.engine.transactions.remembered("acme") == 2
    assert one.engine.transactions.remembered("other") == 0


def test_what_is_held_is_counted_by_namespace_and_principal() -> None:
    quotas = Quotas({Quota.LONG_POLLS: 4}, principal_percent=50)
    for _ in range(2):
        quotas.acquire(Quota.LONG_POLLS, "acme", "user:alice")
    assert "Principal 'user:alice' in namespace 'acme'" in str(
        refused("long_polls", lambda: quotas.acquire(Quota.LONG_POLLS, "acme", "user:alice"))
    )
    for _ in range(2):
        quotas.acquire(Quota.LONG_POLLS, "acme", "user:bob")
    assert quotas.held(Quota.LONG_POLLS, "acme") == 4
    refused("long_polls", lambda: quotas.acquire(Quota.LONG_POLLS, "acme", "user:carol"))
    quotas.acquire(Quota.LONG_POLLS, "other", "user:carol")
    for name in ("user:alice", "user:bob") * 2:
        quotas.release(Quota.LONG_POLLS, "acme", name)
    assert quotas.held(Quota.LONG_POLLS, "acme") == 0
    quotas.acquire(Quota.LONG_POLLS, "acme", "user:alice")  # what was released does not count
    assert quotas.refused == {Quota.LONG_POLLS: 2}


def test_without_a_limit_everything_can_be_held() -> None:
    quotas = Quotas()
    quotas.acquire(Quota.CONNECTIONS, "acme", "user:alice")
    assert quotas.limit("acme", Quota.CONNECTIONS) == 0


def test_without_credentials_only_a_limit_that_was_set_holds_and_nobody_has_a_share() -> None:
    quotas = Quotas({Quota.CONNECTIONS: 1}, principal_percent=50)
    for _ in range(3):
        quotas.acquire(Quota.CONNECTIONS, "default", "")
    quotas.set_own("default", {Quota.CONNECTIONS: 4})
    quotas.acquire(Quota.CONNECTIONS, "default", "")
    refused("connections", lambda: quotas.acquire(Quota.CONNECTIONS, "default", ""))


def test_own_limits_replace_defaults_until_they_are_dropped() -> None:
    quotas = Quotas({Quota.QUEUES: 5})
    quotas.set_own("acme", {Quota.QUEUES: 0})
    assert (quotas.limit("acme", Quota.QUEUES), quotas.limit("other", Quota.QUEUES)) == (0, 5)
    assert (quotas.own("acme"), quotas.own_namespaces) == ({Quota.QUEUES: 0}, ["acme"])
    quotas.set_own("acme", {})
    assert (quotas.limit("acme", Quota.QUEUES), quotas.own_namespaces) == (5, [])


@pytest.mark.parametrize("given", [{"queue": 1}, {"queues": -1}, {"queues": LIMIT_MAX + 1}])
def test_limits_that_cannot_be_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        read_limits(given)


def test_every_quota_says_what_to_do() -> None:
    assert set(ADVICE) == set(Quota)
    assert set(HELD) <= set(Quota)
