"""The engine is asked: nobody above it takes a shard into his hands. Imports are import-linter's to check."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast

SOURCE = Path(holdfast.__file__).parent
ROOMS_ABOVE = ("broker", "journal", "http_api", "mqtt", "testing", "cli")

# Whoever has a shard has it from one of these.
WAYS_TO_A_SHARD = {"shards", "shard", "chosen", "route", "route_dead_letters", "queue_of"}
ENGINE_ONLY = {"step", "heads", "fronts", "open_shard", "wake_ups", "dead_lettering"}


def _uses(path: Path) -> Iterator[str]:
    """Where a module gets at a queue's shards, or at what of the engine is for its own modules."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Attribute):
            continue
        owner = ast.unparse(node.value).rsplit(".", 1)[-1]
        if (owner in ("queue", "queues") and node.attr in WAYS_TO_A_SHARD) or (
            owner in ("engine", "_engine") and node.attr in ENGINE_ONLY
        ):
            yield f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}"


def test_the_check_finds_a_shard() -> None:
    assert any(use.endswith("queue.shards") for use in _uses(SOURCE / "engine/browse.py"))


@pytest.mark.parametrize("room", ROOMS_ABOVE)
def test_nobody_above_the_engine_takes_a_shard(room: str) -> None:
    assert [use for path in sorted((SOURCE / room).rglob("*.py")) for use in _uses(path)] == []
