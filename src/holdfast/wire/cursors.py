"""Cursor groups: a queue read as a log."""

from __future__ import annotations

import msgspec

from holdfast.wire.deliveries import Encoding
from holdfast.wire.messages import Message


class CursorRead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A range of one partition. The group appears, as a cursor group, if it is new."""

    partition: int = 0
    first: int = 0
    """The sequence to start at; `0`: after what is committed."""
    until: int = 0
    """The sequence to stop before; `0`: the end."""
    limit: int = 1000
    max_bytes: int = 8 << 20
    """About how many bytes of payload to give at most; one message is always given."""
    encoding: Encoding = "auto"
    columns: list[str] = []
    """Of an Arrow stream: which; empty: all."""


class CursorRange(msgspec.Struct, frozen=True, kw_only=True):
    """What a read found. It can be read again until it is committed. Go on at `next`.

    `lost_from` to `lost_to` were given up for the group's `max_lag` since its last commit; both 0: nothing was.
    """

    messages: list[Message]
    next: int
    committed: int
    high: int
    """The sequence that the next message will get: all there is lies below it."""
    lost_from: int = 0
    lost_to: int = 0


class CursorEnd(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: sequences `first` to `end - 1` can be read."""

    partition: int
    first: int
    committed: int
    end: int
    lost_from: int = 0
    lost_to: int = 0


class CursorEnds(msgspec.Struct, frozen=True):
    """What a cursor group can read now."""

    partitions: list[CursorEnd]


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything up to and including `sequence` of a partition."""

    partition: int
    sequence: int


class CursorCommit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the group needs no more, for any number of partitions."""

    positions: list[Position]


class CursorCommitted(msgspec.Struct, frozen=True):
    """How many messages that were."""

    messages: int
