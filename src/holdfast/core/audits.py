"""Audited redrives: the dead letters that were redriven under one id.

The id makes a redrive repeatable: a dead letter that was redriven under it is not redriven again, however often that is
requested. The record of each dead letter also allows to undo the redrive, as far as the messages were not consumed.

    table    key                               value
    AUDITS   namespace NUL dead-queue NUL id   Audit: who, when, why, how many (NUL source, if it has one, follows)
    AUDITED  number dead-letter                Audited: what became of one dead letter

The records are written in the same batch as the move that they describe. This module has the records only;
engine/audits.py keeps them and moves dead letters.
"""

from __future__ import annotations

from hashlib import sha256
from struct import Struct as Layout

import msgspec

from holdfast.core.commands import Draft
from holdfast.core.records import Extra, Message, Origin

ID_BYTES_MAX = 255  # it is part of a key, and a property of every redriven message
NOTE_BYTES_MAX = 16_384  # a condition in SQL, or any other remark

REDRIVE_PROPERTY = "holdfast-redrive"
"""The property of a redriven message: the audit id."""
ORIGINAL_PROPERTY = "holdfast-original-sha256"
"""The property of a message whose payload a redrive changed: the hash of the original payload, in hex."""
UNDONE_PROPERTY = "holdfast-undone-letter"
"""The property of a dead letter whose redrive was undone: the id it had before."""
OWN_PROPERTIES = frozenset({REDRIVE_PROPERTY, ORIGINAL_PROPERTY, UNDONE_PROPERTY})

_AUDITED = Layout(">QQ")
audited_key = _AUDITED.pack

Properties = tuple[tuple[str, str], ...]


def audit_key(namespace: str, dead_queue: str, name: str, source: str = "") -> bytes:
    parts = (namespace, dead_queue, name, source) if source else (namespace, dead_queue, name)
    return "\0".join(parts).encode()


class Audit(msgspec.Struct, array_like=True):
    """An audited redrive."""

    number: int
    namespace: str
    dead_queue: str
    id: str
    by: str
    note: str
    to: str  # empty: each dead letter to the queue it came from
    began_at: int
    changed_at: int
    moved: int = 0
    undone: int = 0
    source: str = ""  # of a dead queue that several queues share: the queue whose dead letters it redrives


class Audited(msgspec.Struct, array_like=True):
    """A dead letter that was redriven, and the message made of it. `undone` is the dead letter that this became again,
    or 0.

    `properties` and `payload` are those of the dead letter where the message's differ."""

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


def redriven(dead_queue: str, dead_letter: Message, audit: str = "", payload: bytes | None = None) -> Draft:
    """The message that a dead letter becomes: with its origin, or with the dead queue as its origin if it has none.

    `audit` becomes a property of it. With another `payload`, the hash of the original one does too; if that was changed
    before, the hash of the first remains.
    """
    if payload is None:
        payload = dead_letter.payload
    extra = dead_letter.extra
    origin = extra.origin or Origin(dead_letter.id, dead_queue, "")
    properties = extra.properties
    if audit:
        first = dict(properties).get(ORIGINAL_PROPERTY, "")
        if not first and payload != dead_letter.payload:
            first = sha256(dead_letter.payload).hexdigest()
        said = ((REDRIVE_PROPERTY, audit), (ORIGINAL_PROPERTY, first))
        properties = (*_others(properties), *said[: 2 if first else 1])
    extra = msgspec.structs.replace(extra, origin=origin, flags=0, properties=properties, enqueued_as=None)
    return Draft(payload, dead_letter.priority, 0, -1, extra)


def moved(queue: str, message: Message, now: int) -> Draft:
    """The message in another queue: as it is, also its delivery time and what is left of its time to live."""
    draft = redriven(queue, message)
    draft.deliver_at = message.deliver_at
    draft.ttl = max(message.expires_at - now, 1) if message.expires_at else -1
    return draft


def restore_dead_letter(message: Message, was: Audited) -> Draft:
    """The dead letter that a message becomes again: as it was, with the id it had."""
    extra: Extra = message.extra
    own = was.properties if was.properties is not None else extra.properties
    properties = (*_others(own), *((name, value) for name, value in own if name == ORIGINAL_PROPERTY))
    properties = (*properties, (UNDONE_PROPERTY, str(was.dead_letter)))
    extra = msgspec.structs.replace(extra, properties=properties, flags=0, enqueued_as=None)
    return Draft(message.payload if was.payload is None else was.payload, message.priority, 0, -1, extra)


def _others(properties: Properties) -> Properties:
    return tuple((name, value) for name, value in properties if name not in OWN_PROPERTIES)
