"""Numbers that no field was made for, as text."""

from __future__ import annotations

WILD_NUMBERS = (
    *(str(number) for number in (2**31, 2**63 - 1, 2**63, 2**64, 2**70, -1, -(2**63), -(2**70), 1e300)),
    *("1" + 400 * "0", "1" + 5000 * "0", "NaN", "Infinity", "1e400", "1.5"),
)
