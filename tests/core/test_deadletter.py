"""Which queue may be whose dead queue, and what a dead letter carries."""

from __future__ import annotations

import pytest

from holdfast.core.deadletter import check_dead_queue, check_unused, make_dead_letter
from holdfast.core.deliveries import Delivery
from holdfast.core.effects import DeadLetterCandidate
from holdfast.core.queue import DeadLetterPolicy, QueueConfig, QueueRecord
from holdfast.core.records import Extra, Message, Origin
from holdfast.errors import DeadQueueInvalid, QueueInUse

NONE = QueueConfig(dlq=DeadLetterPolicy(enabled=False))


def named(queue: str) -> QueueConfig:
    return QueueConfig(dlq=DeadLetterPolicy(queue=queue))


def graves(config: QueueConfig = NONE, *, closing: bool = False) -> QueueRecord:
    return QueueRecord("default", "graves", config, (1,), 0, closing=closing)


def test_a_dead_queue_that_exists_and_has_none_itself_is_allowed() -> None:
    check_dead_queue("tasks", named("graves"), graves(), [])


def test_an_automatic_dead_queue_and_none_at_all_need_nothing() -> None:
    check_dead_queue("tasks", QueueConfig(), None, [])
    check_dead_queue("tasks", NONE, None, ["mail"])


@pytest.mark.parametrize(
    ("name", "config", "target", "users", "problem"),
    [
        ("tasks", named("graves"), None, [], "that queue does not exist; create it first"),
        ("tasks", named("graves"), graves(closing=True), [], "that queue does not exist"),
        ("graves", named("graves"), graves(), [], "a queue cannot be its own dead queue"),
        ("tasks", named("graves"), graves(QueueConfig()), [], "that queue has a dead queue of its own"),
        ("pits", named("graves"), graves(), ["tasks"], "is itself a dead queue"),
        ("pits", QueueConfig(), None, ["tasks"], "is itself a dead queue"),
        ("dlq/tasks", QueueConfig(), None, [], "is itself a dead queue"),
    ],
)
def test_what_cannot_be_a_dead_queue(
    name: str, config: QueueConfig, target: QueueRecord | None, users: list[str], problem: str
) -> None:
    with pytest.raises(DeadQueueInvalid) as refused:
        check_dead_queue(name, config, target, users)
    assert problem in str(refused.value)


def test_a_dead_queue_in_use_cannot_be_deleted() -> None:
    with pytest.raises(QueueInUse, match="it is the dead queue of 'mail', 'tasks'"):
        check_unused("graves", ["mail", "tasks"])
    check_unused("tasks", [])


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
