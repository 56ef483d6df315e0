"""The lag of a query, from Spark's progress of its sources."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def lag(progress: Any) -> dict[int, int]:
    """By partition, how many sequences a query has still to read: of `query.lastProgress`, or of a listener's event.

    Messages that arrived since the last batch was planned count too. Empty if nothing is known yet.
    """
    sources: Iterable[Any] = progress["sources"] if isinstance(progress, dict) else getattr(progress, "sources", ())
    behind: dict[int, int] = {}
    for source in sources:
        ends = _offset(_field(source, "endOffset"))
        for partition, latest in _offset(_field(source, "latestOffset")).items():
            count = max(latest - ends.get(partition, 1), 0)
            behind[int(partition)] = behind.get(int(partition), 0) + count
    return behind


def _field(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, dict) else getattr(source, name)


def _offset(given: Any) -> dict[str, int]:
    found = json.loads(given) if isinstance(given, str) and given else given
    return found if isinstance(found, dict) else {}
