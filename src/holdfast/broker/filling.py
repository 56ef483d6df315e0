"""Fills a store with the records of another one: by `holdfast store copy`, and by restoring a backup of records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.core.records import Table
from holdfast.engine.cell_record import UNFINISHED_KEY
from holdfast.errors import StoreNotEmpty
from holdfast.store.contract import Store
from holdfast.store.pages import RecordPage, clear, is_empty, load


def fill(store: Store, pages: Iterable[RecordPage], *, replace: bool, finish: bool = True) -> Iterator[RecordPage]:
    """Write pages into a store that has nothing, and give them back as they are durable. Until the last one is, no
    server works with it. With `replace` a store loses what it has. Without `finish` it stays unfinished."""
    if not is_empty(store) and not replace:
        raise StoreNotEmpty(store=f"The {store.name} store")
    epoch = store.acquire()
    store.write(epoch, [(Table.META, UNFINISHED_KEY, b"1")])
    store.sync()
    if replace:
        clear(store, epoch)
        store.write(epoch, [(Table.META, UNFINISHED_KEY, b"1")])
        store.sync()
    yield from load(store, epoch, pages)
    if finish:
        store.write(epoch, [(Table.META, UNFINISHED_KEY, None)])
        store.sync()
