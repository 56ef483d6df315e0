"""An engine over every store that is in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store import MemoryDisk, MemoryStore
from holdfast.store.rocks import RocksStore
from tests.engine.rig import Rig


@pytest.fixture(params=["memory", "rocks"])
def cell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    disk = MemoryDisk()
    rig = Rig(lambda: MemoryStore(disk) if request.param == "memory" else RocksStore(tmp_path / "store"))
    yield rig
    rig.close()


@pytest.fixture
def memory() -> Iterator[Rig]:
    """One over the memory store, where another store could not tell more."""
    disk = MemoryDisk()
    rig = Rig(lambda: MemoryStore(disk))
    yield rig
    rig.close()
