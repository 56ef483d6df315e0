"""Makes a backup of a store that works, as a stream (frames.py).

A store that has files is copied at one moment by hard links; of another, a view of one moment is read. The copy says
how far it is in the journal: the lake's manifest is cut there, so that the copy and the segments together have every
row once. Nothing waits for a backup, and the copy is removed when its stream is closed.

Everything here is synchronous, for one thread of its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast import __version__, wire
from holdfast.backup.frames import Frame, line
from holdfast.backup.manifest import LAKE, RECORDS, STORE, Description, JournalPosition
from holdfast.core.records import Table
from holdfast.engine.cell_record import CELL_KEY, CellRecord, read_cell_record
from holdfast.errors import BackupFailed, CopyUnsupported
from holdfast.journal.manifest import SegmentEntry, SegmentFile, manifest_path, parse, seal
from holdfast.store.contract import Reader, Store
from holdfast.store.formats import FORMAT
from holdfast.store.pages import pages_of, write_page
from holdfast.units import format_instant

CHUNK_BYTES = 1 << 20
TAIL_BYTES = 1 << 16
"""Of a table of RocksDB: its end says which database made it, in which opening, and as which file."""

_NEVER_CHANGED = (".sst", ".blob")  # RocksDB writes such a file once
_RECORDS_BYTES = 32 << 20  # of a file of records


class Lake(NamedTuple):
    """The journal's directory, and whose part of it."""

    journal: Path
    node: int


class _Segments(NamedTuple):
    """The lake's manifest up to the position, and the segments to send."""

    manifest: bytes
    files: list[SegmentFile]


def stream(
    store: Store, lake: Lake, scratch: Path, request: wire.BackupRequest, clock: Callable[[], int]
) -> Iterator[bytes]:
    """The stream of a backup. `scratch` is a new directory on the store's file system, or is not used."""
    try:
        store.copy_to(scratch)
    except CopyUnsupported:
        shutil.rmtree(scratch, ignore_errors=True)
        yield from _of_view(store, lake, request, clock)
        return
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    try:
        yield from _of_copy(store, lake, scratch, request, clock)
    except OSError as error:
        raise BackupFailed(problem=f"{error.filename or scratch}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


# --- a store that has files -----------------------------------------------------------------------------------------


def _of_copy(
    store: Store, lake: Lake, copy: Path, request: wire.BackupRequest, clock: Callable[[], int]
) -> Iterator[bytes]:
    from holdfast.store.rocks_handles import read_copied  # noqa: PLC0415 - RocksDB, for stores that are it

    record = _record(read_copied(copy, Table.META, CELL_KEY), lake.node)
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    known: list[Path] = []
    fresh: list[tuple[Path, str]] = []
    fingerprints: dict[Path, str] = {}
    for path in files:
        mark = fingerprint(path) if path.suffix in _NEVER_CHANGED else ""
        fingerprints[path] = mark
        if mark and request.have.get(_name(copy, path)) == mark:
            known.append(path)
        else:
            fresh.append((path, mark))
    segments = _segments(lake, record, request)
    size_bytes = sum(path.stat().st_size for path, _ in fresh)
    yield _begin(store, record, lake, size_bytes + _size_bytes(segments), clock)
    for path in known:
        yield line(Frame(same=_name(copy, path), size_bytes=path.stat().st_size, fingerprint=fingerprints[path]))
    for path, mark in fresh:
        yield from _file(_name(copy, path), path, mark)
    yield from _lake_files(lake, segments)
    yield line(Frame(end=len(files)))


def _name(copy: Path, path: Path) -> str:
    return f"{STORE}/{path.relative_to(copy).as_posix()}"


def fingerprint(path: Path) -> str:
    """What tells a table of RocksDB from all others, without reading it whole."""
    with path.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(size_bytes - TAIL_BYTES, 0))
        return hashlib.sha256(b"%d " % size_bytes + file.read()).hexdigest()


# --- a store that has none ------------------------------------------------------------------------------------------


def _of_view(store: Store, lake: Lake, request: wire.BackupRequest, clock: Callable[[], int]) -> Iterator[bytes]:
    with store.view() as view:
        record = _record(view.get(Table.META, CELL_KEY), lake.node)
        segments = _segments(lake, record, request)
        yield _begin(store, record, lake, _size_bytes(segments), clock)
        number = 0
        for number, data in enumerate(_record_files(view), 1):
            name = f"{RECORDS}/{number:06d}"
            yield line(Frame(file=name, size_bytes=len(data)))
            yield data
        yield from _lake_files(lake, segments)
        yield line(Frame(end=number))


def _record_files(view: Reader) -> Iterator[bytes]:
    """Pages, many in a file: each after its length, in eight bytes."""
    parts: list[bytes] = []
    size_bytes = 0
    for page in pages_of(view):
        data = write_page(page)
        parts += [len(data).to_bytes(8, "big"), data]
        size_bytes += 8 + len(data)
        if size_bytes >= _RECORDS_BYTES:
            yield b"".join(parts)
            parts, size_bytes = [], 0
    if parts:
        yield b"".join(parts)


def pages_in(data: bytes) -> Iterator[bytes]:
    """The pages of a file of records. ValueError: it is none."""
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "big")
        page = data[at + 8 : at + 8 + length]
        if len(page) != length:
            raise ValueError("it is cut short")
        yield page
        at += 8 + length


# --- both -----------------------------------------------------------------------------------------------------------


def _record(value: bytes | None, node: int) -> CellRecord:
    return read_cell_record(value) if value is not None else CellRecord(node)


def _begin(store: Store, record: CellRecord, lake: Lake, size_bytes: int, clock: Callable[[], int]) -> bytes:
    position = JournalPosition(
        last_lsn=record.next_lsn - 1,
        exported_lsn=record.exported_lsn,
        chain_hash=record.chain_hash,
        chain_length=record.chain_length,
    )
    description = Description(
        taken_at=format_instant(clock()),
        node=lake.node,
        version=__version__,
        store=store.name,
        store_format=FORMAT,
        position=position,
        size_bytes=size_bytes,
    )
    return line(Frame(begin=description))


def _file(name: str, path: Path, mark: str = "") -> Iterator[bytes]:
    size_bytes = path.stat().st_size
    yield line(Frame(file=name, size_bytes=size_bytes, fingerprint=mark))
    left = size_bytes
    with path.open("rb") as file:
        while left and (part := file.read(min(left, CHUNK_BYTES))):
            left -= len(part)
            yield part
    if left:
        raise BackupFailed(problem=f"{path} has become shorter meanwhile")


def _segments(lake: Lake, record: CellRecord, request: wire.BackupRequest) -> _Segments | None:
    """The manifest up to the record's position. Segments that are not there any more are left out: the client sees
    that from the manifest."""
    path = manifest_path(lake.journal, lake.node)
    if not request.lake or not path.exists():
        return None
    lines: list[bytes] = []
    entries: list[SegmentEntry] = []
    for text in path.read_bytes().split(b"\n")[:-1]:
        try:
            entry = parse(text)
        except ValueError as error:
            raise BackupFailed(problem=f"{path} has a line that is no entry: {error}") from error
        if entry.last_lsn > record.exported_lsn:
            break  # written after the copy, which has these rows itself
        lines.append(text)
        entries.append(entry)
    known = request.segments
    if not 0 < known <= len(lines) or seal(lines[known - 1]) != request.segments_hash:
        known = 0
    there = [entry.file for entry in entries[known:] if (lake.journal / entry.file.segment).is_file()]
    return _Segments(b"".join(text + b"\n" for text in lines), there)


def _size_bytes(segments: _Segments | None) -> int:
    return len(segments.manifest) + sum(file.size_bytes for file in segments.files) if segments is not None else 0


def _lake_files(lake: Lake, segments: _Segments | None) -> Iterator[bytes]:
    """The segments, then their manifest: a client that has it has them."""
    if segments is None:
        return
    for file in segments.files:
        try:
            yield from _file(f"{LAKE}/journal/{file.segment}", lake.journal / file.segment, file.sha256)
        except FileNotFoundError:
            continue  # moved away meanwhile
    name = f"{LAKE}/journal/{manifest_path(lake.journal, lake.node).name}"
    yield line(Frame(file=name, size_bytes=len(segments.manifest)))
    yield segments.manifest
