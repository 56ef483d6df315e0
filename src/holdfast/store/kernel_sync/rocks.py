"""RocksDB's log, synced by the kernel: what a `RocksStore` offers as `kernel_syncs`."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import StoreError
from holdfast.store.kernel_sync.live_log import LiveLog
from holdfast.store.kernel_sync.ring import AsynchronousSync
from holdfast.store.rocks_handles import Handles


class RocksKernelSyncs:
    """`failed` is told of an error, and gives the one to raise; nothing begins while there is a `failure`. Raises
    OSError where the kernel has or allows no such thing."""

    def __init__(
        self,
        handles: Callable[[], Handles | None],
        failure: Callable[[], StoreError | None],
        failed: Callable[[Exception], StoreError],
    ) -> None:
        self._handles = handles
        self._failure = failure
        self._failed = failed
        self._sync = AsynchronousSync()
        self._begun: tuple[LiveLog, int] | None = None  # of which database, and the last change that the sync covers
        self.descriptor = self._sync.descriptor

    def begin(self) -> bool:
        """Begin, if all that is not synced is in one log."""
        handles = self._handles()
        if handles is None or self._failure() is not None:
            return False
        file = handles.live_log.file
        if file is None:
            return False
        change = handles.changes
        try:
            self._sync.begin(file)
        except OSError:  # no such operation on this file system, or no room for requests
            return False
        self._begun = handles.live_log, change
        return True

    def end(self) -> bool:
        """Whether it has ended."""
        try:
            if not self._sync.end():
                return False
        except OSError as error:
            failure = self._failed(error)
        else:
            handles, begun, self._begun = self._handles(), self._begun, None
            if handles is not None and begun is not None and handles.live_log is begun[0]:  # it is still open
                handles.synced(begun[1])
            return True
        self._begun = None
        raise failure

    def close(self) -> None:
        """Release everything."""
        self._sync.close()
