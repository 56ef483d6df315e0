"""Cursor groups: queues read as logs.

What is read is durable before it is answered, so that a range read again after a crash is the same range.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.broker.cell import Cell
from holdfast.config.settings import LimitSettings
from holdfast.core.commands import CursorRange
from holdfast.core.records import Message
from holdfast.engine.catalog import QueueName
from holdfast.engine.cursors import CursorEnd, cursor_commit, cursor_ends, cursor_read
from holdfast.engine.engine import Engine
from holdfast.errors import (
    CursorOutOfRange,
    GroupNotFound,
    InvalidArgument,
    QueueNotFound,
    StoreUnavailable,
    WrongGroupKind,
)

STEP_MESSAGES = 1_024
"""Messages that are read in one step: some 5 ms, in which no other request is served."""


class _ReadRequest(NamedTuple):
    """A range of one partition to read."""

    name: QueueName
    group: str
    partition: int
    until: int
    limit: int
    max_bytes: int
    one_at_least: bool
    create: bool


class Cursors:
    """See the module."""

    def __init__(self, cell: Cell, limits: LimitSettings) -> None:
        self._cell = cell
        self._limits = limits

    async def ends(self, name: QueueName, group: str, *, create: bool = True) -> list[CursorEnd]:
        """By partition, what the cursor group can read now. The group is created if it is new, unless `create` is
        false. Cheap at any depth."""
        with self._cell.guard as engine:
            ends = cursor_ends(engine, name, group, self._cell.clock(), create)
        await self._cell.wait_clean()
        return ends

    async def read(
        self,
        name: QueueName,
        group: str,
        partition: int,
        first: int = 0,
        limit: int = 1000,
        max_bytes: int = 8 << 20,
        until: int = 0,
    ) -> CursorRange:
        """Sequences from `first` or from the position of the group, up to and without `until` or to the end.

        Repeatable until committed. At most `limit` messages and about `max_bytes`; at least one, if there is one.
        """
        found = await self.read_many(name, group, {partition: (first, until)}, limit, max_bytes)
        return found[partition]

    async def read_many(
        self,
        name: QueueName,
        group: str,
        ranges: Mapping[int, tuple[int, int]],
        limit: int = 1000,
        max_bytes: int = 8 << 20,
    ) -> dict[int, CursorRange]:
        """As `read`, for several partitions: by partition, `first` and `until`.

        The limits are for all of them together; a range that was cut short continues at its `next_seq`.
        """
        self._check_read(limit, max_bytes, ranges)
        self._cell.dispatcher.activity.seen((name, group), "", self._cell.clock())
        found: dict[int, CursorRange] = {}
        left, left_bytes = limit, min(max_bytes, self._limits.read_bytes)
        one_at_least = True
        engine = self._cell.engine
        for partition, (first, until) in ranges.items():
            if found:
                await asyncio.sleep(0)
            request = _ReadRequest(name, group, partition, until, left, left_bytes, one_at_least, create=not found)
            got = await self._read(engine, request, first)
            found[partition] = got
            left -= len(got.messages)
            left_bytes = max(left_bytes - sum([len(message.payload) for message in got.messages]), 0)
            one_at_least = one_at_least and not got.messages
        await self._cell.wait_clean()
        return found

    async def _read(self, engine: Engine, request: _ReadRequest, first: int) -> CursorRange:
        """One range, in steps, with others' turns in between. If the group was deleted or has moved on meanwhile, what
        was read until then is the result, and the next read says why there is no more."""
        found: list[Message] = []
        whole: CursorRange | None = None
        at, left_bytes = first, request.max_bytes
        while True:
            chunk = min(request.limit - len(found), STEP_MESSAGES)
            if self._cell.engine is not engine:
                raise StoreUnavailable(problem="it was opened again before this was done")
            try:
                with self._cell.guard:
                    got = cursor_read(
                        engine,
                        request.name,
                        request.group,
                        request.partition,
                        at,
                        chunk,
                        left_bytes,
                        self._cell.clock(),
                        request.until,
                        request.one_at_least and not found,
                        create=request.create and whole is None,
                    )
            except (CursorOutOfRange, GroupNotFound, QueueNotFound, WrongGroupKind):
                if whole is None:
                    raise
                return whole
            found += got.messages
            whole = replace(got, messages=found)
            left_bytes -= sum([len(message.payload) for message in got.messages])
            if len(got.messages) < chunk or len(found) >= request.limit or left_bytes <= 0:
                return whole
            at = got.next_seq
            await asyncio.sleep(0)

    def _check_read(self, limit: int, max_bytes: int, ranges: Mapping[int, tuple[int, int]]) -> None:
        limits = self._limits
        if not 1 <= limit <= limits.read_max:
            raise InvalidArgument(field="limit", problem=f"is 1 to {limits.read_max}, not {limit}")
        if max_bytes < 1:
            raise InvalidArgument(field="max_bytes", problem="is at least 1")
        for first, until in ranges.values():
            if until and until < first:
                raise InvalidArgument(field="until", problem=f"is not before first, {first}")

    async def commit(self, name: QueueName, group: str, partition: int, seq: int) -> int:
        """The cursor group needs nothing up to and including `seq`. Returns how many messages that were."""
        return await self.commit_many(name, group, {partition: seq})

    async def commit_many(self, name: QueueName, group: str, seqs: Mapping[int, int]) -> int:
        """As `commit`, for several partitions; each separately, so that some may be committed if one is refused.

        Committing again what was committed changes nothing.
        """
        engine = self._cell.engine
        self._cell.dispatcher.activity.seen((name, group), "", self._cell.clock())

        def work() -> Iterator[int]:
            for partition, seq in seqs.items():
                yield from cursor_commit(engine, name, group, partition, seq, self._cell.clock)

        return await self._cell.in_steps(work())
