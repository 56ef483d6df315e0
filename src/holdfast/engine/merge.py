"""How many of the next deliveries of a queue each partition has, in the order of delivery.

Messages that were enqueued together are consecutive in one partition, so the lists of the partitions are merged in
runs: one step for each run, not for each message.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heappop, heappush
from operator import attrgetter

from holdfast.core.deliveries import Delivery
from holdfast.core.records import Place

OrderKey = tuple[int, int]
"""Priority and stamp: the order of delivery over all partitions."""

Items = list[Place | Delivery]

order_key = attrgetter("priority", "stamp")


def quotas(lists: dict[int, Items], limit: int, known: OrderKey, max_bytes: int, one_at_least: bool) -> dict[int, int]:
    """Of sorted lists, how many of the first `limit` of all together each has.

    No more than fit into `max_bytes`, 0 for no bound; with `one_at_least` the first may be larger. None beyond `known`:
    after it a list may have items that are not loaded.
    """
    counts: dict[int, int] = {}
    heap: list[tuple[OrderKey, int]] = [(order_key(items[0]), name) for name, items in lists.items() if items]
    heapify(heap)
    left, left_bytes = limit, max_bytes
    while heap and left:
        first, name = heappop(heap)
        if first > known:
            break
        items, start = lists[name], counts.get(name, 0)
        bound = min(heap[0][0], known) if heap else known
        end = min(bisect_right(items, bound, start, key=order_key), start + left)
        if max_bytes:
            fitting = _fitting(items[start:end], left_bytes, one_at_least and not counts)
            left_bytes -= sum([item.size_bytes for item in items[start : start + fitting]])
            if start + fitting < end:  # the next does not fit, and none may overtake it
                if fitting:
                    counts[name] = start + fitting
                break
        counts[name] = end
        left -= end - start
        if end < len(items):
            heappush(heap, (order_key(items[end]), name))
    return counts


def _fitting(items: Items, left_bytes: int, one_at_least: bool) -> int:
    """How many fit."""
    sizes = [item.size_bytes for item in items]
    if sum(sizes) <= left_bytes:
        return len(items)
    count = 0
    for size in sizes:
        left_bytes -= size
        if left_bytes < 0 and (count or not one_at_least):
            break
        count += 1
    return count
