"""A check of a store that no process has open: its format, its files, its log, and every record by its checksum.

Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rocksdict import Rdict

from holdfast.errors import StoreError
from holdfast.store import formats, inventory, rocks_log
from holdfast.store.directory import Directory
from holdfast.store.rocks_errors import translate
from holdfast.store.rocks_handles import read_only, readable_changes


class Finding(NamedTuple):
    """What was found in one part of a store."""

    part: str
    ok: bool
    found: str


def check_store(directory: Directory) -> Iterator[Finding]:
    """Check a store part by part. A part that cannot be checked because of another one's damage is left out."""
    try:
        found = directory.format()
        if found is None:
            yield Finding("format", False, "there is no store, or one whose creation did not end")
            return
        formats.check(directory.path, found)
        yield Finding("format", True, f"{found}")
        inventory.check(directory)
    except StoreError as error:
        yield Finding("files", False, str(error.details.get("problem", error)))
        return
    yield Finding("files", True, "all there" if inventory.exists(directory) else "not closed in order: not compared")
    try:
        readable = readable_changes(directory.data)
    except Exception as error:  # noqa: BLE001 - the binding raises nothing more specific
        yield Finding("database", False, str(translate(error, directory.path, opening=True).details["problem"]))
        return
    yield _check_log(directory, readable)
    yield from _check_tables(directory.data)


def _check_log(directory: Directory, readable: int) -> Finding:
    logs, synced = rocks_log.logs_of(directory.data), rocks_log.read_mark(directory.synced)
    found = rocks_log.examine(logs, readable, synced)
    if found is None and synced is not None and readable < synced:
        return Finding("log", False, f"it ends with change {readable}, and was synced up to change {synced}")
    size_bytes = sum(path.stat().st_size for path in logs)
    if found is None:
        return Finding("log", True, f"{size_bytes} bytes, whole")
    where = f"{found.log.name} at byte {found.offset} of {found.log.stat().st_size}"
    if found.damage is None:
        return Finding("log", True, f"torn by a crash in {where}, behind what was synced")
    return Finding("log", False, f"{where}: {found.damage}")


def _check_tables(data: Path) -> Iterator[Finding]:
    """Every record of every family, with its checksum; large values, which are in files of their own, too."""
    with read_only(data) as (_, families):
        for name, family in families.items():
            yield _check_family(name, family)


def _check_family(name: str, family: Rdict) -> Finding:
    records = 0
    try:
        iterator = family.iter()
        iterator.seek_to_first()
        while iterator.key() is not None:
            iterator.value()
            records += 1
            iterator.next()
        iterator.status()
    except Exception as error:  # noqa: BLE001 - the binding raises nothing more specific
        return Finding(name, False, f"after {records} records: {error}")
    return Finding(name, True, f"{records} records")
