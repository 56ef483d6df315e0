"""Writes to a store that is synced as the kernel does it, beside the writes, and says what was confirmed.

    python -m tests.power.write_beside DIRECTORY

The kernel's part, fdatasync of the log it is given, is done by a thread here, so that a tracer sees it. A line for each
sync: how many writes are confirmed, and how many syncs were of this kind. The others were the database's.
"""

from __future__ import annotations

import os
import select
import sys
from threading import Thread
from unittest.mock import patch

from holdfast.core.records import Table
from holdfast.store import RocksStore
from holdfast.store.kernel_sync import rocks as kernel_sync

WRITES_BESIDE = 3


class ThreadSync:
    """`AsynchronousSync` by a thread."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK)

    def begin(self, file: int) -> None:
        Thread(target=self._sync, args=(os.dup(file),)).start()

    def _sync(self, file: int) -> None:
        os.fdatasync(file)
        os.close(file)
        os.eventfd_write(self.descriptor, 1)

    def end(self) -> bool:
        return bool(os.eventfd_read(self.descriptor))


def main() -> None:
    number = beside = 0

    def write(count: int) -> None:
        nonlocal number
        for _ in range(count):
            keys = (2 * number + half for half in (0, 1))
            store.write(epoch, [(Table.MESSAGES, key.to_bytes(8, "big"), b"v" * 500) for key in keys])
            number += 1

    with patch.object(kernel_sync, "AsynchronousSync", ThreadSync):
        store = RocksStore(sys.argv[1], write_buffer_bytes=1 << 16)  # tables are made and logs deleted all the time
        epoch = store.acquire()
        syncs = store.kernel_syncs
        assert syncs is not None
        while number < 100_000:
            write(1)
            upto = number
            if syncs.begin():
                write(WRITES_BESIDE)
                select.select([syncs.descriptor], [], [])
                assert syncs.end()
                beside += 1
            else:
                store.sync()
            sys.stdout.write(f"{upto} {beside}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
