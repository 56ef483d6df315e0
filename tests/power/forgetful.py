"""Runs a command and keeps what a power cut would leave of the files below a directory: what was synced, and no more.

    python -m tests.power.forgetful DIRECTORY SURVIVING COMMAND...     until SIGTERM, or until the command ends
    python -m tests.power.forgetful --every DIRECTORY SURVIVING COMMAND...

The command runs as it is, on the real file system. The kernel stops it at every fsync and fdatasync (a seccomp filter
whose decisions a tracer makes, by ctypes: neither a compiler nor strace is needed). When one begins, what the file or
directory holds is copied aside; when it has succeeded, that copy is what survives. So nothing survives unless a sync
that began after it was written has ended: the contents of a file by a sync of the file, its name by one of its
directory. At the end SURVIVING is built from that, as a file system without a journal would have it; with `--every`
also after each sync, as SURVIVING/000001 and so on: all that a power cut could leave, whenever it comes.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import platform
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

FSYNC_CALLS = {"x86_64": (74, 75), "aarch64": (82, 83)}  # fsync, fdatasync
SUPPORTED = sys.platform == "linux" and platform.machine() in FSYNC_CALLS

_TRACEME, _CONT, _SYSCALL, _SETOPTIONS, _SYSCALL_INFO = 0, 7, 24, 0x4200, 0x420E
_OPTIONS = 0x1 | 0x2 | 0x4 | 0x8 | 0x80 | 0x100000  # syscall stops marked; fork, vfork, clone, seccomp; killed with us
_EVENT_SECCOMP = 7
_WALL = 0x40000000
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _SECCOMP_FILTER = 38, 22, 2
_RET_TRACE, _RET_ALLOW = 0x7FF00000, 0x7FFF0000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction)))


class _SyscallInfo(ctypes.Structure):
    """At the entry of a call, `values` has its number (of a filter's stop: the same) and its arguments; at the exit its
    result."""

    _fields_ = (
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("instruction", ctypes.c_uint64),
        ("stack", ctypes.c_uint64),
        ("values", ctypes.c_int64 * 8),
    )


class SurvivingDisk:
    """What of a directory has been synced: contents by file, names by directory."""

    def __init__(self, root: Path, aside: Path) -> None:
        self._root = root
        self._aside = aside
        self._aside.mkdir()
        self._contents: dict[int, Path] = {}  # by inode
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}  # of a directory's entries: inode, whether a directory
        self._copies = 0

    def copy(self, path: Path) -> dict[str, tuple[int, bool]] | Path | None:
        """What a file or directory holds now; None if it is none of ours."""
        if not path.is_relative_to(self._root) or not path.exists():
            return None
        if path.is_dir():
            entries = list(os.scandir(path))
            for entry in entries:
                self._hold(Path(entry.path))
            return {entry.name: (entry.inode(), entry.is_dir(follow_symlinks=False)) for entry in entries}
        self._hold(path)
        self._copies += 1
        return Path(shutil.copyfile(path, self._aside / f"copy-{self._copies}"))

    def _hold(self, path: Path) -> None:
        """Another name for a file, so that its inode is not used again when it is deleted."""
        try:
            if path.is_file():
                os.link(path, self._aside / f"inode-{path.stat().st_ino}")
        except (FileExistsError, FileNotFoundError):
            return  # held already, or deleted meanwhile

    def synced(self, inode: int, held: dict[str, tuple[int, bool]] | Path) -> None:
        """The sync before which `held` was copied has succeeded."""
        if isinstance(held, dict):
            self._names[inode] = held
            return
        if inode in self._contents:
            self._contents[inode].unlink()
        self._contents[inode] = held

    def build(self, target: Path) -> None:
        """Write what survives. The directory itself was there before."""
        self._build(self._root.stat().st_ino, target)

    def _build(self, inode: int, target: Path) -> None:
        target.mkdir()
        for name, (child, is_directory) in self._names.get(inode, {}).items():
            if is_directory:
                self._build(child, target / name)
            elif child in self._contents:
                shutil.copyfile(self._contents[child], target / name)
            else:
                (target / name).touch()


class Tracer:
    """Stops the processes of a command at their syncs."""

    def __init__(self, disk: SurvivingDisk, synced: Callable[[], None]) -> None:
        self._disk = disk
        self._synced = synced
        self._waiting: dict[int, tuple[int, dict[str, tuple[int, bool]] | Path]] = {}  # in a sync, by thread

    def run(self, command: list[str]) -> None:
        """Until the last process has ended."""
        child = os.fork()
        if child == 0:
            _be_traced()
            os.execvp(command[0], command)
        os.waitpid(child, 0)
        _ptrace(_SETOPTIONS, child, _OPTIONS)
        _ptrace(_CONT, child, 0)
        for thread, status in _stops():
            self._stopped(thread, status)

    def _stopped(self, thread: int, status: int) -> None:
        if not os.WIFSTOPPED(status):
            return
        number, event = os.WSTOPSIG(status), status >> 16
        try:
            if event == _EVENT_SECCOMP:
                self._sync_begins(thread)
                _ptrace(_SYSCALL, thread, 0)
            elif number == signal.SIGTRAP | 0x80:
                self._sync_ends(thread)
            else:
                passed_on = 0 if event or number in (signal.SIGTRAP, signal.SIGSTOP) else number
                _ptrace(_CONT, thread, passed_on)
        except ProcessLookupError:
            self._waiting.pop(thread, None)  # killed meanwhile

    def _sync_begins(self, thread: int) -> None:
        descriptor = _syscall(thread).values[1]
        try:
            link = Path(f"/proc/{thread}/fd/{descriptor}")
            inode, path = link.stat().st_ino, link.readlink()
        except OSError:
            return
        held = self._disk.copy(path)
        if held is not None:
            self._waiting[thread] = (inode, held)

    def _sync_ends(self, thread: int) -> None:
        """The stop at the entry comes first if the kernel makes one after the filter's."""
        info = _syscall(thread)
        if info.op == 1:
            _ptrace(_SYSCALL, thread, 0)
            return
        found = self._waiting.pop(thread, None)
        if found is not None and info.values[0] == 0:
            self._disk.synced(*found)
            self._synced()
        _ptrace(_CONT, thread, 0)


def _stops() -> Iterator[tuple[int, int]]:
    while True:
        try:
            yield os.waitpid(-1, _WALL)
        except ChildProcessError:
            return


def _syscall(thread: int) -> _SyscallInfo:
    info = _SyscallInfo()
    _ptrace(_SYSCALL_INFO, thread, ctypes.addressof(info), address=ctypes.sizeof(info))
    return info


def _ptrace(request: int, thread: int, data: int, *, address: int = 0) -> None:
    if _libc.ptrace(request, thread, address, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _be_traced() -> None:
    """In the child: have every sync, of this process and of those it starts, decided by the tracer."""
    _ptrace(_TRACEME, 0, 0)
    calls = FSYNC_CALLS[platform.machine()]
    program = [
        (_LOAD, 0, 0, 0),
        *((_JUMP_IF_EQUAL, len(calls) - index, 0, number) for index, number in enumerate(calls)),
        (_RETURN, 0, 0, _RET_ALLOW),
        (_RETURN, 0, 0, _RET_TRACE),
    ]
    instructions = (_Instruction * len(program))(*(_Instruction(*each) for each in program))
    filtering = _Program(len(program), ctypes.cast(instructions, ctypes.POINTER(_Instruction)))
    os.kill(os.getpid(), signal.SIGSTOP)  # until the tracer has set its options
    for arguments in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SET_SECCOMP, _SECCOMP_FILTER, ctypes.byref(filtering), 0, 0)):
        if _libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


class _Ended(Exception):
    """SIGTERM: the power is cut."""


def _end(_number: int, _frame: FrameType | None) -> None:
    raise _Ended


def main() -> None:
    every = sys.argv[1] == "--every"
    root, surviving, *command = sys.argv[1 + every :]
    disk = SurvivingDisk(Path(root).absolute(), Path(f"{surviving}.aside").absolute())
    states = (Path(surviving) / f"{number:06d}" for number in itertools.count(1))
    if every:
        Path(surviving).mkdir()
    signal.signal(signal.SIGTERM, _end)
    try:
        Tracer(disk, (lambda: disk.build(next(states))) if every else (lambda: None)).run(command)
    except _Ended:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the kernel kills what is traced when we end
    disk.build(next(states) if every else Path(surviving))


if __name__ == "__main__":
    main()
