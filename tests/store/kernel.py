"""Whether this machine has what the tests of syncs by the kernel need."""

from __future__ import annotations

from functools import cache

from holdfast.store.kernel_sync.ring import AsynchronousSync


@cache
def supported() -> bool:
    try:
        AsynchronousSync().close()
    except OSError:
        return False
    return True
