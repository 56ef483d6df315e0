"""Topic filters as patterns of scopes: what they match, and whether several together cover another filter.

They have MQTT's grammar and meaning: levels joined by `/`, `+` for one level, `#` for all that follow and their parent,
and a name that starts with `$` is hidden from a pattern that starts with a wildcard. The MQTT front has its own trie
for thousands of subscribers; a credential has a handful of patterns, and a redrive keeps those of who began it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

Pattern = tuple[str, ...]
"""A filter cut into its levels."""

BYTES_MAX: Final = 1024
"""Queue names have at most 255 bytes; plain topics can be longer, but nobody writes such a pattern by hand."""

SHARE_PREFIX: Final = "$share/"

_FRESH: Final = "\0"
"""A level that stands in no pattern: NUL is allowed in no name."""


def parse(text: str) -> Pattern:
    """The pattern's levels, or ValueError whose text completes "The pattern ..."."""
    if not text or len(text.encode(errors="replace")) > BYTES_MAX:
        raise ValueError(f"must have 1 to {BYTES_MAX} bytes")
    if "\0" in text:
        raise ValueError("must not contain NUL")
    levels = tuple(text.split("/"))
    if any("#" in level for level in levels[:-1]) or ("#" in levels[-1] and levels[-1] != "#"):
        raise ValueError("may have '#' only as its whole last level")
    if any("+" in level and level != "+" for level in levels):
        raise ValueError("may have '+' only as a whole level")
    if levels[0] in ("$share", "$queue", "$admin"):
        raise ValueError(f"is a queue's name or a plain topic: leave {levels[0]}/ out")
    return levels


def matches(pattern: Pattern, name: Sequence[str]) -> bool:
    """Whether it matches a name, given by its levels."""
    if name[0].startswith("$") and pattern[0] in ("+", "#"):
        return False
    for depth, level in enumerate(pattern):
        if level == "#":
            return True
        if depth == len(name) or level not in ("+", name[depth]):
            return False
    return len(pattern) == len(name)


def covers(patterns: Iterable[Pattern], topic_filter: str) -> bool:
    """Whether every name that the filter could match is matched by one of the patterns.

    There are always levels that no pattern mentions, and such a level is matched by wildcards only. So a filter is
    covered if the names are that have such a level at each of its `+`, and any number of them instead of its `#`. Past
    the length of the longest pattern only those with `#` match, so one name longer than that speaks for all longer
    ones. A shared subscription asks for what stands behind `$share/<group>/`.
    """
    known = list(patterns)
    if not known:
        return False
    if topic_filter.startswith(SHARE_PREFIX):
        topic_filter = topic_filter.split("/", 2)[-1]
    longest = max(map(len, known))
    return all(
        any(matches(pattern, name) for pattern in known) for name in _representatives(topic_filter.split("/"), longest)
    )


def _representatives(levels: list[str], longest: int) -> Iterator[list[str]]:
    """Names that speak for all which the filter matches."""
    stem = [_FRESH if level == "+" else level for level in levels]
    if stem[-1] != "#":
        yield stem
        return
    stem.pop()
    shortest = 2 if stem == [""] else max(len(stem), 1)  # no name is empty
    for length in range(shortest, max(len(stem), longest) + 2):
        yield stem + [_FRESH] * (length - len(stem))
