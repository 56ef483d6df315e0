"""The exporter: moves journal blocks from the store to Parquet segments, exactly once, whenever it crashes.

    store      sync, so that the lake never has rows that a power cut could still take out of the store
    segment    written to a temporary file and synced (worker.py), renamed into its directory, the directory synced
    manifest   an entry appended and synced: from here on the rows are in the lake
    store      the caller deletes the blocks, and the messages that only they still needed (`Exported.removal`)

A crash before the manifest's entry leaves a file that no entry names: `recover` removes it and the blocks, which are
still in the store, are exported again. A crash after it leaves blocks in the store that are in the lake already:
`export` and `removal_between` return what to delete for them, and write nothing.

Everything here is synchronous, for one worker thread, which only reads the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import structlog

from holdfast.broker.export.conversion import Converted, Converter, consecutive_ranges
from holdfast.broker.export.lake_room import LakeRoom
from holdfast.broker.export.retention import KEEP_ALL, LakeRetention, Removed, RetentionPolicy, oldest_live
from holdfast.core.effects import DeleteRun, DeleteUntil, Op
from holdfast.core.journal import Block
from holdfast.core.records import Table, journal_key, message_key
from holdfast.errors import LakeDamaged, LakeUnavailable, StoreCorrupt
from holdfast.files import make_directory, sync_path
from holdfast.journal.generations import ends_generation
from holdfast.journal.manifest import SCHEMA, Change, Manifest, SegmentEntry, manifest_path, segment_files, segment_name
from holdfast.journal.reader import BlockReader, RawBlockRange
from holdfast.store.contract import Store
from holdfast.units import DAY, format_instant

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

STEPS = (
    "planned",
    "store synced",
    "segment written",
    "segment placed",
    "place synced",
    "entry written",
    "entry synced",
)
"""The steps of an export, in order; a test crashes after each."""

Removable = dict[int, list[int]]
"""Message records that only these blocks still need: by shard, sequences."""


class LakePosition(msgspec.Struct, frozen=True):
    """Where the lake ends: with the hash that the next manifest entry will carry, and the number of entries."""

    last_block: int
    last_lsn: int
    head: str
    length: int

    @property
    def chain(self) -> tuple[str, int]:
        """What the store keeps of the manifest, to find out a lake that was changed."""
        return self.head, self.length


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks that are in the lake (or need not be: they have no rows), and what may now be deleted from the store."""

    first_block: int
    last_block: int
    last_lsn: int
    rows: int
    size_bytes: int
    removal: list[Op]
    """Deletes the blocks from the store, and the messages that only they needed. The blocks come last, so that this may
    be written in several batches, in this order."""
    segment: str | None = None
    chain: tuple[str, int] | None = None
    """The hash and the number of the manifest's last line; None: the node keeps no journal."""


class _Plan(msgspec.Struct):
    """Which blocks the next segment takes, as far as they have been read."""

    after_block: int
    last_block: int
    rows: int = 0
    size_bytes: int = 0
    day: int = 0
    full: bool = False
    value: bytes = b""  # the record of the last block

    def add(self, number: int, block: Block, value: bytes) -> None:
        """Take the next block too."""
        if block.rows:
            self.day = block.at // DAY
        self.last_block, self.value = number, value
        self.rows += block.rows
        self.size_bytes += len(value) + block.size_bytes


def removal_of(first_block: int, last_block: int, removable: Removable) -> list[Op]:
    """Deletes blocks, and before them the messages that only they needed, consecutive ones as one range."""
    record_ranges = [
        (shard, *one) for shard, found in sorted(removable.items()) for one in consecutive_ranges(sorted(found))
    ]
    return _removal(first_block, last_block, record_ranges)


def _removal(first_block: int, last_block: int, removable: list[tuple[int, int, int]]) -> list[Op]:
    ops: list[Op] = [
        (Table.MESSAGES, message_key(shard, first), DeleteRun(range(first, last + 1)))
        for shard, first, last in removable
    ]
    ops.append((Table.JOURNAL, journal_key(first_block), DeleteUntil(journal_key(last_block + 1))))
    return ops


def _wall_clock() -> int:
    return time.time_ns() // 1000


def _ignore_step(_step: str) -> None:
    """For a test that crashes after a step."""


def _no_throttle(_seconds: float) -> None:
    """For an exporter that has the machine to itself."""


class _StoredRanges:
    """Ranges of blocks, read again by each iteration. Between two of them `throttle` is called with the
    seconds that the last one took, and `check_going_on`, which raises if the export was abandoned, or has no room."""

    def __init__(
        self,
        reader: BlockReader,
        first_block: int,
        last_block: int,
        check_going_on: Callable[[], None],
        throttle: Callable[[float], None],
    ) -> None:
        self._reader, self._first_block, self._last_block = reader, first_block, last_block
        self._check_going_on = check_going_on
        self._throttle = throttle

    def __iter__(self) -> Iterator[RawBlockRange]:
        self._check_going_on()  # before each read: the store may have been closed while a disk was hanging
        started = 0.0
        for block_range in self._reader.block_ranges(self._first_block, self._last_block):
            if started:
                self._throttle(time.monotonic() - started)
            self._check_going_on()
            started = time.monotonic()
            yield self._reader.raw(block_range)
            self._check_going_on()


class Exporter:
    """See the module. Call `recover` first. A segment is closed at `segment_rows`, at `segment_bytes` before
    compression, or at the end of a UTC day, always between two blocks."""

    def __init__(
        self,
        store: Store,
        directory: Path,
        node: int,
        segment_rows: int,
        segment_bytes: int,
        *,
        converter: Converter,
        room: LakeRoom | None = None,
        retention: RetentionPolicy = KEEP_ALL,
        throttle: Callable[[float], None] = _no_throttle,
        clock: Callable[[], int] = _wall_clock,
        reached: Callable[[str], None] = _ignore_step,
    ) -> None:
        """`room`: None where nothing is settled meanwhile."""
        self.journal = directory / "journal"
        self._store = store
        self._open = ExitStack()  # the reader of the store
        self._block_reader: BlockReader | None = None
        self._converter = converter
        self._node = node
        self._segment_rows = segment_rows
        self._segment_bytes = segment_bytes
        self._room = room
        self._throttle = throttle
        self._clock = clock
        self._step_reached = reached
        self._abandoned = False
        self._manifest = Manifest(manifest_path(self.journal, node))
        self._exported_lsn = 0  # rows up to this one were deleted from the store
        self._needs_recovery = True  # the lake must be read before it is written
        self._plan = _Plan(0, 0)
        self._retention = LakeRetention(directory, node, retention, converter, self._append_change, self._reached)

    @property
    def _reader(self) -> BlockReader:
        """Reads of this thread's own."""
        if self._block_reader is None:
            self._block_reader = BlockReader(self._open.enter_context(self._store.reader()))
        return self._block_reader

    # --- where the lake ends ----------------------------------------------------------------------------------------

    @property
    def position(self) -> LakePosition:
        last = self._manifest.last
        manifest = self._manifest
        return LakePosition(
            last.last_block if last else 0, last.last_lsn if last else 0, manifest.head, manifest.length
        )

    @property
    def _last_lsn(self) -> int:
        """No row up to this one may be exported any more."""
        return max(self.position.last_lsn, self._exported_lsn)

    def recover(self, exported_lsn: int = 0) -> LakePosition:
        """Find where the lake ends and remove what a crash left. Rows up to `exported_lsn` are deleted from the store.

        A lake that ends before that is continued, and the next entry names what is missing. Not so when its last entry
        is torn: then it is damaged, since a crash can't have torn an entry that the store knew of.
        """
        self._exported_lsn = exported_lsn
        self._needs_recovery = True
        with self._lake_errors():
            self._prepare()
            self._manifest.read()
            behind = self.position.last_lsn < exported_lsn and not ends_generation(exported_lsn)
            if behind and self._manifest.torn:
                raise LakeDamaged(path=self._manifest.path, problem="its last entry is torn")
            if behind and self._manifest.last is not None:
                log.warning(
                    "rows deleted from the store are missing in the lake",
                    after_lsn=self.position.last_lsn,
                    to_lsn=exported_lsn,
                )
            self._manifest.settle()
            self._remove_leftovers()
            self._check_last()
            sync_path(self.journal)
        self._needs_recovery = False
        self._plan = _Plan(0, 0)
        return self.position

    def _prepare(self) -> None:
        # Only the server's user may read it, unless the directory exists already, with other permissions.
        make_directory(self.journal.parent, mode=0o700)
        make_directory(self._tmp_dir)

    @property
    def _tmp_dir(self) -> Path:
        return self.journal / "_tmp"

    def _remove_leftovers(self) -> None:
        """Only files whose rows are still in the store: other files that no entry names are reported by `verify`."""
        for path in self._tmp_dir.glob(f"{self._node:04d}-*"):
            path.unlink()
        for first_lsn, path in segment_files(self.journal, self._node):
            if first_lsn > self._last_lsn:
                log.info("removing a segment that was not finished", segment=path.name)
                path.unlink()
                sync_path(path.parent)

    def _check_last(self) -> None:
        """A missing file does not stop the export, since old segments may have been moved away, but it is logged."""
        last = self._manifest.last
        if last is None:
            return
        path = self.journal / last.file.segment
        size_bytes = path.stat().st_size if path.exists() else None
        if size_bytes != last.file.size_bytes:
            log.warning("the lake's last segment is not as it was written", segment=last.segment, size_bytes=size_bytes)

    def abandon(self) -> None:
        """From another thread: write no more of the segment under way. A call that hangs in the system is not ended by
        this, but nothing follows it: another process may own the lake by then."""
        self._abandoned = True
        self._converter.abandon()

    def _check_abandoned(self) -> None:
        if self._abandoned:
            raise LakeUnavailable(path=self.journal, problem="the node stops before the segment is written")

    def _check_going_on(self) -> None:
        self._check_abandoned()
        if self._room is not None:
            self._room.check()

    @contextmanager
    def _removed_unless_made(self, path: Path) -> Iterator[None]:
        """What is left of a segment that could not be written occupies room that others need. Once the export was
        abandoned another process may own the lake: `recover` removes it there."""
        try:
            yield
        except BaseException:
            if not self._abandoned:
                path.unlink(missing_ok=True)
            raise

    def _reached(self, step: str) -> None:
        self._step_reached(step)
        self._check_abandoned()

    def close(self) -> None:
        """End the process that converts, if there is one, and release the store. The next export starts another."""
        self._converter.close()
        self._block_reader = None
        self._open.close()

    # --- exporting --------------------------------------------------------------------------------------------------

    def export(self, after_block: int, force: bool) -> Exported | None:
        """Export the blocks after `after_block`, as one segment. None: there are too few, or with `force` none at all.

        One call makes at most one segment; call again until it returns None. When it fails nothing is lost: call again.
        """
        if self._needs_recovery:
            self.recover(self._exported_lsn)
        if after_block < self.position.last_block:
            in_lake = self._in_lake(after_block)
            if in_lake is not None:
                return in_lake
            after_block = self.position.last_block
        if not force and not self._extend_plan(after_block).full:
            return None
        plan = self._fitting(self._replan(after_block))
        if plan.last_block == after_block:
            return None
        self._reached("planned")
        self._store.sync()
        if not self._reader.has(plan.last_block, plan.value):
            return None  # the store failed meanwhile and was opened again without it
        self._reached("store synced")
        return self._export(after_block, plan)

    def drop(self, after_block: int) -> Exported | None:
        """The blocks after `after_block`, up to a segment's worth, as if exported: for a node that keeps no journal."""
        plan = self._replan(after_block)
        if plan.last_block == after_block:
            return None
        last_lsn, removable = self._read_removable(after_block + 1, plan.last_block)
        assert last_lsn is not None
        return Exported(
            first_block=after_block + 1,
            last_block=plan.last_block,
            last_lsn=last_lsn,
            rows=0,
            size_bytes=0,
            removal=removal_of(after_block + 1, plan.last_block, removable),
        )

    def removal_between(self, first_block: int, last_block: int) -> list[Op]:
        """What to delete for blocks that are in the lake already: the blocks, and messages that only they needed."""
        _, removable = self._read_removable(first_block, last_block)
        return removal_of(first_block, last_block, removable)

    def _read_removable(self, first_block: int, last_block: int) -> tuple[int | None, Removable]:
        """The last lsn of blocks that are in the store (None: there is no such block), and what only they needed."""
        removable: Removable = {}
        last_lsn: int | None = None
        for block_range in self._reader.block_ranges(first_block, last_block):
            block_range.removable(removable)
            last_lsn = block_range.last_lsn
        return last_lsn, removable

    def _in_lake(self, after_block: int) -> Exported | None:
        """Blocks that the lake has and the store still holds; None if the store holds none of them."""
        position = self.position
        last_lsn, removable = self._read_removable(after_block + 1, position.last_block)
        if last_lsn is None:
            return None
        if last_lsn != position.last_lsn:
            raise LakeDamaged(
                path=self._manifest.path,
                problem=f"it has lsn {position.last_lsn} in block {position.last_block}, the store has {last_lsn}",
            )
        return Exported(
            first_block=after_block + 1,
            last_block=position.last_block,
            last_lsn=position.last_lsn,
            rows=0,
            size_bytes=0,
            removal=removal_of(after_block + 1, position.last_block, removable),
            chain=position.chain,
        )

    def fills_segment(self, rows: int, size_bytes: int) -> bool:
        """Whether so many rows, or so many bytes of them, are a full segment."""
        return rows >= self._segment_rows or size_bytes >= self._segment_bytes

    def _replan(self, after_block: int) -> _Plan:
        """The plan of the next segment, from the store as it is now."""
        self._plan = _Plan(0, 0)
        plan, self._plan = self._extend_plan(after_block), _Plan(0, 0)
        return plan

    def _fitting(self, plan: _Plan) -> _Plan:
        """A plan, or as much of it as the disk has room for. Raises LakeFull if that is not one block. Records are
        smaller in a segment than in the store, unless their payloads cannot be compressed."""
        if self._room is None or plan.last_block == plan.after_block:
            return plan
        with self._lake_errors():
            left = self._room.bytes_left()
        if left is None or plan.size_bytes <= left:
            return plan
        fitting = _Plan(plan.after_block, plan.after_block)
        for number, block, value in self._reader.blocks(plan.after_block + 1, plan.last_block):
            size_bytes = len(value) + block.size_bytes
            if fitting.size_bytes + size_bytes > left:
                break
            fitting.add(number, block, value)
        if fitting.last_block == fitting.after_block:
            raise self._room.full()
        return fitting

    def _extend_plan(self, after_block: int) -> _Plan:
        """How much there is to export. Blocks that the last call read are not read again: a cheap estimate."""
        if self._plan.after_block != after_block:
            self._plan = _Plan(after_block, after_block)
        plan = self._plan
        for number, block, value in self._reader.blocks(plan.last_block + 1):
            day = block.at // DAY
            if plan.rows and block.rows and day != plan.day:
                plan.full = True
                return plan
            plan.add(number, block, value)
            if self.fills_segment(plan.rows, plan.size_bytes):
                plan.full = True
                return plan
        return plan

    def _export(self, after_block: int, plan: _Plan) -> Exported:
        first_block, last_block = after_block + 1, plan.last_block
        tmp_path = self._tmp_dir / f"{self._node:04d}-{first_block:019d}-{last_block:019d}.parquet"
        block_ranges = _StoredRanges(self._reader, first_block, last_block, self._check_going_on, self._throttle)
        with self._lake_errors(), self._removed_unless_made(tmp_path):
            self._tmp_dir.mkdir(exist_ok=True)
            try:
                made = self._converter.convert(tmp_path, self._node, block_ranges)
                self._check_going_on()
            except (ValueError, OverflowError) as error:
                raise StoreCorrupt(path=f"the journal in the {self._store.name} store", problem=str(error)) from error
        for wanted, found in made.holes:
            self._check_lsn(found, wanted)
        segment, size_bytes = None, 0
        last_lsn = self._last_lsn
        if made.rows:
            self._check_lsn(made.first_lsn, None)
            last_lsn = made.last_lsn
            entry = self._place(tmp_path, made, (first_block, last_block))
            segment, size_bytes = entry.segment, entry.size_bytes
        return Exported(
            first_block=first_block,
            last_block=last_block,
            last_lsn=last_lsn,
            rows=made.rows,
            size_bytes=size_bytes,
            removal=_removal(first_block, last_block, made.removable),
            segment=segment,
            chain=self.position.chain,
        )

    def _check_lsn(self, found: int, wanted: int | None) -> None:
        """A missing or repeated row would stay in the lake for ever: raise instead."""
        wanted = wanted or self._last_lsn + 1
        if found != wanted:
            raise StoreCorrupt(
                path=f"the journal in the {self._store.name} store", problem=f"lsn {wanted} was expected, {found} found"
            )

    # --- writing the lake -------------------------------------------------------------------------------------------

    def _place(self, tmp_path: Path, made: Converted, blocks: tuple[int, int]) -> SegmentEntry:
        """Rename the segment into its directory and write its entry. If that fails half-way, the next export recovers
        the lake first."""
        place = (
            self.journal
            / f"date={format_instant(made.first_at)[:10]}"
            / segment_name(self._node, made.first_lsn, made.last_lsn)
        )
        position = self.position
        self._needs_recovery = True
        with self._lake_errors():
            self._reached("segment written")
            make_directory(place.parent)
            tmp_path.replace(place)
            self._reached("segment placed")
            sync_path(place.parent)
            self._reached("place synced")
            entry = SegmentEntry(
                segment=str(place.relative_to(self.journal)),
                rows=made.rows,
                size_bytes=place.stat().st_size,
                first_lsn=made.first_lsn,
                last_lsn=made.last_lsn,
                first_block=blocks[0],
                last_block=blocks[1],
                sha256=made.sha256,
                previous=position.head,
                schema=SCHEMA,
                written_at=format_instant(self._clock()),
                missing_from=position.last_lsn + 1 if position.last_lsn < made.first_lsn - 1 else None,
                number=position.length + 1,
            )
            self._manifest.append(entry)
            self._reached("entry written")
            self._manifest.sync()
            if not position.last_lsn:
                sync_path(self.journal)  # the manifest itself is new
            self._reached("entry synced")
        self._needs_recovery = False
        return entry

    def remove_old(self, shards: list[int]) -> Removed:
        """Remove what `journal.retention` leaves no place for. `shards`: the partitions whose queues keep a journal."""
        if self._needs_recovery:
            self.recover(self._exported_lsn)
        if self._manifest.last is None:
            return Removed()

        def oldest() -> int | None:
            with self._store.reader() as reader:
                return oldest_live(reader, shards)

        with self._lake_errors():
            try:
                self._retention.follow()
                return self._retention.remove(self._clock(), oldest)
            except ValueError as error:
                raise LakeDamaged(path=self._manifest.path, problem=str(error)) from error

    @property
    def journal_bytes(self) -> int:
        """Of the segments that are in the lake, when `remove_old` last looked."""
        return self._retention.size_bytes

    def _append_change(self, change: Change) -> SegmentEntry:
        """Write an entry that says what became of segments, durably. It stands where the next row would be."""
        position = self.position
        self._needs_recovery = True
        with self._lake_errors():
            entry = SegmentEntry(
                segment="",
                rows=0,
                size_bytes=0,
                first_lsn=position.last_lsn + 1,
                last_lsn=position.last_lsn,
                first_block=position.last_block + 1,
                last_block=position.last_block,
                sha256="",
                previous=position.head,
                schema=SCHEMA,
                written_at=format_instant(self._clock()),
                number=position.length + 1,
                change=change,
            )
            self._manifest.append(entry)
            self._manifest.sync()
        self._needs_recovery = False
        return entry

    @contextmanager
    def _lake_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            path = error.filename or self.journal
            raise LakeUnavailable(path=path, problem=error.strerror or str(error)) from error
