"""Cursor groups: calls of a node that read queues as logs.

What is read is durable before it is answered, so that a range read again after a crash is the same range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.broker import admin
from holdfast.broker.admin import CursorEnd
from holdfast.broker.calls import Calls
from holdfast.broker.catalog import QueueName
from holdfast.core.commands import CursorRange
from holdfast.errors import InvalidArgument


class LogCalls(Calls):
    """See the module."""

    async def cursor_ends(self, name: QueueName, group: str) -> list[CursorEnd]:
        """By partition, what the cursor group can read now. The group appears if it is new. Cheap at any depth."""
        with self._guard() as engine:
            ends = admin.cursor_ends(engine, name, group, self.clock())
        await self._shown()
        return ends

    async def cursor_read(
        self,
        name: QueueName,
        group: str,
        partition: int,
        first: int = 0,
        limit: int = 1000,
        max_bytes: int = 8 << 20,
        until: int = 0,
    ) -> CursorRange:
        """Sequences from `first` or from where the group stands, up to and without `until` or to the end.

        Repeatable until committed. At most `limit` messages and about `max_bytes`; at least one, if there is one.
        """
        found = await self.cursor_read_many(name, group, {partition: (first, until)}, limit, max_bytes)
        return found[partition]

    async def cursor_read_many(
        self,
        name: QueueName,
        group: str,
        ranges: Mapping[int, tuple[int, int]],
        limit: int = 1000,
        max_bytes: int = 8 << 20,
    ) -> dict[int, CursorRange]:
        """As `cursor_read`, for several partitions at once: by partition, from where up to where.

        The limits are for all of them together; a range that was cut short goes on at its `next_seq`.
        """
        self._check_read(limit, max_bytes, ranges)
        found: dict[int, CursorRange] = {}
        left, left_bytes = limit, min(max_bytes, self.config.limits.read_bytes)
        one_at_least = True
        for partition, (first, until) in ranges.items():
            with self._guard() as engine:
                got = admin.cursor_read(
                    engine, name, group, partition, first, left, left_bytes, self.clock(), until, one_at_least
                )
            found[partition] = got
            left -= len(got.messages)
            left_bytes = max(left_bytes - sum([len(message.payload) for message in got.messages]), 0)
            one_at_least = one_at_least and not got.messages
        await self._shown()
        return found

    def _check_read(self, limit: int, max_bytes: int, ranges: Mapping[int, tuple[int, int]]) -> None:
        limits = self.config.limits
        if not 1 <= limit <= limits.read_max:
            raise InvalidArgument(field="limit", problem=f"is 1 to {limits.read_max}, not {limit}")
        if max_bytes < 1:
            raise InvalidArgument(field="max_bytes", problem="is at least 1")
        for first, until in ranges.values():
            if until and until < first:
                raise InvalidArgument(field="until", problem=f"is not before first, {first}")

    async def cursor_commit(self, name: QueueName, group: str, partition: int, seq: int) -> int:
        """The cursor group needs nothing up to and including `seq`. Returns how many messages that were."""
        return await self.cursor_commit_many(name, group, {partition: seq})

    async def cursor_commit_many(self, name: QueueName, group: str, seqs: Mapping[int, int]) -> int:
        """As `cursor_commit`, for several partitions; each by itself, so that some may be committed if one is refused.

        Committing again what was committed changes nothing.
        """
        engine = self.engine

        def work() -> Iterator[int]:
            for partition, seq in seqs.items():
                yield from admin.cursor_commit(engine, name, group, partition, seq, self.clock)

        return await self._in_pieces(work())
