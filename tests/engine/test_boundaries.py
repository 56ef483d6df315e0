"""Who may look into what: above the engine nobody has a shard, and the engine does not look into a shard's structures.

Imports are import-linter's to check; this is about attributes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast

SOURCE = Path(holdfast.__file__).parent
ROOMS_ABOVE = ("broker", "journal", "http_api", "mqtt", "testing", "cli")

# By the name of the variable or attribute that they are read from.
WAYS_TO_A_SHARD = {
    "queue": {"shards", "shard", "chosen", "route", "route_dead_letters"},
    "catalog": {"shard", "queue_of"},
    "engine": {"step", "step_all", "heads", "oldest_places", "new_shard", "wake_ups", "dead_lettering"},
}
INSIDE_A_SHARD = {"shard": {"groups", "cursors", "cached_records", "masks", "removable", "orphans", "logs"}}


def _uses(room: str, forbidden: dict[str, set[str]]) -> Iterator[str]:
    for path in sorted((SOURCE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                owner = ast.unparse(node.value).rsplit(".", 1)[-1].removeprefix("_")
                if node.attr in forbidden.get(owner, ()):
                    yield f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}"


def test_the_check_finds_what_it_looks_for() -> None:
    assert any(use.endswith("queue.shards") for use in _uses("engine", WAYS_TO_A_SHARD))
    assert any(use.endswith("shard.groups") for use in _uses("core", INSIDE_A_SHARD))


@pytest.mark.parametrize("room", ROOMS_ABOVE)
def test_nobody_above_the_engine_has_a_shard(room: str) -> None:
    assert list(_uses(room, WAYS_TO_A_SHARD)) == []


def test_the_engine_does_not_look_into_a_shard() -> None:
    assert list(_uses("engine", INSIDE_A_SHARD)) == []
