"""The text of errors: a docstring with details filled in, of a bounded length whatever a caller sent."""

from __future__ import annotations

import inspect
import reprlib
import string
from typing import Final

MESSAGE_LENGTH_MAX: Final = 1_000
"""Characters of an error's message: a screenful, and no more than fits into any wire's field for it."""

SHOWN_LENGTH_MAX: Final = 200
"""Characters of a caller's text in an error: enough to recognise it. It may be as long as a request."""

SUGGESTED_LENGTH_MAX: Final = 64
"""Characters of a wrong name for which a similar one is looked for. The longest setting has half of that, and to
compare takes time that grows with the square."""

_OWN: Final = frozenset(("problem", "advice", "allowed"))
"""Details that we write. Where a caller's text is in them, it is cut by `shown`."""

_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = SHOWN_LENGTH_MAX


def shown(value: object) -> str:
    """What a caller sent, or what a library says of it, as an error shows it."""
    text = str(value)
    return text if len(text) <= SHOWN_LENGTH_MAX else f"{text[: SHOWN_LENGTH_MAX - 1]}…"


def bounded(value: object) -> object:
    """A detail as it is kept. A structure can only be shown; of one that is long, its beginning."""
    if isinstance(value, str):
        return _clip(value)
    return _clip(_brief.repr(value)) if isinstance(value, list | tuple | dict | set | frozenset | bytes) else value


_Template = list[tuple[str, str | None, bool]]
_templates: dict[type, _Template] = {}
"""Parsed once: a batch may have an error for each of its 10,000 messages."""


def _template(kind: type) -> _Template:
    """The parts of its message: literal text, and the detail that follows, perhaps quoted."""
    text = " ".join((inspect.getdoc(kind) or kind.__name__).split())
    found = [(literal, name, quoted == "r") for literal, name, _, quoted in string.Formatter().parse(text)]
    _templates[kind] = found
    return found


def message(kind: type, details: dict[str, object]) -> str:
    """The docstring of a class of errors, with the details filled in."""
    parts: list[str] = []
    for literal, name, quoted in _templates.get(kind) or _template(kind):
        parts.append(literal)
        if name is None:
            continue
        if name not in details:  # visible, instead of failing while reporting a failure
            parts.append("{" + name + "}")
            continue
        value = details[name]
        if isinstance(value, str) and name not in _OWN:
            value = shown(value)
        parts.append(repr(value) if quoted else str(value))
    return _clip("".join(parts))


def _clip(text: str) -> str:
    """What the caller sent may be in it, at any length; the middle is then left out."""
    half = MESSAGE_LENGTH_MAX // 2
    return text if len(text) <= MESSAGE_LENGTH_MAX else f"{text[:half]} … {text[-half:]}"
