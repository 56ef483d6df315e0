"""Queue settings: as people write them, there and back; what is wrong is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.queue import (
    DEAD_QUEUE_CONFIG,
    FIELDS,
    DeadLetterPolicy,
    Ordering,
    QueueConfig,
    RetryPolicy,
    check_name,
    dead_queue_of,
    from_fields,
    to_fields,
)
from holdfast.errors import InvalidConfig, InvalidName
from holdfast.units import SECOND
from tests.core.strategies import configs


@given(configs())
def test_a_configuration_written_out_reads_back(config: QueueConfig) -> None:
    fields = to_fields(config)
    assert set(fields) == set(FIELDS)
    assert from_fields(fields, config) == config  # what is hidden in it is known from there


def test_the_defaults_are_those_of_the_specification() -> None:
    fields = to_fields(QueueConfig())
    assert fields == {
        "partitions": 10,
        "ordering": "partition",
        "max_message_size": 1 << 20,
        "max_depth": 100_000,
        "message_ttl": "7d",
        "delivery_timeout": "30s",
        "batch_size": 1,
        "dedup_window": "5m",
        "journal": "payload",
        "durability": "fsync",
        "topics": [],
        "paused": False,
        "retry.max_retries": 10,
        "retry.initial_backoff": "5s",
        "retry.max_backoff": "5m",
        "retry.multiplier": 2.0,
        "retry.jitter": 0.0,
        "retry.total_timeout": "3h",
        "dlq.enabled": True,
        "dlq.queue": "",
        "dlq.alert_webhook": "",
        "throttle.concurrency": 0,
        "throttle.rate": 0.0,
        "throttle.burst": 0,
        "throttle.key_concurrency": 1,
        "throttle.key_rate": 0.0,
        "throttle.key_burst": 0,
        "throttle.fair": False,
        "breaker.dead_letters": 0,
        "breaker.window": "1m",
    }


@pytest.mark.parametrize("ordering", ["none", "strict"])
@pytest.mark.parametrize("field", [{"key_concurrency": 2}, {"key_rate": 1}, {"key_burst": 2}, {"fair": True}])
def test_limits_of_keys_need_a_queue_that_looks_at_keys(ordering: str, field: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig, match="needs ordering partition"):
        from_fields({"ordering": ordering, "throttle": field})
    assert from_fields({"ordering": ordering, "throttle": {"rate": 5, "concurrency": 2}}).throttle.concurrency == 2


def test_a_bucket_holds_what_comes_in_a_second_unless_it_is_told() -> None:
    limits = from_fields({"throttle": {"rate": 2.5, "key_rate": 0.1}}).throttle
    assert (limits.bucket_size, limits.key_bucket_size) == (3, 1)
    limits = from_fields({"throttle": {"rate": 2.5, "burst": 1, "key_rate": 4, "key_burst": 9}}).throttle
    assert (limits.bucket_size, limits.key_bucket_size) == (1, 9)


def test_fields_may_be_nested_and_change_only_what_they_name() -> None:
    base = from_fields({"retry": {"max_retries": "3", "jitter": 0.5}, "dlq.enabled": False})
    changed = from_fields({"retry.jitter": "0.25", "delivery_timeout": 90, "max_message_size": "2MiB"}, base)
    assert changed.retry == RetryPolicy(max_retries=3, jitter=0.25)
    assert changed.dlq == DeadLetterPolicy(enabled=False)
    assert (changed.delivery_timeout, changed.max_message_size) == (90 * SECOND, 2 << 20)


@pytest.mark.parametrize(
    ("written", "microseconds"),
    [("250ms", 250_000), ("5s", 5_000_000), ("2m", 120_000_000), ("1h", 3_600_000_000), (1.5, 1_500_000)],
)
def test_durations_as_people_write_them(written: object, microseconds: int) -> None:
    assert from_fields({"dedup_window": written}).dedup_window == microseconds


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"partition": 3}, "there is no such setting; did you mean partitions?"),
        ({"retry": {"jiter": 0}}, "did you mean retry.jitter?"),
        ({"colour": "red"}, "known are batch_size, breaker.dead_letters"),
        ({"partitions": 0}, "Setting partitions cannot be 0: allowed is 1 to 1024"),
        ({"partitions": 2.5}, "it is a whole number; allowed is 1 to 1024"),
        ({"partitions": True}, "it is a number; allowed is 1 to 1024"),
        ({"partitions": None}, "it is a number; allowed is 1 to 1024"),
        ({"partitions": "many"}, "it is a whole number; allowed is 1 to 1024"),
        ({"delivery_timeout": "0s"}, "allowed is 1ms to 7d"),
        ({"delivery_timeout": "soon"}, "write 250ms, 5s, 2m, 1h, 7d or a number of seconds; allowed is 1ms to 7d"),
        ({"max_message_size": "1 furlong"}, "allowed is 1 to 268435456"),
        ({"retry.jitter": 1.5}, "Setting retry.jitter cannot be 1.5: allowed is 0 to 1"),
        ({"retry.jitter": "nan"}, "allowed is 0 to 1"),
        ({"retry.multiplier": "twice"}, "it is a number; allowed is 1 to 100"),
        ({"retry.multiplier": 10**400}, "it is a number; allowed is 1 to 100"),
        ({"ordering": "chaos"}, "it is one of none, partition, strict"),
        ({"paused": "yes"}, "it is true or false"),
        ({"topics": "a/b"}, "it is a list of at most 100 topic filters"),
        ({"topics": ["a"] * 101}, "it is a list of at most 100 topic filters"),
        ({"topics": ["a", ""]}, "a topic filter is a text, and not empty"),
        ({"topics": [7]}, "a topic filter is a text, and not empty"),
        ({"topics": ["$queue/a"]}, "topics that begin with '$' cannot be captured"),
        ({"topics": ["a\0"]}, "it is at most 1024 bytes and 64 levels, without NUL"),
        ({"topics": ["a/" * 64]}, "it is at most 1024 bytes and 64 levels, without NUL"),
        ({"topics": ["a/#/b"]}, "'#' stands alone, at the end"),
        ({"topics": ["a/b#"]}, "'#' stands alone, at the end"),
        ({"topics": ["a+/b"]}, "'+' stands for a whole level"),
        ({"dlq.queue": 7}, "it is a text"),
        ({"ordering": "strict", "partitions": 2}, "ordering strict has exactly one partition"),
        ({"retry.max_backoff": "1s"}, "it is at least retry.initial_backoff (5s)"),
    ],
)
def test_what_is_wrong_is_refused_by_name(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        from_fields(fields)
    assert problem in str(refused.value)


def test_strict_ordering_brings_its_one_partition() -> None:
    assert from_fields({"ordering": "strict"}).partitions == 1
    assert from_fields({"ordering": "strict"}).ordering is Ordering.STRICT


def test_partitions_grow_and_the_ordering_stays() -> None:
    base = QueueConfig(partitions=4)
    assert from_fields({"partitions": 8}, base).partitions == 8
    with pytest.raises(InvalidConfig, match="it can grow, not shrink, from 4"):
        from_fields({"partitions": 3}, base)
    with pytest.raises(InvalidConfig, match="it is fixed when the queue is created"):
        from_fields({"ordering": "none"}, base)


def test_whose_dead_letters_go_where() -> None:
    assert dead_queue_of("tasks", QueueConfig()) == "dlq/tasks"
    assert dead_queue_of("tasks", QueueConfig(dlq=DeadLetterPolicy(queue="graves"))) == "graves"
    assert dead_queue_of("dlq/tasks", DEAD_QUEUE_CONFIG) is None


@pytest.mark.parametrize("name", ["tasks", "tasks/image", "dlq/tasks", "a" * 255, "ünïcode/ключ", "a$b", "with space"])
def test_names_that_are_allowed(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "it is empty"),
        ("a" * 256, "longer than 255 bytes"),
        ("ü" * 128, "longer than 255 bytes"),
        ("a+b", "contains '+', '#' or NUL"),
        ("#", "contains '+', '#' or NUL"),
        ("a\0b", "contains '+', '#' or NUL"),
        ("/a", "a level between '/' is empty"),
        ("a//b", "a level between '/' is empty"),
        ("a/", "a level between '/' is empty"),
        ("$queue", "a level starts with '$'"),
        ("a/$ack", "a level starts with '$'"),
        ("a\ud800", "not valid UTF-8"),
    ],
)
def test_names_that_are_not(name: str, problem: str) -> None:
    with pytest.raises(InvalidName) as refused:
        check_name(name, "group")
    assert problem in str(refused.value)
    assert str(refused.value).startswith("group name ")


@given(st.text(max_size=300))
def test_an_allowed_name_keeps_all_the_rules(name: str) -> None:
    try:
        check_name(name)
    except InvalidName:
        return
    levels = name.split("/")
    assert 1 <= len(name.encode()) <= 255
    assert all(level and not level.startswith("$") for level in levels)
    assert not set(name) & set("+#\0")


@pytest.mark.parametrize("address", ["http://127.0.0.1:8000/x?y=z", "https://alerts.example", ""])
def test_a_webhook_is_an_address_on_the_web(address: str) -> None:
    assert from_fields({"dlq.alert_webhook": address}).dlq.alert_webhook == address


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://u:p@alerts.example/x", "https://********@alerts.example/x"),
        ("https://alerts.example/x?token=t&y=z#part", "https://alerts.example/x?********#part"),
        ("http://u@a:80?t", "http://********@a:80?********"),
        ("https://alerts.example/user@home", "https://alerts.example/user@home"),
    ],
)
def test_credentials_in_a_webhook_are_hidden_and_kept(address: str, shown: str) -> None:
    config = from_fields({"dlq.alert_webhook": address})
    assert to_fields(config)["dlq.alert_webhook"] == shown
    assert from_fields({"dlq.alert_webhook": shown, "max_depth": 7}, config).dlq.alert_webhook == address
    if shown != address:
        with pytest.raises(InvalidConfig, match="hidden credentials of another address"):
            from_fields({"dlq.alert_webhook": shown})
        with pytest.raises(InvalidConfig, match="hidden credentials of another address"):
            from_fields({"dlq.alert_webhook": shown.replace("a", "b")}, config)


def test_credentials_in_what_is_no_address_are_not_shown_either() -> None:
    with pytest.raises(InvalidConfig) as refused:
        from_fields({"dlq.alert_webhook": "htp://user:hunter2@alerts.example?key=hunter3"})
    assert "hunter" not in f"{refused.value} {refused.value.details}"


@pytest.mark.parametrize(
    "address",
    [
        "file:///etc/passwd",
        "alerts.example",
        "http://",
        "http://a:b",
        "http://[::1",
        "http://a\nb",
        "http://a/" + "x" * 2048,
    ],
)
def test_a_webhook_that_nobody_can_be_reached_at_is_refused(address: str) -> None:
    with pytest.raises(InvalidConfig, match="it is an address as https://"):
        from_fields({"dlq.alert_webhook": address})


def test_strict_order_says_what_it_needs() -> None:
    assert from_fields({"ordering": "strict"}).partitions == 1
    with pytest.raises(InvalidConfig, match="partitions cannot be 4: a queue with ordering strict has exactly one"):
        from_fields({"ordering": "strict", "partitions": 4})
    with pytest.raises(InvalidConfig, match="ordering cannot be 'strict': it is fixed when the queue is created"):
        from_fields({"ordering": "strict"}, QueueConfig(partitions=10))
