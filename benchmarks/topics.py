"""Topic matching: microseconds a match with 10 to 100,000 subscriptions, with and without the memory of matches.

The cost must grow with the depth of the name and not with the number of subscriptions:

    python -m benchmarks.topics
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from holdfast.mqtt.topics import NameIndex, SubscriptionTrie, matches

SIZES = (10, 100, 1_000, 10_000, 100_000)
DEPTHS = (2, 4, 8, 16)
ROUNDS = 60
BATCH = 50


def best_us(work: Callable[[], object], calls: int) -> float:
    fastest = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        work()
        fastest = min(fastest, time.perf_counter_ns() - started)
    return fastest / calls / 1000


def filled(size: int) -> tuple[SubscriptionTrie[int, int], list[str]]:
    """Devices that each listen to a topic of their own: half by name, half with a wildcard; and four that hear all."""
    trie: SubscriptionTrie[int, int] = SubscriptionTrie()
    for number in range(size):
        site, device = divmod(number, 100)
        tail = "state" if number % 2 else "+"
        trie.add(f"site/{site}/device/{device}/{tail}", number, number)
    for number, wide in enumerate(("site/#", "+/+/device/+/state", "site/+/device/#", "#")):
        trie.add(wide, size + number, number)
    sites = max(1, size // 100)
    names = [f"site/{number * 7919 % sites}/device/{number * 31 % 100}/state" for number in range(BATCH)]
    return trie, names


def walking(trie: SubscriptionTrie[int, int], names: list[str]) -> float:
    """Without the memory: the walk of a name that was not asked for before."""
    walk = trie._walk  # noqa: SLF001 - what `match` does on a miss
    return best_us(lambda: [walk(name) for name in names], len(names))


def main() -> None:
    print("matches of a name of five levels, by number of subscriptions")
    first = None
    for size in SIZES:
        trie, names = filled(size)
        walk = walking(trie, names)
        known = best_us(lambda trie=trie, names=names: [trie.match(name) for name in names], len(names))  # type: ignore[misc]
        first = first or walk
        print(
            f"  {size:>7,}: walk {walk:6.2f} µs ({walk / first:4.2f} × that of {SIZES[0]})   remembered {known:5.2f} µs"
            f"   ({walk / known:4.1f} × as fast)   {len(trie.match(names[0]))} found"
        )
    print("matches by depth of the name, 10,000 subscriptions of that depth")
    for depth in DEPTHS:
        deep: SubscriptionTrie[int, int] = SubscriptionTrie()
        tail = "/x" * (depth - 2)
        for number in range(10_000):
            deep.add(f"d/{number}{tail}" if number % 2 else f"+/{number}{tail}", number, number)
        names = [f"d/{number}{tail}" for number in range(BATCH)]
        print(f"  {depth:>2} levels: walk {walking(deep, names):6.2f} µs")
    print("one filter after the other, for comparison")
    for size in SIZES[:3]:
        all_filters = [f"site/{number // 100}/device/{number % 100}/+" for number in range(size)]
        naive = best_us(lambda every=all_filters: [one for one in every if matches(one, "site/0/device/5/state")], 1)  # type: ignore[misc]
        print(f"  {size:>7,}: {naive:10.1f} µs")
    print("retained names by filter")
    for size in SIZES:
        index: NameIndex[int] = NameIndex()
        for number, (site, device) in zip(range(size), itertools.product(range(size), range(100)), strict=False):
            index.put(f"site/{site}/device/{device}/state", number)
        exact = best_us(lambda index=index: index.match_names("site/0/device/5/state"), 1)  # type: ignore[misc]
        some = best_us(lambda index=index: index.match_names("site/0/device/+/state"), 1)  # type: ignore[misc]
        found = len(index.match_names("site/0/device/+/state"))
        print(
            f"  {size:>7,}: exact {exact:5.2f} µs   one site {some:7.2f} µs ({some / found:4.2f} µs a name of {found})"
        )


if __name__ == "__main__":
    main()
