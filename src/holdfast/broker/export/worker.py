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

from holdfast.broker.export.conversion import ConversionResult, Converted, consecutive_ranges, receive, send
from holdfast.broker.export.pandas_free import block_pandas_import
from holdfast.core.journal import decoded, read_block
from holdfast.files import sync_path
from holdfast.journal.columns import Columns
from holdfast.journal.reader import RawBlockRange
from holdfast.journal.segment import digest, record_batch, write_segment

NICE = 10
"""Where processors are few, producers and consumers come first: of a contended processor this process gets a tenth.
Its backlog waits in the store."""


class InThread:
    """Converts in the calling thread."""

    def convert(self, path: Path, node: int, block_ranges: Iterable[RawBlockRange]) -> Converted:
        batches: list[pa.RecordBatch] = []
        removable: dict[int, list[int]] = {}
        holes: list[tuple[int, int]] = []
        first_lsn = first_at = rows = 0
        for block_range in block_ranges:
            columns = Columns()
            fetch = block_range.fetcher()
            for value in block_range.blocks:
                block = read_block(value)
                columns.add(block, list(decoded(block)), fetch)
            for shard, sequences in columns.removable.items():
                removable.setdefault(shard, []).extend(sequences)
            if not columns.rows:
                continue
            if not rows:
                first_lsn, first_at = columns.first_lsn, columns.at
            elif columns.first_lsn != first_lsn + rows:
                holes.append((first_lsn + rows, columns.first_lsn))
            rows += columns.rows
            batches.append(record_batch(columns, node))
        sha256 = ""
        if rows and not holes:
            write_segment(path, batches)
            sync_path(path)
            sha256 = digest(path)
        return Converted(
            first_lsn=first_lsn,
            last_lsn=first_lsn + rows - 1,
            first_at=first_at,
            rows=rows,
            sha256=sha256,
            removable=[
                (shard, *record_range)
                for shard, sequences in sorted(removable.items())
                for record_range in consecutive_ranges(sorted(sequences))
            ],
            holes=holes,
        )

    def abandon(self) -> None:
        """Nothing to end: the ranges raise if the export was abandoned."""

    def close(self) -> None:
        """Nothing is open."""


# --- the process ----------------------------------------------------------------------------------------------------

_block_range = msgspec.msgpack.Decoder(RawBlockRange | None).decode


def main() -> None:
    """`python -m holdfast.broker.export.worker`: segments, one after another, from standard input. Ends when the node
    does, also in the middle of a segment."""
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # a service manager sends it to all processes: this one ends with its input
    os.nice(NICE)
    block_pandas_import()
    try:
        while True:
            _convert_next(sys.stdin.buffer, sys.stdout.buffer)
    except EOFError:
        return
    except BrokenPipeError:  # the interpreter would try again to write what nobody reads
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _convert_next(source: IO[bytes], sink: IO[bytes]) -> None:
    path, node = msgspec.msgpack.decode(receive(source), type=tuple[str, int])
    block_ranges = _PipedRanges(source)
    try:
        answer = ConversionResult(converted=InThread().convert(Path(path), node, block_ranges))
    except OSError as error:
        answer = ConversionResult(failure=(error.errno or 0, error.strerror or str(error), str(error.filename or path)))
    except (ValueError, OverflowError) as error:
        answer = ConversionResult(problem=str(error))
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
