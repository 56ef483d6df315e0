"""The rig of connections (see rig.py)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.http_api.conftest import config_for
from tests.http_api.server.rig import Rig, serving


@pytest_asyncio.fixture(loop_scope="session")
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    async with serving(config_for(tmp_path), monkeypatch) as rig:
        yield rig
