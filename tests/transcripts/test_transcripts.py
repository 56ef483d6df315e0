"""Scenarios with their exact traces: what the engine answers, journals and waits for.

`pytest tests/transcripts --rewrite` rewrites the traces. Read the difference before you commit it: a trace says what
the specification says, or the core is wrong.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.states import NEXT
from tests.transcripts.driver import replay

TRANSCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    stands, now, _ = replay(path)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(now)
        return
    assert stands == now


def test_the_transcripts_show_every_edge_of_the_life_cycle() -> None:
    seen = set().union(*(replay(path)[2] for path in TRANSCRIPTS))
    assert set(NEXT) - seen == set()
