"""Generations of lsns: each restore of a backup begins a new one, so that no lsn is ever given twice.

A backup does not know which rows the node wrote after it. Some are in the lake, perhaps, others in tables made of it,
and some nobody has. Rows that are written after a restore must not be taken for these: so the upper bits of an lsn
count the restores, and the first row after a restore begins the next generation. In the manifest the rows between are
no gap: nothing says how many there were, and none was forgotten by mistake.
"""

from __future__ import annotations

from typing import Final

GENERATION_ROWS: Final = 1 << 40
"""Lsns of a generation: at a million rows a second a restore would come every twelve days before they ran out."""


def next_generation(last_lsn: int) -> int:
    """The lsn before the first one of the next generation."""
    return (last_lsn // GENERATION_ROWS + 1) * GENERATION_ROWS


def ends_generation(lsn: int) -> bool:
    """Whether the next row is the first of a generation that a restore has begun."""
    return lsn > 0 and lsn % GENERATION_ROWS == 0
