"""Text from elsewhere, as it may be shown on a terminal: an escape sequence in it could clear the screen, rename the
window, or make another line of a log appear."""

from __future__ import annotations

import re
from typing import Final

_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters but for tab and end of line, and those that turn the direction of a text."""


def escape_controls(text: str) -> str:
    r"""The text with control characters as `\x1b`."""
    return _CONTROLS.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
