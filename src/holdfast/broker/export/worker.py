"""Conversion of journal blocks to a segment's file: in this thread, or in a separate process.

Turning rows into columns is plain Python, three to six microseconds a row, and a thread shares the GIL with the event
loop; a process does not. The process receives the records as they are in the store (which it cannot open: a store has
one owner), writes a temporary file, and reports its contents. A process that is killed leaves a file that no manifest
names, and the blocks are still in the store. So one that hangs is killed too: after a time that no segment needs, and
when the node stops.

The process ends when its standard input does, so it never outlives the node.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Protocol

import msgspec
import pyarrow as pa
import structlog

from holdfast.broker.export.pandas_free import block_pandas_import
from holdfast.core.journal import decoded, read_block
from holdfast.errors import LakeUnavailable
from holdfast.files import sync_path
from holdfast.journal.columns import Columns
from holdfast.journal.reader import RawBlockRange
from holdfast.journal.segment import digest, record_batch, write_segment

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

TRIES = 2
"""Attempts at a segment whose process dies; after that the scheduler tries again later."""

END_SECONDS = 5.0

PIPE_BYTES = 1 << 20
"""The most that Linux allows an unprivileged user by default."""

NICE = 10
"""Where processors are few, producers and consumers come first: of a contended processor this process gets a tenth.
Its backlog waits in the store."""


class Converted(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a file; without rows no file is written."""

    first_lsn: int = 0
    last_lsn: int = 0
    first_at: int = 0
    rows: int = 0
    sha256: str = ""
    removable: list[tuple[int, int, int]] = []
    """Message records that only these blocks still need: shard, first and last sequence."""
    holes: list[tuple[int, int]] = []
    """Expected and found lsn, where they differ: the exporter must not continue."""


class ConversionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The response of the process: what it wrote, or why it failed."""

    converted: Converted | None = None
    failure: tuple[int, str, str] | None = None
    """An error of the file system: number, text, path."""
    problem: str = ""
    """An error in the records."""


class Converter(Protocol):
    """Writes the rows of block ranges to the file `path`, synced."""

    def convert(self, path: Path, node: int, block_ranges: Iterable[RawBlockRange]) -> Converted: ...

    def abandon(self) -> None:
        """From another thread: end a conversion that is under way, if possible."""

    def close(self) -> None: ...


# --- the work -------------------------------------------------------------------------------------------------------


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


def consecutive_ranges(sequences: list[int]) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive numbers in a sorted list: first and last of each."""
    first = last = sequences[0]
    for seq in sequences:
        if seq > last + 1:
            yield first, last
            first = seq
        last = seq
    yield first, last


# --- in a process ---------------------------------------------------------------------------------------------------


class InProcess:
    """Converts in a process that is started when it is first needed, and again when it has died. A process that needs
    more than `seconds` for a segment counts as hung, and is killed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._abandoned = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def convert(self, path: Path, node: int, block_ranges: Iterable[RawBlockRange]) -> Converted:
        """`block_ranges` must allow a second iteration, for which it is used if the process dies."""
        for attempt in range(1, TRIES + 1):
            process = self._started()
            hung = threading.Timer(self._seconds, process.kill)
            hung.start()
            try:
                return self._converted(process, path, node, block_ranges)
            except (BrokenPipeError, EOFError) as error:
                late = hung.finished.is_set()
                self._end()
                if self._abandoned:
                    raise LakeUnavailable(path=path, problem="the node stops before the segment is written") from error
                log.warning("the process that converts the journal died", attempt=attempt, hung=late)
                if attempt == TRIES:
                    problem = "the process that converts the journal keeps dying"
                    raise LakeUnavailable(path=path, problem=problem) from error
            finally:
                hung.cancel()
        raise AssertionError

    def _converted(
        self, process: subprocess.Popen[bytes], path: Path, node: int, block_ranges: Iterable[RawBlockRange]
    ) -> Converted:
        assert process.stdin is not None
        assert process.stdout is not None
        _send(process.stdin, (str(path), node))
        for block_range in block_ranges:
            _send(process.stdin, block_range)
        _send(process.stdin, None)
        answer = msgspec.msgpack.decode(_receive(process.stdout), type=ConversionResult)
        if answer.failure is not None:
            raise OSError(*answer.failure)
        if answer.converted is None:
            raise ValueError(answer.problem)
        return answer.converted

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.broker.export.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C at the terminal is for the node, which ends this process
            )
            assert self._process.stdin is not None
            _widen(self._process.stdin.fileno())
            if self._abandoned:
                self._process.kill()
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def abandon(self) -> None:
        """Kill the process: the blocks it received are still in the store."""
        self._abandoned = True
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        self._end()


_encode = msgspec.msgpack.Encoder().encode
_block_range = msgspec.msgpack.Decoder(RawBlockRange | None).decode
_HEAD_BYTES = 8


def _widen(pipe: int) -> None:
    """Enlarge the pipe: the writer is woken each time the reader has emptied it, and every wake-up interrupts other
    work."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # more than this user is allowed: it works without
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def _send(file: IO[bytes], value: object) -> None:
    data = _encode(value)
    file.write(len(data).to_bytes(_HEAD_BYTES, "big"))
    file.write(data)
    file.flush()


def _receive(file: IO[bytes]) -> bytes:
    """What one `_send` wrote; EOFError: the other side has closed the pipe."""
    head = file.read(_HEAD_BYTES)
    size = int.from_bytes(head, "big")
    data = file.read(size)
    if len(head) < _HEAD_BYTES or len(data) < size:
        raise EOFError
    return data


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
    path, node = msgspec.msgpack.decode(_receive(source), type=tuple[str, int])
    block_ranges = _PipedRanges(source)
    try:
        answer = ConversionResult(converted=InThread().convert(Path(path), node, block_ranges))
    except OSError as error:
        answer = ConversionResult(failure=(error.errno or 0, error.strerror or str(error), str(error.filename or path)))
    except (ValueError, OverflowError) as error:
        answer = ConversionResult(problem=str(error))
    block_ranges.finish()
    _send(sink, answer)


class _PipedRanges:
    """The block ranges of a segment that are still on the pipe."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._over = False

    def __iter__(self) -> Iterator[RawBlockRange]:
        while not self._over:
            block_range = _block_range(_receive(self._source))
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
