"""Restores a backup: the store, the lake, and a position in the journal from which nothing is numbered twice.

lake     segments and manifest are put where they are missing. A lake that is there already must have the same
         history: it may end before the backup's, or go on after it, and then it stays as it is
store    its files are put beside the target and put in its place at the end; a remote store is marked as
         unfinished meanwhile
numbers  what the backup's journal holds is exported, so that the lake has everything up to the backup; then the
         next row begins a new generation of lsns (journal/generations.py), and ids go on from now: what the node
         wrote after the backup had others
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pyarrow.parquet as pq

from holdfast.backup.manifest import LAKE, RECORDS, STORE, BackupManifest
from holdfast.backup.repository import Flawed, Repository
from holdfast.backup.source import pages_in
from holdfast.broker.export.exporter import Exporter
from holdfast.broker.export.worker import InThread
from holdfast.broker.filling import fill
from holdfast.config import Config
from holdfast.core.ids import EPOCH_MS, LOW_MASK, TIME_SHIFT
from holdfast.core.records import Table
from holdfast.engine.cell_record import UNFINISHED_KEY, put_cell_record
from holdfast.engine.engine import Engine
from holdfast.errors import BackupDamaged, RestoreRefused
from holdfast.files import make_directory, sync_path
from holdfast.journal.generations import next_generation
from holdfast.journal.manifest import manifest_path, manifests, parse, seal
from holdfast.journal.present import present
from holdfast.journal.reader import BlockReader
from holdfast.store.contract import Store
from holdfast.store.directory import Directory
from holdfast.store.pages import RecordPage, read_page

OpenStore = Callable[[Path], Store]
"""Opens the store of the configuration, an embedded one in this directory. StoreInUse: a server works with it."""

IDS_AHEAD_MS = 2_000
"""Ids that the node gave after the backup may have been ahead of its clock, by what it reserves (engine/batch.py)."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What was done."""

    backup: str
    last_lsn: int
    """Of the backup."""
    lake_lsn: int
    """The last one in the lake: rows after the backup, if it is greater, which the restored store lacks."""
    next_lsn: int
    replaced: list[str]
    """What was there before, moved aside."""


class Restoring:
    """One restore. `advance` is called with bytes as they are written."""

    def __init__(
        self,
        repository: Repository,
        manifest: BackupManifest,
        config: Config,
        open_store: OpenStore,
        *,
        replace: bool,
        lake: bool,
        now: int,
        advance: Callable[[int], None] = lambda _size_bytes: None,
    ) -> None:
        self._repository = repository
        self._manifest = manifest
        self._config = config
        self._open_store = open_store
        self._replace = replace
        self._lake = lake
        self._now = now
        self._advance = advance
        self._target = config.node.data_dir / "store"
        self._journal = config.lake_dir / "journal"
        self._aside: list[str] = []
        self._written = 0

    def run(self) -> Restored:
        """Check everything, then restore."""
        self._check()
        replaced_lake = self._lake_to_replace()
        if self._replace:
            self._verify()
        try:
            make_directory(self._config.node.data_dir, mode=0o700)
            if self._config.store.kind == "rocks":
                self._move_aside(self._target)
            if replaced_lake:
                self._move_aside(self._config.lake_dir)
            if self._lake:
                self._restore_lake()
            return self._restore_store()
        except OSError as error:
            raise RestoreRefused(
                problem=f"{error.filename or self._config.node.data_dir}: {error.strerror or error}",
                advice="What was written is no store yet; run it again.",
            ) from error

    # --- before anything is written ---------------------------------------------------------------------------------

    def _check(self) -> None:
        manifest, config = self._manifest, self._config
        kind = config.store.kind
        if kind == "memory":
            raise RestoreRefused(problem="a store in memory keeps nothing", advice="Choose another store.kind.")
        if manifest.description.store == "rocks" and kind != "rocks":
            raise RestoreRefused(
                problem=f"the backup has the files of a rocks store, and store.kind is {kind}",
                advice="Restore it with --store rocks into a directory, then use holdfast store copy.",
            )
        if manifest.description.node != config.node.node_id:
            raise RestoreRefused(
                problem=f"the backup is of node {manifest.description.node}, and node.node_id is {config.node.node_id}",
                advice="Set node.node_id to the backup's: message ids and the journal belong to it.",
            )
        if kind == "rocks" and self._target.exists() and any(self._target.iterdir()):
            Directory(self._target).release()  # StoreLocked: a server works with it
            if not self._replace:
                raise RestoreRefused(
                    problem=f"{self._target} exists already",
                    advice="Choose another --data-dir, or say --replace: what is there is moved aside.",
                )
        if kind != "rocks":
            self._open_store(self._target).close()  # StoreInUse: a server works with it

    def _verify(self) -> None:
        """Read all of the backup, before anything gives way to it. BackupDamaged: it is not whole."""
        files = [file for file in self._manifest.files if self._lake or not file.path.startswith(f"{LAKE}/")]
        for found in self._repository.verify(msgspec.structs.replace(self._manifest, files=files), {}):
            if isinstance(found, Flawed):
                raise BackupDamaged(path=found.path, problem=found.problem)

    def _lake_to_replace(self) -> bool:
        """Whether the lake that is there has to go. RestoreRefused: it has, and that was not said."""
        path = manifest_path(self._journal, self._manifest.description.node)
        if not path.exists() or self._same_history(path.read_bytes().split(b"\n")[:-1]):
            return False
        problem = f"the lake in {self._journal} has another history than the backup"
        if len(manifests(self._journal)) > 1:
            raise RestoreRefused(problem=problem, advice="Other nodes use it too: choose another journal.directory.")
        if not self._replace:
            raise RestoreRefused(
                problem=problem,
                advice="Choose another journal.directory, or say --replace: the lake that is there is moved aside.",
            )
        return True

    def _same_history(self, own: list[bytes]) -> bool:
        """Whether the lines of a lake's manifest are those of the backup's, and perhaps more."""
        ours = [line for line, _ in self._repository.segments(self._manifest)]
        if ours:
            common = min(len(own), len(ours))
            return own[:common] == ours[:common]
        position = self._manifest.description.position
        length = position.chain_length
        return not length or (len(own) >= length and seal(own[length - 1]) == position.chain_hash)

    def _move_aside(self, path: Path) -> None:
        if path.exists() and any(path.iterdir()):
            number = 1
            while (aside := path.with_name(f"{path.name}.replaced-{number}")).exists():
                number += 1
            path.rename(aside)
            sync_path(path.parent)
            self._aside.append(str(aside))
        elif path.exists():
            path.rmdir()

    # --- the lake ---------------------------------------------------------------------------------------------------

    def _restore_lake(self) -> None:
        """Put segments where they are missing or cut short, and then the manifest, if there is none that goes
        further."""
        file = self._manifest.lake_manifest
        if file is None:
            return
        make_directory(self._journal.parent, mode=0o700)
        make_directory(self._journal)
        lines = self._repository.segments(self._manifest)
        path = manifest_path(self._journal, self._manifest.description.node)
        own = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        longer = len(own) > len(lines)
        removed_to = present(map(parse, own) if longer else (entry for _, entry in lines)).removed_to
        for number, (_, entry) in enumerate(lines, 1):
            name, size_bytes, sha256 = entry.file
            gone = entry.last_lsn <= removed_to if entry.change is None else entry.change.removed_to < removed_to
            place = self._journal / name
            if gone or (place.exists() and place.stat().st_size == size_bytes):
                continue
            if self._repository.has(sha256, size_bytes):
                self._put(sha256, place)
            elif not self._manifest.lacks(number):
                lacking = self._repository.object(sha256)
                raise BackupDamaged(path=lacking, problem=f"it is not there whole: the segment {name}")
        if len(own) < len(lines):
            self._put(file.sha256, path)

    def _put(self, sha256: str, place: Path) -> None:
        """Write a file of the backup, durably: after a crash it is there whole, or not at all."""
        make_directory(place.parent)
        fresh = place.with_name(f"_{place.name}.restoring")
        with fresh.open("wb") as target:
            for part in self._repository.parts(sha256):
                target.write(part)
                self._advance_by(len(part))
            target.flush()
            os.fsync(target.fileno())
        fresh.replace(place)
        sync_path(place.parent)

    def _advance_by(self, size_bytes: int) -> None:
        self._written += size_bytes
        self._advance(self._written)

    # --- the store --------------------------------------------------------------------------------------------------

    def _restore_store(self) -> Restored:
        if self._config.store.kind != "rocks":
            with closing(self._open_store(self._target)) as store:
                return self._fill(store)
        beside = self._target.with_name("store.restoring")
        shutil.rmtree(beside, ignore_errors=True)
        if self._manifest.description.store == "rocks":
            for file in self._manifest.files:
                if file.path.startswith(f"{STORE}/"):
                    self._put(file.sha256, beside / file.path.removeprefix(f"{STORE}/"))
            with closing(self._open_store(beside)) as store:
                restored = self._renumber(store, filling=False)
        else:
            with closing(self._open_store(beside)) as store:
                restored = self._fill(store)
        beside.rename(self._target)
        sync_path(self._target.parent)
        return restored

    def _fill(self, store: Store) -> Restored:
        """The store stays unfinished until its numbers are new."""
        for _ in fill(store, self._pages(), replace=self._replace, finish=False):
            pass
        return self._renumber(store, filling=True)

    def _pages(self) -> Iterator[RecordPage]:
        for file in self._manifest.files:
            if file.path.startswith(f"{RECORDS}/"):
                data = b"".join(self._repository.parts(file.sha256))
                try:
                    for page in pages_in(data):
                        yield read_page(page)
                except ValueError as error:
                    raise BackupDamaged(path=file.path, problem=str(error)) from error
                self._advance_by(len(data))

    def _renumber(self, store: Store, *, filling: bool) -> Restored:
        """Export what the backup's journal holds, and go on with numbers that nobody has."""
        engine = Engine(store, self._manifest.description.node)
        engine.open(self._now, filling=filling)
        record = engine.record
        last_lsn = record.next_lsn - 1
        lake_lsn = self._export(engine)
        before = next_generation(max(record.next_lsn - 1, lake_lsn))
        record.next_lsn = before + 1
        record.exported_lsn = before
        ids = ((self._now // 1_000 - EPOCH_MS + IDS_AHEAD_MS) << TIME_SHIFT) | LOW_MASK
        record.ids_reserved = max(record.ids_reserved, ids)
        engine.add([put_cell_record(record), (Table.META, UNFINISHED_KEY, None)])
        engine.write()
        store.sync()
        return Restored(
            backup=self._manifest.id,
            last_lsn=last_lsn,
            lake_lsn=lake_lsn,
            next_lsn=record.next_lsn,
            replaced=self._aside,
        )

    def _export(self, engine: Engine) -> int:
        """Everything in the journal, to the lake, if the node keeps one. Returns the lake's last lsn."""
        settings, record = self._config.journal, engine.record
        exporter = Exporter(
            engine.store,
            self._config.lake_dir,
            self._config.node.node_id,
            settings.segment_rows,
            settings.segment_bytes,
            converter=InThread(),
        )
        with closing(exporter):
            if settings.enabled:
                self._drop_exported(engine, exporter)
            while record.exported_block < record.next_block - 1:
                after = record.exported_block
                exported = exporter.export(after, True) if settings.enabled else exporter.drop(after)
                if exported is None:
                    break
                engine.exported(exported.last_block, exported.last_lsn, exported.removal, exported.chain)
                engine.write()
                engine.store.sync()
            if not settings.enabled:
                return 0
            return exporter.position.last_lsn

    def _drop_exported(self, engine: Engine, exporter: Exporter) -> None:
        """Blocks that a lake has which survived: they are not exported again, and their numbers are taken."""
        record = engine.record
        position = exporter.recover(record.exported_lsn)
        if position.last_block > record.exported_block:
            self._compare_rows(engine)
            last = min(position.last_block, record.next_block - 1)
            removal = exporter.removal_between(record.exported_block + 1, last)
            record.next_block = max(record.next_block, position.last_block + 1)
            record.next_lsn = max(record.next_lsn, position.last_lsn + 1)
            engine.exported(position.last_block, position.last_lsn, removal, position.chain)
            engine.add([put_cell_record(record)])
            engine.write()
            engine.store.sync()

    def _compare_rows(self, engine: Engine) -> None:
        """Whether the lake goes on as the backup's journal does: by the instant of the first row that both have."""
        for _, block, _ in BlockReader(engine.store).blocks(engine.record.exported_block + 1):
            if block.rows:
                at = self._at(block.first_lsn)
                if at is not None and at != block.at:
                    raise RestoreRefused(
                        problem=f"the lake in {self._journal} has another history than the backup",
                        advice="Choose another journal.directory, or move the lake that is there aside.",
                    )
                return

    def _at(self, lsn: int) -> int | None:
        """The instant of a row in the lake, None if it has no such row."""
        text = manifest_path(self._journal, self._manifest.description.node).read_bytes()
        for entry in map(parse, text.split(b"\n")[:-1]):
            path = self._journal / entry.segment
            if entry.first_lsn <= lsn <= entry.last_lsn and path.exists():
                rows = pq.read_table(path, columns=["at"], filters=[("lsn", "=", lsn)])
                return int(rows["at"][0].value) if len(rows) else None
        return None
