"""fdatasync(2) by a worker of the kernel: Linux's io_uring, by ctypes.

A sync on a thread of this process takes some ten hand-overs of the interpreter's lock. Here one system call starts it,
the kernel runs it on a thread of its own, and a descriptor becomes readable when it has ended. What it promises is what
fdatasync(2) of the same file promises. (Linux's older asynchronous I/O does that too, but on the processor that asked.)

The ring has one place: a request is written there and handed over by a call, its result is read from memory.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import sys
from struct import Struct as Layout
from typing import Final

MACHINES: Final = frozenset({"x86_64", "aarch64"})  # little-endian, and with these numbers of calls
_SETUP, _ENTER, _REGISTER = 425, 426, 427
_REQUEST: Final = Layout("<BBHiQQIIQ24x")  # struct io_uring_sqe
_RESULT: Final = Layout("<QiI")  # struct io_uring_cqe
_PARAMETERS: Final = Layout("<10I8IQ8IQ")  # struct io_uring_params: sizes, offsets in the two rings
_REQUESTS_AT: Final = 0x10000000  # where mmap finds the requests
_ONE_MAPPING: Final = 1  # the feature that both rings are in one piece of memory
_FSYNC, _DATA_ONLY = 3, 1
_NOTIFY_DESCRIPTOR: Final = 4


class AsynchronousSync:
    """Syncs one file at a time. Raises OSError where the system has or allows no such thing."""

    def __init__(self) -> None:
        if sys.platform != "linux" or platform.machine() not in MACHINES:
            raise OSError(errno.ENOSYS, f"not known for {sys.platform} on {platform.machine()}")
        # None of these calls blocks: giving up the interpreter's lock for them would cost more than they do.
        self._syscall = ctypes.PyDLL(None, use_errno=True).syscall
        self._syscall.argtypes = (ctypes.c_long,) * 7
        self._syscall.restype = ctypes.c_long
        self._file: int | None = None  # that is being synced
        parameters = ctypes.create_string_buffer(_PARAMETERS.size)
        self._ring = self._call(_SETUP, 1, ctypes.addressof(parameters))
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._map(_PARAMETERS.unpack(parameters))
            descriptor = ctypes.c_int(self.descriptor)
            self._call(_REGISTER, self._ring, _NOTIFY_DESCRIPTOR, ctypes.addressof(descriptor), 1)
        except BaseException:
            self._close_descriptors()
            raise

    def _map(self, parameters: tuple[int, ...]) -> None:
        entries, results = parameters[:2]
        if not parameters[5] & _ONE_MAPPING:
            raise OSError(errno.ENOSYS, "the kernel is older than 5.4")
        _, sq_tail, _, _, _, _, order = parameters[10:17]
        cq_head, cq_tail, cq_mask, _, _, cqes = parameters[19:25]
        size = max(order + 4 * entries, cqes + _RESULT.size * results)
        self._memory = mmap.mmap(self._ring, size)
        self._requests = mmap.mmap(self._ring, 64 * entries, offset=_REQUESTS_AT)
        self._numbers = memoryview(self._memory)[: size // 4 * 4].cast("I")
        self._tail, self._result_head, self._result_tail = sq_tail // 4, cq_head // 4, cq_tail // 4
        self._result_mask, self._results = self._numbers[cq_mask // 4], cqes

    def _call(self, number: int, *arguments: int) -> int:
        result: int = self._syscall(number, *arguments, *(0,) * (6 - len(arguments)))
        if result < 0:
            failed = ctypes.get_errno()
            raise OSError(failed, os.strerror(failed))
        return result

    def begin(self, file: int) -> None:
        """Start a sync. The file may be closed meanwhile: the kernel looks a descriptor up when it begins, which may be
        later than this, and would take what has the number then. So it gets one of our own."""
        own = os.dup(file)
        try:
            self._submit(own)
        except BaseException:
            os.close(own)
            raise
        self._file = own

    def _submit(self, file: int) -> None:
        _REQUEST.pack_into(self._requests, 0, _FSYNC, 0, 0, file, 0, 0, 0, _DATA_ONLY, 0)
        before = self._numbers[self._tail]
        self._numbers[self._tail] = before + 1 & 0xFFFFFFFF
        try:
            if not self._call(_ENTER, self._ring, 1):
                raise BlockingIOError(errno.EAGAIN, "the kernel took no request")
        except BaseException:
            self._numbers[self._tail] = before
            raise

    def end(self) -> bool:
        """Whether it has ended; raises OSError if it has failed. To be called when `descriptor` is readable."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return False
        head = self._numbers[self._result_head]
        if head == self._numbers[self._result_tail]:
            return False
        result = _RESULT.unpack_from(self._memory, self._results + _RESULT.size * (head & self._result_mask))[1]
        self._numbers[self._result_head] = head + 1 & 0xFFFFFFFF
        self._drop_file()
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return True

    def close(self) -> None:
        """Release everything."""
        self._numbers.release()
        self._memory.close()
        self._requests.close()
        self._close_descriptors()
        self._drop_file()

    def _drop_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _close_descriptors(self) -> None:
        os.close(self._ring)
        os.close(self.descriptor)
