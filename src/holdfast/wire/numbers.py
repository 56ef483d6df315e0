"""Numbers on the wire. JSON's have no bound; those that are stored and computed with have."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

Int64: TypeAlias = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Count32: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
