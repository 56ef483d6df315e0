"""A flag for each setting of a queue, for `queue create` and `queue update`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., object])


class Flag(NamedTuple):
    """A setting by its name in the API, and its flag."""

    field: str
    flag: str
    kind: Any
    help: str

    @property
    def parameter(self) -> str:
        return "set_" + self.field.replace(".", "_")


_TEXT = click.STRING
_WHOLE = click.INT

FLAGS = (
    Flag("partitions", "--partitions", _WHOLE, "Number of partitions. It can grow later, not shrink."),
    Flag(
        "ordering",
        "--ordering",
        click.Choice(["none", "partition", "strict"]),
        "none; messages of each key one after another; or all strictly one after another.",
    ),
    Flag("max_message_size", "--max-message-size", _TEXT, "The largest payload, as 64KiB or 1MiB."),
    Flag("max_depth", "--max-depth", _WHOLE, "How many messages it holds at most; 0 is no limit."),
    Flag("message_ttl", "--message-ttl", _TEXT, "How long a message may wait, as 7d; 0s is for ever."),
    Flag("delivery_timeout", "--delivery-timeout", _TEXT, "How long a lease lasts, as 30s."),
    Flag("batch_size", "--batch-size", _WHOLE, "Deliveries pushed together."),
    Flag("dedup_window", "--dedup-window", _TEXT, "How long a producer's message id is remembered; 0s is not at all."),
    Flag("journal", "--journal", click.Choice(["payload", "metadata", "off"]), "What the journal keeps of messages."),
    Flag(
        "durability",
        "--durability",
        click.Choice(["fsync", "buffered"]),
        "Whether a stored message is synced, or the last second may be lost when the machine fails.",
    ),
    Flag(
        "topics", "--topic", _TEXT, "An MQTT topic filter whose messages it captures too. May be given several times."
    ),
    Flag("paused", "--paused/--no-paused", click.BOOL, "Whether it delivers messages."),
    Flag("retry.max_retries", "--max-retries", _WHOLE, "Failures after which a message is dead."),
    Flag("retry.initial_backoff", "--initial-backoff", _TEXT, "The backoff before the first retry, as 5s."),
    Flag("retry.max_backoff", "--max-backoff", _TEXT, "The longest backoff between retries."),
    Flag(
        "retry.multiplier",
        "--multiplier",
        click.FLOAT,
        "The factor by which each backoff is longer than the one before.",
    ),
    Flag("retry.jitter", "--jitter", click.FLOAT, "The random part of a backoff, from 0 to 1."),
    Flag(
        "retry.total_timeout",
        "--total-timeout",
        _TEXT,
        "Dead-letter at the first failure after this time; 0s is no limit.",
    ),
    Flag(
        "dlq.enabled", "--dlq/--no-dlq", click.BOOL, "Whether messages are dead-lettered to a dead queue, or dropped."
    ),
    Flag("dlq.queue", "--dlq-queue", _TEXT, "The dead queue, if not dlq/NAME."),
    Flag("dlq.alert_webhook", "--dlq-alert-webhook", _TEXT, "A URL that is called for each dead letter."),
    Flag("throttle.concurrency", "--concurrency", _WHOLE, "Deliveries that a group holds at a time; 0 is no limit."),
    Flag("throttle.rate", "--rate", click.FLOAT, "Deliveries a second that a group is given; 0 is no limit."),
    Flag("throttle.burst", "--burst", _WHOLE, "Deliveries that may follow each other immediately; 0 is a second's."),
    Flag("throttle.key_concurrency", "--key-concurrency", _WHOLE, "Deliveries of one key that are held at a time."),
    Flag("throttle.key_rate", "--key-rate", click.FLOAT, "Deliveries a second of one key; 0 is no limit."),
    Flag("throttle.key_burst", "--key-burst", _WHOLE, "As --burst, for one key."),
    Flag("throttle.fair", "--fair/--no-fair", click.BOOL, "Whether keys take turns, whatever their backlogs."),
    Flag(
        "breaker.dead_letters",
        "--breaker-dead-letters",
        _WHOLE,
        "So many dead letters within --breaker-window pause the queue; 0 is never.",
    ),
    Flag("breaker.window", "--breaker-window", _TEXT, "The time in which they are counted, as 1m."),
)


def queue_settings(command: Command) -> Command:
    """Add a flag for each setting."""
    for flag in reversed(FLAGS):
        command = click.option(
            flag.flag,
            flag.parameter,
            type=None if "/" in flag.flag else flag.kind,
            multiple=flag.field == "topics",
            default=() if flag.field == "topics" else None,
            help=flag.help,
        )(command)
    return command


def given_settings(values: dict[str, Any]) -> dict[str, object]:
    """The given settings, in the API's format."""
    found = {flag.field: values[flag.parameter] for flag in FLAGS}
    given: dict[str, object] = {field: value for field, value in found.items() if value is not None and value != ()}
    if "topics" in given:
        given["topics"] = list(found["topics"])
    return given
