"""Conversion of journal blocks to a segment's file: the work itself, and the process that does it (conversion.py)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import msgspec
import pyarrow as pa

from holdfast.broker.export.conversion import (
    ConversionResult,
    Converted,
    GroupsLeft,
    OldSegments,
    consecutive_ranges,
    receive,
    send,
)
from holdfast.broker.export.groups_left import collect_groups
from holdfast.broker.export.pandas_free import block_pandas_import
from holdfast.core.journal import decoded, read_block
from holdfast.files import sync_path
from holdfast.journal.columns import Columns
from holdfast.journal.reader import RawBlockRange
from holdfast.journal.segment import digest, record_batch, write_segment


class InThread:
    """Converts in the calling thread."""

    def convert(self, path: Path, node: int, block_ranges: Iterable[RawBlockRange]) -> Converted:
        contents = _Contents(node, block_ranges)
        write_segment(path, contents.batches())
        sha256 = ""
        if contents.holes:
            path.unlink()
        elif contents.rows:
            sync_path(path)
            sha256 = digest(path)
        return Converted(
            first_lsn=contents.first_lsn,
            last_lsn=contents.first_lsn + contents.rows - 1,
            first_at=contents.first_at,
            rows=contents.rows,
            sha256=sha256,
            removable=[
                (shard, *record_range)
                for shard, sequences in sorted(contents.removable.items())
                for record_range in consecutive_ranges(sorted(sequences))
            ],
            holes=contents.holes,
        )

    def collect_groups(self, old: OldSegments) -> GroupsLeft:
        return collect_groups(old)

    def abandon(self) -> None:
        """Nothing to end: the ranges raise if the export was abandoned."""

    def close(self) -> None:
        """Nothing is open."""


class _Contents:
    """What a segment holds, known when all its batches have been taken."""

    def __init__(self, node: int, block_ranges: Iterable[RawBlockRange]) -> None:
        self._node = node
        self._block_ranges = block_ranges
        self.first_lsn = self.first_at = self.rows = 0
        self.removable: dict[int, list[int]] = {}
        self.holes: list[tuple[int, int]] = []

    def batches(self) -> Iterator[pa.RecordBatch]:
        """One for each range that has rows, up to a hole."""
        for block_range in self._block_ranges:
            columns = Columns()
            fetch = block_range.fetcher()
            for value in block_range.blocks:
                block = read_block(value)
                columns.add(block, list(decoded(block)), fetch)
            for shard, sequences in columns.removable.items():
                self.removable.setdefault(shard, []).extend(sequences)
            if not columns.rows:
                continue
            if not self.rows:
                self.first_lsn, self.first_at = columns.first_lsn, columns.at
            elif columns.first_lsn != self.first_lsn + self.rows:
                self.holes.append((self.first_lsn + self.rows, columns.first_lsn))
                return
            self.rows += columns.rows
            yield record_batch(columns, self._node)


# --- the process ----------------------------------------------------------------------------------------------------

_block_range = msgspec.msgpack.Decoder(RawBlockRange | None).decode


def main() -> None:
    """`python -m holdfast.broker.export.worker`: segments, one after another, from standard input. Ends when the node
    does, also in the middle of a segment."""
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # a service manager sends it to all processes: this one ends with its input
    block_pandas_import()
    try:
        while True:
            _convert_next(sys.stdin.buffer, sys.stdout.buffer)
    except EOFError:
        return
    except BrokenPipeError:  # the interpreter would try again to write what nobody reads
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _convert_next(source: IO[bytes], sink: IO[bytes]) -> None:
    request = msgspec.msgpack.decode(receive(source), type=tuple[str, int] | OldSegments)
    block_ranges = _PipedRanges(source)
    path = request.path if isinstance(request, OldSegments) else request[0]
    try:
        if isinstance(request, OldSegments):
            answer = ConversionResult(groups_left=collect_groups(request))
        else:
            answer = ConversionResult(converted=InThread().convert(Path(path), request[1], block_ranges))
    except OSError as error:
        answer = ConversionResult(failure=(error.errno or 0, error.strerror or str(error), str(error.filename or path)))
    except (ValueError, OverflowError) as error:
        answer = ConversionResult(problem=str(error))
    if not isinstance(request, OldSegments):
        block_ranges.finish()
    send(sink, answer)


class _PipedRanges:
    """The block ranges of a segment that are still on the pipe."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._over = False

    def __iter__(self) -> Iterator[RawBlockRange]:
        while not self._over:
            block_range = _block_range(receive(self._source))
            if block_range is None:
                self._over = True
            else:
                yield block_range

    def finish(self) -> None:
        """Read the rest, which a conversion that failed has not read."""
        for _ in self:
            pass


if __name__ == "__main__":
    main()
