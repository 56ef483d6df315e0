"""Topic names and topic filters: their grammar, who subscribed to what matches a name, which names match a filter.

Levels are joined by `/` and compared as they are, character by character, without any normalisation. `+` stands for
one level, `#` for all that follow and their parent. A name that starts with `$` is hidden from filters that start with
a wildcard. `$share/<group>/<filter>` is a shared subscription to `<filter>`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

from holdfast.mqtt import rules
from holdfast.mqtt.rules import Rule

SHARE_PREFIX: Final = "$share/"

# The standard allows 65,535 bytes of slashes. A trie node a level would let one 64 KiB filter take tens of megabytes,
# so filters and names deeper than this are refused; Mosquitto has the same limit.
LEVELS_MAX: Final = 200

# Topics whose matches are remembered: a lookup costs a fortieth of a walk. 4,096 names of 40 bytes are half a megabyte;
# longer ones than this are not remembered, or a client could make it 256 MiB.
MATCHES_CACHED_MAX: Final = 4096
NAME_CACHED_MAX: Final = 256

# Subscribers in all remembered matches together. A thousand clients that subscribe to everything are in every one of
# them: 4,096 times a thousand would be a gigabyte of the plans that `namespaces` makes, 100,000 are some 25 MiB.
SUBSCRIBERS_CACHED_MAX: Final = 100_000

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


# --- grammar --------------------------------------------------------------------------------------------------------


def broken_filter_rule(topic_filter: str) -> Rule | None:
    """The rule that a filter from the wire breaks, if any; its UTF-8 was checked before."""
    if topic_filter.startswith(SHARE_PREFIX):
        group, slash, inner = topic_filter[len(SHARE_PREFIX) :].partition("/")
        if not group:
            return rules.SHARE_NAME_EMPTY
        if not slash or not inner or "+" in group or "#" in group:
            return rules.SHARE_FORM
        topic_filter = inner
    if not topic_filter:
        return rules.FILTER_EMPTY
    hash_at = topic_filter.find("#")
    if hash_at >= 0 and (hash_at != len(topic_filter) - 1 or (hash_at and topic_filter[hash_at - 1] != "/")):
        return rules.FILTER_HASH
    if "+" in topic_filter and any("+" in level and level != "+" for level in topic_filter.split("/")):
        return rules.FILTER_PLUS
    return None


def is_valid_filter(topic_filter: str) -> bool:
    return _is_string(topic_filter) and broken_filter_rule(topic_filter) is None


def is_valid_name(topic: str) -> bool:
    return bool(topic) and "+" not in topic and "#" not in topic and _is_string(topic)


def _is_string(text: str) -> bool:
    """Whether the wire can carry it."""
    try:
        return "\0" not in text and len(text.encode()) <= 0xFFFF
    except UnicodeEncodeError:  # a lone surrogate
        return False


def is_too_deep(text: str) -> bool:
    return text.count("/") >= LEVELS_MAX


def has_wildcard(topic_filter: str) -> bool:
    return "+" in topic_filter or "#" in topic_filter


def split_share(topic_filter: str) -> tuple[str | None, str]:
    """(group, filter) of a shared subscription, (None, filter) of an ordinary one."""
    if not topic_filter.startswith(SHARE_PREFIX):
        return None, topic_filter
    group, _, inner = topic_filter[len(SHARE_PREFIX) :].partition("/")
    return group, inner


def matches(topic_filter: str, topic: str) -> bool:
    """Whether one filter matches one name. For one pair this is quicker than a trie."""
    if topic.startswith("$") and topic_filter.startswith(("+", "#")):
        return False
    levels = topic.split("/")
    wanted = topic_filter.split("/")
    for depth, level in enumerate(wanted):
        if level == "#":
            return True  # also when the name has ended: `a/#` matches its parent `a`
        if depth == len(levels) or level not in ("+", levels[depth]):
            return False
    return len(wanted) == len(levels)


# --- who subscribed to a name ---------------------------------------------------------------------------------------


class _Node(Generic[K, V]):
    """One level of the filters with wildcards. `ends` are the filters that end here, `rest` those that go on with #."""

    __slots__ = ("children", "ends", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node[K, V]] = {}
        self.ends: dict[K, V] = {}
        self.rest: dict[K, V] = {}

    @property
    def unused(self) -> bool:
        return not (self.children or self.ends or self.rest)


class SubscriptionTrie(Generic[K, V]):
    """Filters and their subscribers. A match costs by the depth of the name, not by the number of subscriptions.

    Filters without a wildcard stand in a plain dict by their whole text; only the others need the trie. What matched a
    name is remembered until a change could alter it. A subscriber with several matching filters is found once for each.
    """

    __slots__ = ("_count", "_exact", "_matches", "_remembered", "_root")

    def __init__(self) -> None:
        self._exact: dict[str, dict[K, V]] = {}
        self._root: _Node[K, V] = _Node()
        self._matches: dict[str, tuple[V, ...]] = {}
        self._remembered = 0  # subscribers in all matches
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, topic_filter: str, subscriber: K, value: V) -> V | None:
        """Subscribe, or replace the subscription to the same filter. Returns the value that was replaced."""
        self._invalidate(topic_filter)
        if has_wildcard(topic_filter):
            node = self._root
            for level in _trie_levels(topic_filter):
                child = node.children.get(level)
                if child is None:
                    child = node.children[level] = _Node()
                node = child
            subscribers = node.rest if topic_filter.endswith("#") else node.ends
        else:
            subscribers = self._exact.setdefault(topic_filter, {})
        before = subscribers.get(subscriber)
        self._count += subscriber not in subscribers
        subscribers[subscriber] = value
        return before

    def remove(self, topic_filter: str, subscriber: K) -> V | None:
        """Returns the value that was removed, None if there was no such subscription."""
        if has_wildcard(topic_filter):
            return self._remove_wildcard(topic_filter, subscriber)
        subscribers = self._exact.get(topic_filter)
        if subscribers is None or subscriber not in subscribers:
            return None
        self._invalidate(topic_filter)
        self._count -= 1
        value = subscribers.pop(subscriber)
        if not subscribers:
            del self._exact[topic_filter]
        return value

    def _remove_wildcard(self, topic_filter: str, subscriber: K) -> V | None:
        path: list[tuple[_Node[K, V], str]] = []
        node = self._root
        for level in _trie_levels(topic_filter):
            child = node.children.get(level)
            if child is None:
                return None
            path.append((node, level))
            node = child
        subscribers = node.rest if topic_filter.endswith("#") else node.ends
        if subscriber not in subscribers:
            return None
        self._invalidate(topic_filter)
        self._count -= 1
        value = subscribers.pop(subscriber)
        for parent, level in reversed(path):
            if not parent.children[level].unused:
                break
            del parent.children[level]
        return value

    def match(self, topic: str) -> tuple[V, ...]:
        """The values of all subscriptions whose filter matches the name."""
        found = self._matches.get(topic)
        if found is None:
            found = tuple(self._walk(topic))
            if len(topic) <= NAME_CACHED_MAX:
                self._cache(topic, found)
        return found

    def _cache(self, topic: str, found: tuple[V, ...]) -> None:
        if len(self._matches) >= MATCHES_CACHED_MAX or self._remembered + len(found) > SUBSCRIBERS_CACHED_MAX:
            self._matches.clear()
            self._remembered = 0
        self._matches[topic] = found
        self._remembered += len(found)

    def _invalidate(self, topic_filter: str) -> None:
        """A subscription to the filter changes."""
        if has_wildcard(topic_filter):
            self._matches.clear()
            self._remembered = 0
        else:
            self._remembered -= len(self._matches.pop(topic_filter, ()))

    def _walk(self, topic: str) -> list[V]:
        exact = self._exact.get(topic)
        found = list(exact.values()) if exact else []
        nodes = [self._root]
        if topic.startswith("$"):
            # Wildcards at the first level do not see this name: start below it.
            first, slash, topic = topic.partition("/")
            child = self._root.children.get(first)
            nodes = [child] if child else []
            if not slash:
                return found + [value for node in nodes for value in node.rest.values()]
        for level in topic.split("/"):
            below: list[_Node[K, V]] = []
            for node in nodes:
                found += node.rest.values()
                child = node.children.get(level)
                if child is not None:
                    below.append(child)
                child = node.children.get("+")
                if child is not None:
                    below.append(child)
            if not below:
                return found
            nodes = below
        for node in nodes:
            found += node.ends.values()
            found += node.rest.values()
        return found


def _trie_levels(topic_filter: str) -> list[str]:
    """The levels of a filter that have a node: all but the closing #."""
    levels = topic_filter.split("/")
    if levels[-1] == "#":
        levels.pop()
    return levels


# --- which names a filter matches -----------------------------------------------------------------------------------


class _Level:
    """One level of the names that are kept. `name` is the whole name that ends here, None if none does."""

    __slots__ = ("children", "name")

    def __init__(self) -> None:
        self.children: dict[str, _Level] = {}
        self.name: str | None = None


class NameIndex(Generic[V]):
    """Values by topic name, found by filter: the index of retained messages."""

    __slots__ = ("_root", "_values")

    def __init__(self) -> None:
        self._values: dict[str, V] = {}
        self._root = _Level()

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def get(self, topic: str) -> V | None:
        return self._values.get(topic)

    def put(self, topic: str, value: V) -> None:
        if topic not in self._values:
            level = self._root
            for text in topic.split("/"):
                child = level.children.get(text)
                if child is None:
                    child = level.children[text] = _Level()
                level = child
            level.name = topic
        self._values[topic] = value

    def remove(self, topic: str) -> V | None:
        """Returns the value that was removed, None if there was none."""
        if topic not in self._values:
            return None
        path: list[tuple[_Level, str]] = []
        level = self._root
        for text in topic.split("/"):
            path.append((level, text))
            level = level.children[text]
        level.name = None
        for parent, text in reversed(path):
            child = parent.children[text]
            if child.children or child.name is not None:
                break
            del parent.children[text]
        return self._values.pop(topic)

    def match_names(self, topic_filter: str) -> list[str]:
        """The names that the filter matches. Costs by the levels it has to look at: the filter's own, and what is
        below its wildcards."""
        if not has_wildcard(topic_filter):
            return [topic_filter] if topic_filter in self._values else []
        found: list[str] = []
        levels = [self._root]
        for text in topic_filter.split("/"):
            if text == "#":
                _collect(levels, found, self._root)
                return found
            if text == "+":
                hidden = levels[0] is self._root
                levels = [
                    child
                    for level in levels
                    for name, child in level.children.items()
                    if not (hidden and name.startswith("$"))
                ]
            else:
                levels = [level.children[text] for level in levels if text in level.children]
            if not levels:
                return found
        return [level.name for level in levels if level.name is not None]


def _collect(levels: list[_Level], found: list[str], root: _Level) -> None:
    """All names at and below `levels`; a name that starts with $ is hidden from a # at the very first level."""
    todo = list(reversed(levels))
    while todo:
        level = todo.pop()
        if level.name is not None:
            found.append(level.name)
        for text, child in level.children.items():
            if level is root and text.startswith("$"):
                continue
            todo.append(child)
