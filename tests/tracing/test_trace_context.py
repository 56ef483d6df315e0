"""What a message carries of a trace's context, by W3C's rules."""

from __future__ import annotations

import pytest

from holdfast.trace_context import find, is_sampled, is_traceparent, pairs_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize("text", [GOOD, f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01-and-more"])
def test_what_names_a_span(text: str) -> None:
    assert is_traceparent(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        GOOD[:-1],
        GOOD + "-more",
        GOOD + "0",
        GOOD.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"cc-{TRACE}-{SPAN}-01.more",
    ],
)
def test_what_names_none(text: str) -> None:
    assert not is_traceparent(text)
    assert pairs_of(text, "a=1") == ()


def test_a_state_comes_along_unless_it_is_too_long() -> None:
    assert pairs_of(GOOD, "a=1") == (("traceparent", GOOD), ("tracestate", "a=1"))
    assert pairs_of(GOOD, "a" * 513) == pairs_of(GOOD, "") == (("traceparent", GOOD),)


def test_a_message_may_carry_one_among_its_properties() -> None:
    assert find([("shop", "north"), ("traceparent", GOOD)]) == (("traceparent", GOOD),)
    assert find([("shop", "north")]) == ()
    assert is_sampled(pairs_of(GOOD, ""))
    assert not is_sampled(pairs_of(GOOD[:-2] + "02", ""))
    assert not is_sampled(())
