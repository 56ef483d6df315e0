"""Without tracing nothing of it runs, and nothing of it is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest
from msgspec.structs import replace

from holdfast.broker.node import Node
from holdfast.config.tracing_settings import TracingSettings
from holdfast.core.commands import Draft
from holdfast.engine.engine import Engine
from holdfast.errors import InvalidConfig
from holdfast.store import open_store
from tests.http_api.conftest import config_for
from tests.waiting import PATIENCE_SECONDS

NAME = ("default", "q")


async def test_off_it_calls_nothing(tmp_path: Path) -> None:
    store = open_store("memory", tmp_path / "store")
    node = Node(config_for(tmp_path), store)
    await node.start()
    called: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            called.add(frame.f_code.co_filename)

    try:
        assert type(node.cell.engine) is Engine
        assert node.tracing is None
        sys.setprofile(note)
        try:
            await node.messages.enqueue(NAME, [Draft(b"x")])
            [leased] = await node.messages.lease(NAME, "default")
            await node.messages.ack(NAME, "default", [leased.message.id], [leased.token])
        finally:
            sys.setprofile(None)
    finally:
        await node.stop()
        store.close()
    assert any("holdfast/core" in file for file in called)
    assert [file for file in called if "tracing" in file.partition("src/holdfast")[2] or "opentelemetry" in file] == []


@pytest.mark.parametrize("module", ["holdfast.server", "holdfast.client"])
def test_off_it_is_not_imported(module: str) -> None:
    code = f"import {module}, sys; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert done.stdout.strip() == "[]"


def test_without_the_libraries_the_server_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "holdfast.broker.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.context", None)
    config = replace(config_for(tmp_path), tracing=TracingSettings(enabled=True))
    with pytest.raises(InvalidConfig, match=r"holdfast\[otel\]"):
        Node(config, open_store("memory", tmp_path / "store"))
