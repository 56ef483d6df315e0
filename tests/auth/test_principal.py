"""What scopes allow: against MQTT's own matching, and against a brute-force oracle for whole filters."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast import patterns
from holdfast.auth.principal import ANSWERS_CACHED_MAX, Action, Principal, Scope
from holdfast.errors import Forbidden
from holdfast.mqtt import topics

# Literals that patterns use, and in names also one that no pattern mentions ("z"), which stands for all the others.
LITERALS = ["a", "b", "", "$s"]
NAMES = ["/".join(levels) for depth in range(1, 6) for levels in product([*LITERALS, "z"], repeat=depth)]
NAMES = [name for name in NAMES if name]

levels = st.lists(st.sampled_from([*LITERALS, "+"]), max_size=3)
filters = (
    st.tuples(levels, st.sampled_from([[], ["#"]]))
    .map(lambda parts: "/".join(parts[0] + parts[1]))
    .filter(lambda text: text != "")
)


def principal(*scopes: str) -> Principal:
    return Principal(
        name="somebody", namespace="default", method="token", scopes=tuple(Scope.parse(text) for text in scopes)
    )


@given(filters, st.sampled_from(NAMES))
def test_a_scope_matches_as_mqtt_matches(pattern: str, name: str) -> None:
    assert principal(f"consume:{pattern}").may(Action.CONSUME, name) == topics.matches(pattern, name)


# Fewer words, so that filters have often to do with each other.
narrow = st.lists(st.sampled_from(["a", "$s", "+"]), min_size=1, max_size=2).map("/".join)
related = st.one_of(narrow, narrow.map("{}/#".format), st.just("#"))


@given(st.lists(filters, max_size=5) | st.lists(related, max_size=4), filters | related)
@settings(max_examples=300)
@example(["a/+/#"], "a/#")
@example(["+/+/#"], "/#")
def test_a_filter_is_allowed_exactly_if_every_name_it_matches_is(allowed: list[str], wanted: str) -> None:
    # Patterns have at most 4 levels, so names of 5 show what happens past the longest.
    oracle = all(any(topics.matches(p, name) for p in allowed) for name in NAMES if topics.matches(wanted, name))
    who = principal(*(f"consume:{pattern}" for pattern in allowed))
    assert who.may_filter(Action.CONSUME, wanted) == oracle
    assert who.may_filter(Action.CONSUME, f"$share/workers/{wanted}") == oracle


@pytest.mark.parametrize(
    ("scope", "name", "allowed"),
    [
        ("orders/#", "orders", True),
        ("orders/#", "orders/new/eu", True),
        ("orders/#", "ordersx", False),
        ("orders/+", "orders", False),
        ("orders/+", "orders/", True),
        ("#", "anything/at/all", True),
        ("#", "$SYS/load", False),
        ("+/load", "$SYS/load", False),
        ("$SYS/#", "$SYS/load", True),
        ("orders", "Orders", False),
        ("#", "dlq/orders", True),
    ],
)
def test_examples_of_names(scope: str, name: str, allowed: bool) -> None:
    assert principal(f"produce:{scope}").may(Action.PRODUCE, name) is allowed


@pytest.mark.parametrize(
    ("scopes", "wanted", "allowed"),
    [
        (["orders/#"], "orders/#", True),
        (["orders/#"], "#", False),
        (["orders/+"], "orders/#", False),
        (["orders/+/#"], "orders/#", False),
        (["orders", "orders/+/#"], "orders/#", True),
        (["#"], "$SYS/#", False),
        (["#"], "#", True),
        (["+/#"], "#", True),
        (["+", "+/+/#"], "#", True),
        (["a/#", "b/#"], "+/x", False),
        ([], "a", False),
    ],
)
def test_examples_of_filters(scopes: list[str], wanted: str, allowed: bool) -> None:
    assert principal(*(f"consume:{scope}" for scope in scopes)).may_filter(Action.CONSUME, wanted) is allowed


def test_no_action_implies_another() -> None:
    for action in (Action.PRODUCE, Action.CONSUME, Action.ADMIN):
        who = principal(f"{action}:#")
        assert not who.may_node
        assert [other for other in Action if who.may(other, "orders")] == [action]
        assert [other for other in Action if who.may_filter(other, "#")] == [action]
        assert who.can_see("orders")
    assert not principal("produce:orders").can_see("bills")
    operator = principal("node")
    assert operator.may_node
    assert not any(operator.may(action, "orders") or operator.may_filter(action, "#") for action in Action)
    assert not operator.can_see("orders")


def test_a_demand_names_what_is_missing() -> None:
    who = principal("produce:orders/#")
    who.require(Action.PRODUCE, "orders/new")
    who.require_filter(Action.PRODUCE, "orders/#")
    with pytest.raises(Forbidden) as caught:
        who.require(Action.CONSUME, "orders/new")
    assert caught.value.details == {"action": "consume", "resource": "orders/new", "scope": "consume:orders/new"}
    with pytest.raises(Forbidden, match="such as produce:#"):
        who.require_filter(Action.PRODUCE, "#")


def test_answers_are_remembered_but_not_without_end() -> None:
    who = principal("produce:orders/#")
    for number in range(ANSWERS_CACHED_MAX * 2 + 1):
        assert who.may(Action.PRODUCE, f"orders/{number}")
    assert len(who._answers[Action.PRODUCE]) <= ANSWERS_CACHED_MAX
    assert not who.may(Action.PRODUCE, "bills")
    assert not who.may(Action.PRODUCE, "bills")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("orders", "must be produce:, consume: or admin:"),
        ("write:orders", "must be produce:, consume: or admin:"),
        ("node:orders", "must be produce:, consume: or admin:"),
        ("node:", "must be produce:, consume: or admin:"),
        ("produce:", "must have 1 to 1024 bytes"),
        ("produce:" + "x" * 1025, "must have 1 to 1024 bytes"),
        ("produce:a#", "'#' only as its whole last level"),
        ("produce:#/a", "'#' only as its whole last level"),
        ("produce:a+/b", r"'\+' only as a whole level"),
        ("produce:a\0", "must not contain NUL"),
        ("produce:$queue/orders", r"leave \$queue/ out"),
        ("consume:$share/g/orders", r"leave \$share/ out"),
    ],
)
def test_a_scope_that_makes_no_sense_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Scope.parse(text)


def test_a_scope_reads_as_it_is_written() -> None:
    assert str(Scope.parse("admin:a/+/#")) == "admin:a/+/#"
    assert patterns.parse("a/+/#") == ("a", "+", "#")


@pytest.mark.parametrize(
    ("name", "identity"),
    [
        ("alice", "token:alice"),
        ("auth0|7 é", "token:auth0|7 é"),
        ("a/b", "token:a%2Fb"),
        ("a%2Fb", "token:a%252Fb"),
        ("a\0b\x1b\n", "token:a%00b%1B%0A"),
        ("\u202e", "token:%E2%80%AE"),
    ],
)
def test_an_identity_is_one_printable_part_of_a_key(name: str, identity: str) -> None:
    """It stands in keys between NUL bytes and before a slash, and on consoles."""
    assert msgspec.structs.replace(principal(), name=name).identity == identity


def test_kinds_of_credentials_make_different_identities() -> None:
    methods = ("password", "token", "certificate", "anonymous")
    identities = [msgspec.structs.replace(principal(), name="a", method=method).identity for method in methods]
    assert identities == ["user:a", "token:a", "certificate:a", "anonymous"]
