"""The rows of a range of RocksDB, by its iterator."""

from __future__ import annotations

from collections.abc import Callable

from rocksdict import RdictIter, ReadOptions

from holdfast.store.contract import Rows
from holdfast.store.rocks_tuning import range_options


def read_rows(
    iterate: Callable[[ReadOptions], RdictIter],
    lower: bytes,
    upper: bytes,
    limit: int,
    reverse: bool,
    skipped_max: int,
    fill_cache: bool = True,
) -> Rows:
    """At most `limit` records of a range, without the first byte of their keys, which is their table."""
    options = range_options(upper, skipped_max, fill_cache=fill_cache)
    iterator = iterate(options)
    if reverse:
        iterator.seek_to_last()
    else:
        iterator.seek(lower)
    step = iterator.prev if reverse else iterator.next
    take_key = iterator.key
    take_value = iterator.value
    rows: Rows = []
    for _ in range(limit):
        key: bytes | None = take_key()
        if key is None:
            iterator.status()  # the end, or damage: the binding's simpler `items()` does not distinguish these
            break
        if reverse and key < lower:
            break  # checked here, because the binding (0.3.29) takes a lower bound for an upper one
        rows.append((key[1:], take_value()))
        step()
    return rows
