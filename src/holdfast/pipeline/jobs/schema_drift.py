"""How the payloads of queues change over time: which fields they have, of which types, and since when.

A payload's shape is its structure: keys and types of JSON, else `text`, `binary` or `empty`. Spark counts the shapes of
each queue; a queue has few of them. Fields are read from the shapes in the driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.pipeline.build.dead_letters import payload_shape

SHAPES_MAX = 10_000
"""Shapes that are read, the most frequent: payloads whose keys are data have one of their own each."""

WHOLE = "payload"


class Field(msgspec.Struct, kw_only=True):
    """A field of a queue's payloads, with one of its types."""

    namespace: str
    queue: str
    field: str
    """As `payload.a.b`; `payload.items[]` is what is in a list."""
    type: str
    messages: int
    of: int
    """Messages of the queue with a payload."""
    first_seen: datetime
    last_seen: datetime
    example: int
    """The first message that has it."""
    changes: list[str] = []
    """`new`: the first messages lack it; `gone`: the last ones do; `type`: it also has another type."""


def payload_shapes(events: DataFrame) -> DataFrame:
    """The shapes of each queue's payloads: how many messages have each, from when to when. From `events`; messages of
    queues whose journal keeps no payloads are left out."""
    stored = events.where((F.col("event") == "enqueued") & F.col("payload").isNotNull())
    return stored.groupBy("namespace", "queue", payload_shape(F.col("payload")).alias("shape")).agg(
        F.count("*").alias("messages"),
        F.min("at").alias("first_seen"),
        F.max("at").alias("last_seen"),
        F.min("message_id").alias("example"),
    )


def drift(events: DataFrame, queue: str = "", since: datetime | None = None) -> list[Field]:
    """The fields of one queue or of all, in messages since an instant; those that have changed come first."""
    chosen = events.where(F.col("queue") == queue) if queue else events
    chosen = chosen.where(F.col("at") >= F.lit(since)) if since is not None else chosen
    rows = payload_shapes(chosen).orderBy(F.desc("messages")).limit(SHAPES_MAX).toArrow().to_pylist()
    return sorted(fields_of(rows), key=lambda one: (not one.changes, one.namespace, one.queue, one.field, one.type))


def fields_of(shapes: list[dict[str, Any]]) -> Iterator[Field]:
    """The fields of rows of `payload_shapes`."""
    queues: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in shapes:
        queues.setdefault((row["namespace"], row["queue"]), []).append(row)
    for (namespace, queue), rows in queues.items():
        found: dict[tuple[str, str], Field] = {}
        for row in rows:
            for name, kind in fields_of_shape(row["shape"]):
                known = found.get((name, kind))
                if known is None:
                    common = {one: row[one] for one in ("messages", "first_seen", "last_seen", "example")}
                    found[name, kind] = Field(namespace=namespace, queue=queue, field=name, type=kind, of=0, **common)
                    continue
                known.messages += row["messages"]
                known.first_seen = min(known.first_seen, row["first_seen"])
                known.last_seen = max(known.last_seen, row["last_seen"])
                known.example = min(known.example, row["example"])
        first, last = min(row["first_seen"] for row in rows), max(row["last_seen"] for row in rows)
        kinds: dict[str, set[str]] = {}
        for name, kind in found:
            kinds.setdefault(name, set()).add(kind)
        for one in found.values():
            one.of = sum(row["messages"] for row in rows)
            one.changes += ["new"] if one.first_seen > first else []
            one.changes += ["gone"] if one.last_seen < last else []
            one.changes += ["type"] if len(kinds[one.field] - {"VOID"}) > 1 else []
        yield from found.values()


def fields_of_shape(shape: str) -> set[tuple[str, str]]:
    """The fields of a shape with their types: `OBJECT<a: OBJECT<b: STRING>>` has `payload.a.b`."""
    found: set[tuple[str, str]] = set()
    _read(shape, 0, WHOLE, found)
    return found


def _read(shape: str, at: int, path: str, found: set[tuple[str, str]]) -> int:
    """Read one type, and return where it ends."""
    if shape.startswith("ARRAY<", at):
        found.add((path, "ARRAY"))
        return _read(shape, at + len("ARRAY<"), f"{path}[]", found) + 1
    if shape.startswith("OBJECT<", at):
        found.add((path, "OBJECT"))
        at += len("OBJECT<")
        while shape[at] != ">":
            if shape[at] == "`":
                end = at + 1
                while shape[end] != "`" or shape.startswith("``", end):
                    end += 2 if shape[end] == "`" else 1
                name, at = shape[at : end + 1], end + 1
            else:
                end = shape.index(": ", at)
                name, at = shape[at:end], end
            at = _read(shape, at + len(": "), f"{path}.{name}", found)
            at += len(", ") if shape.startswith(", ", at) else 0
        return at + 1
    end = at
    while end < len(shape) and shape[end] not in ",>":
        end = shape.index(")", end) if shape[end] == "(" else end + 1
    found.add((path, shape[at:end]))
    return end
