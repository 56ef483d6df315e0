"""Cursor groups: a queue read as a log."""

from __future__ import annotations

import msgspec

from holdfast.wire.deliveries import Encoding
from holdfast.wire.messages import Message
from holdfast.wire.numbers import Int64


class CursorRead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A range of one partition. If the group does not exist, it is created as a cursor group."""

    partition: Int64 = 0
    first: Int64 = 0
    """The sequence to start at; `0`: after the committed one."""
    until: Int64 = 0
    """The sequence to stop before; `0`: the end."""
    limit: Int64 = 1000
    max_bytes: Int64 = 8 << 20
    """About how many bytes of payload to return at most; at least one message is returned."""
    encoding: Encoding = "auto"
    columns: list[str] = []
    """The columns of an Arrow stream; empty: all."""


class CursorRange(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a range. It can be read again until it is committed. Continue at `next`.

    Sequences `lost_from` to `lost_to` were dropped for the group's `max_lag` since its last commit; both 0: none were.
    """

    messages: list[Message]
    next: int
    committed: int
    high: int
    """The sequence that the next message will get: all existing ones are below it."""
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

    partition: Int64
    sequence: Int64


class CursorCommit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Positions to commit, for any number of partitions."""

    positions: list[Position]


class CursorCommitted(msgspec.Struct, frozen=True):
    """How many messages were settled."""

    messages: int
