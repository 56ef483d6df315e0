"""Conversion of journal blocks to a segment's file, as the node sees it: a call of a separate process.

Turning rows into columns is plain Python, three to six microseconds a row, and a thread shares the GIL with the event
loop; a process does not. It also keeps Arrow and Parquet out of the node, which are 35 MiB of its memory. The process
(worker.py) receives the records as they are in the store (which it cannot open: a store has one owner), writes a
temporary file, and reports its contents. A process that is killed leaves a file that no manifest names, and the blocks
are still in the store. So one that hangs is killed too: after a time that no segment needs, and when the node stops.

The process ends when its standard input does, so it never outlives the node.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Protocol, TypeVar

import msgspec
import structlog

from holdfast.errors import LakeUnavailable
from holdfast.journal.reader import RawBlockRange

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

TRIES = 2
"""Attempts at a segment whose process dies; after that the scheduler tries again later."""

END_SECONDS = 5.0

NICE = 10
"""Where processors are few, producers and consumers come first: of a contended processor the process gets a tenth. Its
backlog waits in the store."""

NICE_MAX = 19

_Given = TypeVar("_Given")

PIPE_BYTES = 1 << 20
"""The most that Linux allows an unprivileged user by default."""


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


class OldSegments(msgspec.Struct, frozen=True, kw_only=True):
    """Segments that may be removed, the oldest first, and the file with what is left of those that were before."""

    path: str
    """Where to write what is left of them."""
    groups: str | None
    segments: list[tuple[str, str]]
    """File and SHA-256."""
    below_id: int | None
    """A segment with events of this message, or of a later one, must stay; None: none must."""
    keep_flawed: bool
    """Whether one that is missing or changed must stay."""


class GroupsLeft(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of segments: the events of groups that exist."""

    count: int
    """How many segments may be removed."""
    first_id: int = 0
    """No message with this id or a higher one is in them."""
    rows: int = 0
    sha256: str = ""
    flawed: str = ""
    """Why the next one must stay, if because of what it is."""


class ConversionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The response of the process: what it wrote, or why it failed."""

    converted: Converted | None = None
    groups_left: GroupsLeft | None = None
    failure: tuple[int, str, str] | None = None
    """An error of the file system: number, text, path."""
    problem: str = ""
    """An error in the records."""


class Converter(Protocol):
    """Writes Parquet files, synced."""

    def convert(self, path: Path, node: int, block_ranges: Iterable[RawBlockRange]) -> Converted:
        """Write the rows of block ranges to the file `path`."""

    def collect_groups(self, old: OldSegments) -> GroupsLeft:
        """Write what is left of segments once they are removed."""

    def abandon(self) -> None:
        """From another thread: end a conversion that is under way, if possible."""

    def close(self) -> None:
        """End what was started."""


def consecutive_ranges(sequences: list[int]) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive numbers in a sorted list: first and last of each."""
    first = last = sequences[0]
    for seq in sequences:
        if seq > last + 1:
            yield first, last
            first = seq
        last = seq
    yield first, last


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

        def ask(process: IO[bytes]) -> None:
            send(process, (str(path), node))
            for block_range in block_ranges:
                send(process, block_range)
            send(process, None)

        answer = self._answer(ask, path)
        return _given(answer, answer.converted)

    def collect_groups(self, old: OldSegments) -> GroupsLeft:
        answer = self._answer(lambda process: send(process, old), Path(old.path))
        return _given(answer, answer.groups_left)

    def _answer(self, ask: Callable[[IO[bytes]], None], path: Path) -> ConversionResult:
        for attempt in range(1, TRIES + 1):
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            hung = threading.Timer(self._seconds, process.kill)
            hung.start()
            try:
                ask(process.stdin)
                return msgspec.msgpack.decode(receive(process.stdout), type=ConversionResult)
            except (BrokenPipeError, EOFError) as error:
                late = hung.finished.is_set()
                self._end()
                if self._abandoned:
                    raise LakeUnavailable(path=path, problem="the node stops before the segment is written") from error
                log.warning("the process that converts the journal died", attempt=attempt, hung=late)
                if attempt == TRIES:
                    problem = "the process that converts the journal keeps dying"
                    raise LakeUnavailable(path=path, problem=problem) from error
            except BaseException:
                self._end()  # it waits for the rest of the segment
                raise
            finally:
                hung.cancel()
        raise AssertionError

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
            _yield_processor(self._process.pid)
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


def _given(answer: ConversionResult, given: _Given | None) -> _Given:
    """What was asked for, or the error because of which there is none."""
    if answer.failure is not None:
        raise OSError(*answer.failure)
    if given is None:
        raise ValueError(answer.problem)
    return given


def _yield_processor(pid: int) -> None:
    """Lower the priority of the process before it begins: it imports for half a second, mostly while there is most to
    do."""
    nice = os.getpriority(os.PRIO_PROCESS, 0) + NICE
    os.setpriority(os.PRIO_PROCESS, pid, min(nice, NICE_MAX))


# --- the pipes ------------------------------------------------------------------------------------------------------

_encode = msgspec.msgpack.Encoder().encode
_HEAD_BYTES = 8


def _widen(pipe: int) -> None:
    """Enlarge the pipe: the writer is woken each time the reader has emptied it, and every wake-up interrupts other
    work."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # more than this user is allowed: it works without
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def send(file: IO[bytes], value: object) -> None:
    data = _encode(value)
    file.write(len(data).to_bytes(_HEAD_BYTES, "big"))
    file.write(data)
    file.flush()


def receive(file: IO[bytes]) -> bytes:
    """What one `send` wrote; EOFError: the other side has closed the pipe."""
    head = file.read(_HEAD_BYTES)
    size = int.from_bytes(head, "big")
    data = file.read(size)
    if len(head) < _HEAD_BYTES or len(data) < size:
        raise EOFError
    return data
