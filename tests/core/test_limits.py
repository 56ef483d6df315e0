"""What a producer may give a message, and how much of it."""

from __future__ import annotations

import pytest

from holdfast.core.commands import Draft
from holdfast.core.enqueue import FAR_FUTURE, KEY_BYTES_MAX, MESSAGE_ID_BYTES_MAX, PROPERTIES_BYTES_MAX, PROPERTIES_MAX
from holdfast.core.records import Extra, Origin
from holdfast.errors import InvalidArgument
from tests.core.bench import NAME, Bench


def refusal(draft: Draft) -> str:
    """How a message is refused, beside one that is not."""
    bench = Bench()
    reply = bench.engine.enqueue(NAME, [draft, Draft(b"fine")], "", bench.now)
    assert reply.ids[1]
    if not reply.errors:
        assert reply.ids[0]
        return ""
    assert not reply.ids[0]
    assert isinstance(reply.errors[0], InvalidArgument)
    return str(reply.errors[0])


@pytest.mark.parametrize(
    ("draft", "problem"),
    [
        (Draft(b"", priority=-1), "priority is 0 to 255, not -1."),
        (Draft(b"", priority=256), "priority is 0 to 255, not 256."),
        (Draft(b"", deliver_at=FAR_FUTURE), "deliver_at and ttl are microseconds of an instant before the year 9999."),
        (Draft(b"", deliver_at=-1), "deliver_at and ttl are microseconds of an instant before the year 9999."),
        (Draft(b"", ttl=-2), "deliver_at and ttl are microseconds of an instant before the year 9999."),
        (Draft(b"", extra=Extra(key="ü" * KEY_BYTES_MAX)), "key is at most 1024 bytes."),
        (Draft(b"", extra=Extra(message_id="x" * (MESSAGE_ID_BYTES_MAX + 1))), "message_id is at most 1024 bytes."),
        (Draft(b"", extra=Extra(correlation_data=bytes(65_536))), "correlation_data is at most 65535 bytes."),
        (Draft(b"", extra=Extra(properties=(("a", "b"),) * 257)), "properties are at most 256."),
        (Draft(b"", extra=Extra(properties=(("a", "b" * 65_535),))), "properties are at most 65535 bytes in all."),
        (Draft(b"", extra=Extra(origin=Origin(0, "q", ""))), "source_id is 1 to 9223372036854775807."),
        (Draft(b"", extra=Extra(origin=Origin(1 << 63, "q", ""))), "source_id is 1 to 9223372036854775807."),
    ],
)
def test_what_is_too_much_is_refused_by_name(draft: Draft, problem: str) -> None:
    assert refusal(draft) == problem


@pytest.mark.parametrize(
    "draft",
    [
        Draft(b"", priority=0),
        Draft(b"", priority=255),
        Draft(b"", deliver_at=FAR_FUTURE - 1, ttl=0),
        Draft(b"", extra=Extra(key="x" * KEY_BYTES_MAX, message_id="x" * MESSAGE_ID_BYTES_MAX)),
        Draft(b"", extra=Extra(correlation_data=bytes(PROPERTIES_BYTES_MAX))),
        Draft(b"", extra=Extra(properties=(("a", "b"),) * PROPERTIES_MAX)),
        Draft(b"", extra=Extra(origin=Origin((1 << 63) - 1, "q", ""))),
    ],
)
def test_what_is_just_enough_is_not(draft: Draft) -> None:
    assert refusal(draft) == ""
