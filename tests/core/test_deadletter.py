"""Which queue may be whose dead queue, and what a dead letter carries."""

from __future__ import annotations

import pytest

from holdfast.core.deadletter import check_dead_queue, check_unused, dead_queue_users, make_dead_letter
from holdfast.core.deliveries import Delivery
from holdfast.core.effects import DeadLetterCandidate
from holdfast.core.queue import DEAD_QUEUE_CONFIG, DeadLetterPolicy, QueueConfig, QueueRecord
from holdfast.core.records import Extra, Message, Origin
from holdfast.errors import DeadQueueInvalid, QueueInUse

NONE = QueueConfig(dlq=DeadLetterPolicy(enabled=False))


def named(queue: str) -> QueueConfig:
    return QueueConfig(dlq=DeadLetterPolicy(queue=queue))


def queues(*, closing: bool = False, **configs: QueueConfig) -> dict[str, QueueRecord]:
    return {
        name: QueueRecord("default", name, config, (1,), 0, closing=closing and name == "graves")
        for name, config in configs.items()
    }


def test_a_dead_queue_that_exists_and_has_none_itself_is_allowed() -> None:
    check_dead_queue("tasks", named("graves"), queues(graves=NONE))


def test_an_automatic_dead_queue_and_none_at_all_need_nothing() -> None:
    check_dead_queue("tasks", QueueConfig(), {})
    check_dead_queue("tasks", NONE, {})


@pytest.mark.parametrize(
    ("name", "config", "others", "problem"),
    [
        ("tasks", named("graves"), {}, "that queue does not exist; create it first"),
        ("tasks", named("graves"), queues(graves=NONE, closing=True), "that queue does not exist"),
        ("tasks", named("tasks"), {}, "a queue cannot be its own dead queue"),
        ("tasks", named("graves"), queues(graves=QueueConfig()), "that queue has a dead queue of its own"),
        ("graves", named("pits"), queues(tasks=named("graves"), pits=NONE), "is itself a dead queue"),
        ("graves", QueueConfig(), queues(tasks=named("graves")), "is itself a dead queue"),
        ("dlq/tasks", QueueConfig(), {}, "is itself a dead queue"),
    ],
)
def test_what_cannot_be_a_dead_queue(
    name: str, config: QueueConfig, others: dict[str, QueueRecord], problem: str
) -> None:
    with pytest.raises(DeadQueueInvalid) as refused:
        check_dead_queue(name, config, others)
    assert problem in str(refused.value)


def test_a_dead_queue_in_use_cannot_be_deleted() -> None:
    both = queues(graves=NONE, tasks=named("graves"), mail=named("graves"))
    assert dead_queue_users("graves", both) == ["mail", "tasks"]
    with pytest.raises(QueueInUse, match="it is the dead queue of 'mail', 'tasks'"):
        check_unused("graves", both)
    check_unused("tasks", both)


def test_an_automatic_dead_queue_is_in_use_while_its_queue_is_there() -> None:
    automatic = {
        "tasks": QueueRecord("default", "tasks", QueueConfig(), (1,), 0),
        "dlq/tasks": QueueRecord("default", "dlq/tasks", DEAD_QUEUE_CONFIG, (2,), 0, automatic=True),
    }
    with pytest.raises(QueueInUse):
        check_unused("dlq/tasks", automatic)


def test_a_dead_letter_says_where_it_comes_from_and_why() -> None:
    extra = Extra(key="k", message_id="order-1", properties=(("a", "b"),), correlation_id="c", flags=2)
    message = Message(41, 7, 9, 100, 0, 500, extra, b"payload")
    delivery = Delivery(41, 7, 9, 41, 41, b"", 0, 2, 100, 500, 110, 130, 160, token=77, error="boom")
    dead_letter = make_dead_letter("tasks", DeadLetterCandidate("g", delivery, message, "max_retries"))
    assert (dead_letter.payload, dead_letter.priority, dead_letter.deliver_at, dead_letter.ttl) == (
        b"payload",
        9,
        0,
        -1,
    )
    assert dead_letter.extra == Extra(
        key="k",
        message_id="order-1",
        properties=(("a", "b"),),
        correlation_id="c",
        origin=Origin(41, "tasks", "g", "max_retries", "boom", 3, 110, 130),
    )


def test_a_delivery_that_was_never_leased_has_no_attempts() -> None:
    message = Message(41, 7, 9, 100, 0, 500, Extra(), b"")
    dead_letter = make_dead_letter(
        "tasks", DeadLetterCandidate("", Delivery(41, 7, 9, 41, 41, b"", 0, 0, 100, 500), message, "expired")
    )
    assert dead_letter.extra.origin == Origin(41, "tasks", "", "expired", "", 0, 0, 0)
