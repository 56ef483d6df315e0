"""Copies the records of a store into another, of whichever kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from holdfast.broker.filling import fill
from holdfast.core.records import Table
from holdfast.engine.cell_record import UNFINISHED_KEY
from holdfast.errors import Fenced, InvalidArgument, StoreUnfinished
from holdfast.store.contract import Reader, Store
from holdfast.store.pages import RecordPage, pages_of


class Copied(NamedTuple):
    """What was copied."""

    records: int
    size_bytes: int
    queues: int


def copy_records(
    source: Store, target: Store, *, replace: bool, advance: Callable[[int], None] = lambda _records: None
) -> Copied:
    """Fence the source, so that no server that still has it open can write, and copy what it has. `advance` is called
    with the number of records that are copied."""
    if source.get(Table.META, UNFINISHED_KEY) is not None:
        raise StoreUnfinished(store=source.name)
    epoch = source.acquire()
    if replace:
        _refuse_same(source, epoch, target)
    records = size_bytes = queues = 0
    with source.view() as view:
        for page in fill(target, _fenced_pages(source, epoch, view), replace=replace):
            records += len(page.rows)
            size_bytes += page.size_bytes
            queues += len(page.rows) if page.table is Table.QUEUES else 0
            advance(records)
    return Copied(records, size_bytes, queues)


def _refuse_same(source: Store, epoch: int, target: Store) -> None:
    """A database has many names: it is the same store if to take over the target fences the source."""
    target.acquire()
    try:
        source.write(epoch, [(Table.META, UNFINISHED_KEY, None)])
        source.sync()
    except Fenced as error:
        raise InvalidArgument(field="--to", problem="names the store of --from: choose another one") from error


def _fenced_pages(source: Store, epoch: int, view: Reader) -> Iterator[RecordPage]:
    """All records. Fenced: a server was started meanwhile, and what it has stored is not among them."""
    yield from pages_of(view)
    source.write(epoch, [(Table.META, UNFINISHED_KEY, None)])
    source.sync()
