"""The format of durations and instants on the wire."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

Duration: TypeAlias = Annotated[
    str | int | float,
    Meta(description="A duration: `250ms`, `5s`, `2m`, `1h`, `7d`, or a number of seconds.", examples=["5s"]),
]
Instant: TypeAlias = Annotated[
    str | int | float,
    Meta(
        description="An instant: RFC 3339 with its offset, or milliseconds since 1970. Responses have RFC 3339 in UTC.",
        examples=["2026-01-31T12:00:00Z"],
    ),
]
Size: TypeAlias = Annotated[
    int | str, Meta(description="Bytes: a number, or `64KiB`, `1MiB`. Responses have a number.", examples=["1MiB"])
]
