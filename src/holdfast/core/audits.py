"""Audited redrives: what somebody brought back from a dead queue under one id, letter by letter.

The id makes a redrive repeatable: a letter that was brought back under it is not brought back again, however often it
is asked for. What is known of each letter also lets the redrive be undone, as far as nobody has consumed the messages.

    table    key                               value
    AUDITS   namespace NUL dead-queue NUL id   Audit: who, when, why, how many
    AUDITED  number letter                     Audited: what became of one letter

The records are written in the same batch as the move that they tell of. This module is the records alone;
engine/audits.py has them and moves letters.
"""

from __future__ import annotations

from hashlib import sha256
from struct import Struct as Layout

import msgspec

from holdfast.core.commands import Draft
from holdfast.core.records import Extra, Message, Origin

ID_BYTES_MAX = 255  # it is part of a key, and a property of every message that is brought back
NOTE_BYTES_MAX = 16_384  # a condition of SQL, or what else a person has to say about it

REDRIVE_PROPERTY = "holdfast-redrive"
"""The property of a message that was brought back: the audit id."""
ORIGINAL_PROPERTY = "holdfast-original-sha256"
"""The property of a message whose payload a redrive changed: the hash of what it had been, in hex."""
UNDONE_PROPERTY = "holdfast-undone-letter"
"""The property of a dead letter that is one again because its redrive was undone: the id it had before."""
OWN_PROPERTIES = frozenset({REDRIVE_PROPERTY, ORIGINAL_PROPERTY, UNDONE_PROPERTY})

_AUDITED = Layout(">QQ")
audited_key = _AUDITED.pack

Properties = tuple[tuple[str, str], ...]


def audit_key(namespace: str, dead_queue: str, name: str) -> bytes:
    return b"\0".join((namespace.encode(), dead_queue.encode(), name.encode()))


class Audit(msgspec.Struct, array_like=True):
    """A redrive that somebody began."""

    number: int
    namespace: str
    dead_queue: str
    id: str
    by: str
    note: str
    to: str  # empty: each letter to where it came from
    began_at: int
    changed_at: int
    moved: int = 0
    undone: int = 0


class Audited(msgspec.Struct, array_like=True):
    """A letter that was brought back, and the message made of it. `undone` is the letter that it is again, or 0.

    `properties` and `payload` are the letter's own where the message's differ."""

    dead_letter: int
    message: int
    queue: str
    undone: int = 0
    properties: Properties | None = None
    payload: bytes | None = None


_encode = msgspec.msgpack.Encoder().encode
write_audit = _encode
write_audited = _encode
read_audit = msgspec.msgpack.Decoder(Audit).decode
read_audited = msgspec.msgpack.Decoder(Audited).decode


def redriven(dead_queue: str, letter: Message, audit: str = "", payload: bytes | None = None) -> Draft:
    """The message that a letter becomes: with its origin, or as one that comes from the dead queue if it has none.

    With `audit` it says so. With another `payload` it also says what its own had been, by hash; of one that was changed
    before, it goes on saying what the first had been.
    """
    if payload is None:
        payload = letter.payload
    extra = letter.extra
    origin = extra.origin or Origin(letter.id, dead_queue, "")
    properties = extra.properties
    if audit:
        first = dict(properties).get(ORIGINAL_PROPERTY, "")
        if not first and payload != letter.payload:
            first = sha256(letter.payload).hexdigest()
        said = ((REDRIVE_PROPERTY, audit), (ORIGINAL_PROPERTY, first))
        properties = (*_others(properties), *said[: 2 if first else 1])
    extra = msgspec.structs.replace(extra, origin=origin, flags=0, properties=properties)
    return Draft(payload, letter.priority, 0, -1, extra)


def restore_dead_letter(message: Message, was: Audited) -> Draft:
    """The dead letter that a message becomes again: as it was, and with the id it had."""
    extra: Extra = message.extra
    own = was.properties if was.properties is not None else extra.properties
    properties = (*_others(own), *((name, value) for name, value in own if name == ORIGINAL_PROPERTY))
    properties = (*properties, (UNDONE_PROPERTY, str(was.dead_letter)))
    extra = msgspec.structs.replace(extra, properties=properties, flags=0)
    return Draft(message.payload if was.payload is None else was.payload, message.priority, 0, -1, extra)


def _others(properties: Properties) -> Properties:
    return tuple((name, value) for name, value in properties if name not in OWN_PROPERTIES)
