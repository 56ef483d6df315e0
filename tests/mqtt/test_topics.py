"""Topics: the grammar of names and filters, and both indexes against a matcher too simple to be wrong."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from holdfast.mqtt import topics
from holdfast.mqtt.topics import LEVELS_MAX, MATCHES_CACHED_MAX, NameIndex, SubscriptionTrie, matches, split_share
from tests.mqtt.codec.strategies import patient

# Few words, so that names and filters meet; with the empty level and the hidden one.
WORDS = ["a", "b", "", "$s"]
names = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.sampled_from([*WORDS, "+", "+"]), min_size=1, max_size=4))
    if draw(st.booleans()):
        levels[-1] = "#"
    return "/".join(levels) or "#"


def naive(topic_filter: str, topic: str) -> bool:
    """The words of the standard as a regular expression."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    if topic_filter == "#":
        return True
    pattern = re.escape(topic_filter).replace(r"\+", "[^/]*")
    pattern = re.sub(r"/\\#$", "(/.*)?", pattern)
    return re.fullmatch(pattern, topic, re.DOTALL) is not None


# --- grammar --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "/", "a/b", "/a", "a/", " ", "$SYS/x", "\ufeff", "x" * 65_535])
def test_valid_names(name: str) -> None:
    assert topics.is_valid_name(name)


@pytest.mark.parametrize("name", ["", "+", "a/#", "a+", "\0", "\ud800", "x" * 65_536, "é" * 32_768])
def test_invalid_names(name: str) -> None:
    assert not topics.is_valid_name(name)


@pytest.mark.parametrize(
    "topic_filter",
    [
        "#",
        "+",
        "/",
        "a/#",
        "+/+",
        "/+",
        "+/a/#",
        "/#",
        "$SYS/#",
        "$share/g/#",
        "$share/g//",
        "$share/g/$SYS/+",
        "$share",
    ],
)
def test_valid_filters(topic_filter: str) -> None:
    assert topics.is_valid_filter(topic_filter)


@pytest.mark.parametrize(
    "topic_filter",
    [
        *("", "a#", "#/a", "a/#/b", "##", "a+", "+a/b", "\0", "\ud800", "x" * 65_536),
        *("$share/", "$share//a", "$share/g", "$share/g/", "$share/+/a", "$share/g#/a", "$share/g/a#"),
    ],
)
def test_invalid_filters(topic_filter: str) -> None:
    assert not topics.is_valid_filter(topic_filter)


def test_shares_are_split() -> None:
    assert split_share("$share/group/a/+/#") == ("group", "a/+/#")
    assert split_share("$share/group//a") == ("group", "/a")
    assert split_share("a/b") == (None, "a/b")


def test_depth_is_bounded_by_whoever_stores() -> None:
    assert not topics.is_too_deep("/" * (LEVELS_MAX - 1))
    assert topics.is_too_deep("/" * LEVELS_MAX)


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/monitor", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/monitor", True),
        ("$SYS/#", "$SYS", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("ACCOUNTS", "Accounts", False),
        ("a", "a/b", False),
    ],
)
def test_the_examples_of_the_standard(topic_filter: str, topic: str, expected: bool) -> None:
    trie: SubscriptionTrie[str, str] = SubscriptionTrie()
    trie.add(topic_filter, "client", "value")
    index: NameIndex[int] = NameIndex()
    index.put(topic, 1)
    assert matches(topic_filter, topic) is expected
    assert trie.match(topic) == (("value",) if expected else ())
    assert index.match_names(topic_filter) == ([topic] if expected else [])


@patient
@given(filters(), names)
def test_one_filter_against_the_naive_matcher(topic_filter: str, topic: str) -> None:
    assert matches(topic_filter, topic) == naive(topic_filter, topic)


# --- the indexes against models -------------------------------------------------------------------------------------


class Subscriptions(RuleBasedStateMachine):
    """The trie beside a dict of all subscriptions, with matches in between so that the cache is warm."""

    added = Bundle("added")

    def __init__(self) -> None:
        super().__init__()
        self.trie: SubscriptionTrie[int, int] = SubscriptionTrie()
        self.model: dict[tuple[str, int], int] = {}

    @rule(target=added, topic_filter=filters() | names, client=st.integers(0, 2), value=st.integers())
    def add(self, topic_filter: str, client: int, value: int) -> tuple[str, int]:
        assert self.trie.add(topic_filter, client, value) == self.model.get((topic_filter, client))
        self.model[topic_filter, client] = value
        return topic_filter, client

    @rule(subscription=added)
    def remove(self, subscription: tuple[str, int]) -> None:
        assert self.trie.remove(*subscription) == self.model.pop(subscription, None)

    @rule(topic_filter=filters() | names, client=st.integers(0, 2))
    def remove_any(self, topic_filter: str, client: int) -> None:
        self.remove((topic_filter, client))

    @rule(topic=names)
    def match(self, topic: str) -> None:
        expected = [value for (one, _), value in self.model.items() if naive(one, topic)]
        assert sorted(self.trie.match(topic)) == sorted(expected)

    @invariant()
    def counts(self) -> None:
        assert len(self.trie) == len(self.model)

    @invariant()
    def nothing_is_left_behind(self) -> None:
        if not self.model:
            assert not self.trie._exact
            assert self.trie._root.unused


class Names(RuleBasedStateMachine):
    """The name index beside a dict."""

    put_before = Bundle("put_before")

    def __init__(self) -> None:
        super().__init__()
        self.index: NameIndex[int] = NameIndex()
        self.model: dict[str, int] = {}

    @rule(target=put_before, topic=names, value=st.integers())
    def put(self, topic: str, value: int) -> str:
        self.index.put(topic, value)
        self.model[topic] = value
        return topic

    @rule(topic=put_before | names)
    def remove(self, topic: str) -> None:
        assert self.index.remove(topic) == self.model.pop(topic, None)

    @rule(topic_filter=filters() | names)
    def match(self, topic_filter: str) -> None:
        found = self.index.match_names(topic_filter)
        assert sorted(found) == sorted(name for name in self.model if naive(topic_filter, name))
        assert [self.index.get(name) for name in found] == [self.model[name] for name in found]

    @invariant()
    def holds_the_same(self) -> None:
        assert len(self.index) == len(self.model)
        assert sorted(self.index) == sorted(self.model)
        if not self.model:
            assert not self.index._root.children


TestSubscriptions = Subscriptions.TestCase
TestNames = Names.TestCase
TestSubscriptions.settings = TestNames.settings = settings(patient, max_examples=50, stateful_step_count=30)


def test_the_cache_is_bounded() -> None:
    trie: SubscriptionTrie[str, int] = SubscriptionTrie()
    trie.add("t/+", "client", 1)
    for number in range(MATCHES_CACHED_MAX + 10):
        assert trie.match(f"t/{number}") == (1,)
    assert len(trie._matches) <= MATCHES_CACHED_MAX


def test_the_cache_is_bounded_by_subscribers_and_length_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.mqtt.topics.SUBSCRIBERS_CACHED_MAX", 100)
    trie: SubscriptionTrie[int, int] = SubscriptionTrie()
    for client in range(30):
        trie.add("#", client, client)
    for number in range(20):
        assert len(trie.match(f"t/{number}")) == 30
        assert sum(map(len, trie._matches.values())) == trie._remembered <= 100
    assert len(trie.match("t" * 257)) == 30
    assert "t" * 257 not in trie._matches
    trie.add("t/19", 99, 99)
    trie.match("t/19")
    trie.remove("t/19", 99)
    assert sum(map(len, trie._matches.values())) == trie._remembered


def test_a_subscriber_with_two_matching_filters_is_found_twice() -> None:
    trie: SubscriptionTrie[str, str] = SubscriptionTrie()
    trie.add("a/+", "client", "one")
    trie.add("a/#", "client", "two")
    trie.add("a/b", "client", "three")
    assert sorted(trie.match("a/b")) == ["one", "three", "two"]


FILTERS = ["#", "+", "a", "a/b", "a/+", "a/#", "a/+/c", "a/b/#", "$s", "$s/#", "$s/+", "+/b"]
TOPICS = ["a", "a/b", "a/b/c", "a/x/c", "$s", "$s/b", "/", "x/y/z"]


def test_subscriptions_come_and_go() -> None:
    trie: SubscriptionTrie[str, str] = SubscriptionTrie()
    present: list[str] = []

    def check() -> None:
        for topic in TOPICS * 2:  # the second time from memory
            assert sorted(trie.match(topic)) == sorted(one for one in present if naive(one, topic))
        assert len(trie) == len(present)

    for one in FILTERS:
        for client in ("x", "y"):
            assert trie.add(one, client, one) is None
            present.append(one)
            check()
        assert trie.add(one, "x", one) == one
        assert trie.remove(one, "stranger") is None
    assert trie.remove("a/b/c/+/e", "x") is None
    assert trie.remove("nowhere", "x") is None
    for one in reversed(FILTERS):
        for client in ("x", "y"):
            assert trie.remove(one, client) == one
            present.remove(one)
            check()
    assert trie._root.unused
    assert not trie._exact


def test_names_come_and_go() -> None:
    index: NameIndex[str] = NameIndex()
    present: list[str] = []

    def check() -> None:
        for one in [*FILTERS, "a/b/c", "x/+/q", "x/q/#"]:
            assert sorted(index.match_names(one)) == sorted(topic for topic in present if naive(one, topic))
        assert sorted(index) == sorted(present)
        assert len(index) == len(present)

    for topic in TOPICS:
        index.put(topic, "old")
        index.put(topic, topic)
        present.append(topic)
        assert index.get(topic) == topic
        check()
    assert index.remove("nowhere") is None
    for topic in TOPICS:
        assert index.remove(topic) == topic
        present.remove(topic)
        check()
    assert not index._root.children


def test_values_may_be_none() -> None:
    trie: SubscriptionTrie[str, None] = SubscriptionTrie()
    trie.add("a", "client", None)
    trie.add("a", "client", None)
    assert (len(trie), trie.match("a")) == (1, (None,))
    trie.remove("a", "client")
    assert (len(trie), trie.match("a")) == (0, ())
