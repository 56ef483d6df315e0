"""The message that an audited redrive makes of a dead letter, and the dead letter that this becomes again."""

from __future__ import annotations

from hashlib import sha256

import pytest

from holdfast.core.audits import (
    ORIGINAL_PROPERTY,
    REDRIVE_PROPERTY,
    UNDONE_PROPERTY,
    Audited,
    audit_key,
    moved,
    redriven,
    restore_dead_letter,
)
from holdfast.core.records import Extra, Message, Origin

ORIGIN = Origin(7, "tasks", "default", "max_retries")
MINE = (("mine", "1"),)
HASH = sha256(b"payload").hexdigest()


def dead_letter(*, origin: Origin | None = ORIGIN, properties: tuple[tuple[str, str], ...] = MINE) -> Message:
    return Message(9, 1, 5, 100, 0, 0, Extra(origin=origin, properties=properties, flags=1), b"payload")


def test_the_keys_of_a_namespace_are_together() -> None:
    assert audit_key("space", "dlq/tasks", "id") == b"space\0dlq/tasks\0id"


def test_a_redriven_message_keeps_its_origin_and_its_properties() -> None:
    draft = redriven("dlq/tasks", dead_letter())
    assert (draft.payload, draft.priority, draft.ttl) == (b"payload", 5, -1)
    assert (draft.extra.origin, draft.extra.properties, draft.extra.flags) == (ORIGIN, MINE, 0)


def test_a_message_without_an_origin_comes_from_the_dead_queue() -> None:
    assert redriven("dlq/tasks", dead_letter(origin=None)).extra.origin == Origin(9, "dlq/tasks", "")


@pytest.mark.parametrize(
    ("payload", "before", "expected"),
    [
        (None, (), ((REDRIVE_PROPERTY, "a1"),)),
        (b"payload", (), ((REDRIVE_PROPERTY, "a1"),)),
        (b"other", (), ((REDRIVE_PROPERTY, "a1"), (ORIGINAL_PROPERTY, HASH))),
        (b"other", ((ORIGINAL_PROPERTY, "first"),), ((REDRIVE_PROPERTY, "a1"), (ORIGINAL_PROPERTY, "first"))),
        (None, ((REDRIVE_PROPERTY, "a0"), (UNDONE_PROPERTY, "3")), ((REDRIVE_PROPERTY, "a1"),)),
    ],
)
def test_an_audited_redrive_says_its_id_and_the_hash_of_the_original_payload(
    payload: bytes | None, before: tuple[tuple[str, str], ...], expected: tuple[tuple[str, str], ...]
) -> None:
    draft = redriven("dlq/tasks", dead_letter(properties=(*MINE, *before)), "a1", payload)
    assert draft.payload == payload or (payload is None and draft.payload == b"payload")
    assert draft.extra.properties == (*MINE, *expected)


def test_a_dead_letter_is_restored_as_it_was() -> None:
    message = dead_letter(properties=(*MINE, (REDRIVE_PROPERTY, "a1"), (ORIGINAL_PROPERTY, "first")))
    draft = restore_dead_letter(message, Audited(3, 9, "tasks"))
    assert draft.payload == b"payload"
    assert draft.extra.properties == (*MINE, (ORIGINAL_PROPERTY, "first"), (UNDONE_PROPERTY, "3"))
    changed = restore_dead_letter(message, Audited(3, 9, "tasks", properties=(("own", "2"),), payload=b"own"))
    assert (changed.payload, changed.extra.properties) == (b"own", (("own", "2"), (UNDONE_PROPERTY, "3")))


@pytest.mark.parametrize(("expires_at", "ttl"), [(1_000, 600), (300, 1), (0, -1)])
def test_a_message_that_is_moved_keeps_its_time_and_what_is_left_of_its_life(expires_at: int, ttl: int) -> None:
    """What has expired is not immortal then."""
    draft = moved("tasks", Message(9, 1, 5, 100, 500, expires_at, Extra(), b"payload"), 400)
    assert (draft.payload, draft.deliver_at, draft.ttl) == (b"payload", 500, ttl)
