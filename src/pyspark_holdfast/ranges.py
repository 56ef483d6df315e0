"""Ranges of sequences, assigned to Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

TASK_ROWS = 2_000
"""A task costs 50 to 100 ms before it has read anything, as long as thousands of messages take."""


@dataclass(frozen=True)
class Range:
    """Sequences of one partition: from `first`, before `until`."""

    partition: int
    first: int
    until: int

    def __len__(self) -> int:
        return max(self.until - self.first, 0)


@dataclass
class RangeTask(InputPartition):
    """What one task reads, in this order."""

    ranges: list[Range]


def assign_ranges(ranges: Iterable[Range], at_least: int) -> list[RangeTask]:
    """A task for each partition; fewer, if they have little to read, but not fewer than `at_least`."""
    full = [one for one in ranges if len(one)]
    total = sum(map(len, full))
    if at_least > 0:
        return [RangeTask([part]) for part in split(full, at_least)]
    count = min(len(full), -(-total // TASK_ROWS))
    works = [RangeTask([]) for _ in range(count)]
    sizes = [0] * count
    for one in sorted(full, key=len, reverse=True):
        least = sizes.index(min(sizes))
        works[least].ranges.append(one)
        sizes[least] += len(one)
    return works


def split(ranges: list[Range], wanted: int) -> list[Range]:
    """At least `wanted` ranges, if there are so many sequences."""
    total = sum(map(len, ranges))
    if len(ranges) >= wanted or not total:
        return ranges
    size = max(total // wanted, 1)
    return [
        Range(one.partition, first, min(first + size, one.until))
        for one in ranges
        for first in range(one.first, one.until, size)
    ]
