"""Makes the reference page that says which test proves which statement of the standards.

    python -m tests.mqtt.net.index     writes docs/reference/mqtt-conformance.md; a test says when it is stale

Tests name their statements with `covers`; what no test of this room proves stands below with the reason.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from tests.mqtt.net.clauses import Clause

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PAGE = ROOT / "docs" / "reference" / "mqtt-conformance.md"

SECTIONS = {
    "3.1.1": {
        "1.5.3": 3, "2.2.2": 2, "2.3.1": 7, "3.1.0": 2, "3.1.2": 24, "3.1.3": 11, "3.1.4": 5, "3.2.0": 1, "3.2.2": 6,
        "3.3.1": 12, "3.3.2": 3, "3.3.4": 1, "3.3.5": 2, "3.6.1": 1, "3.8.1": 1, "3.8.3": 4, "3.8.4": 6, "3.9.3": 2,
        "3.10.1": 1, "3.10.3": 2, "3.10.4": 6, "3.12.4": 1, "3.14.1": 1, "3.14.4": 3, "4.1.0": 2, "4.3.1": 1,
        "4.3.2": 2, "4.3.3": 2, "4.4.0": 1, "4.5.0": 2, "4.6.0": 6, "4.7.1": 3, "4.7.2": 1, "4.7.3": 4, "4.8.0": 2,
        "6.0.0": 4,
    },
    "5.0": {
        "1.5.4": 3, "1.5.5": 1, "1.5.7": 1, "2.1.3": 1, "2.2.1": 6, "2.2.2": 1, "3.1.0": 2, "3.1.2": 30, "3.1.3": 12,
        "3.1.4": 6, "3.2.0": 2, "3.2.2": 22, "3.3.1": 13, "3.3.2": 20, "3.3.4": 10, "3.4.2": 3, "3.5.2": 3,
        "3.6.1": 1, "3.6.2": 3, "3.7.2": 3, "3.8.1": 1, "3.8.3": 5, "3.8.4": 8, "3.9.2": 2, "3.9.3": 2, "3.10.1": 1,
        "3.10.3": 2, "3.10.4": 6, "3.11.2": 2, "3.11.3": 2, "3.12.4": 1, "3.14.0": 1, "3.14.1": 1, "3.14.2": 4,
        "3.14.4": 3, "3.15.1": 1, "3.15.2": 3, "4.1.0": 2, "4.2.0": 1, "4.3.1": 1, "4.3.2": 5, "4.3.3": 13,
        "4.4.0": 2, "4.5.0": 2, "4.6.0": 6, "4.7.0": 1, "4.7.1": 2, "4.7.2": 1, "4.7.3": 4, "4.8.2": 6, "4.9.0": 3,
        "4.12.0": 7, "4.12.1": 2, "4.13.1": 1, "4.13.2": 1, "6.0.0": 4,
    },
}  # fmt: skip
"""How many statements each section has. Number 2.2.1-1 of 5.0 does not exist."""

_NONE = {("5.0", "2.2.1-1")}


def catalogue() -> list[Clause]:
    return [
        (version, f"{section}-{number}")
        for version, sections in SECTIONS.items()
        for section, count in sections.items()
        for number in range(1, count + 1)
        if (version, f"{section}-{number}") not in _NONE
    ]


def covered() -> dict[Clause, list[str]]:
    """The tests of this room, by statement."""
    found: dict[Clause, list[str]] = {}
    for path in sorted(HERE.glob("test_*.py")):
        module = importlib.import_module(f"tests.mqtt.net.{path.stem}")
        for name, test in vars(module).items():
            if name.startswith("test_"):
                for clause in getattr(test, "clauses", ()):
                    found.setdefault(clause, []).append(f"net/{path.name}::{name}")
    return found


def elsewhere() -> dict[Clause, str]:
    """Statements that a test of another room proves."""
    return {(version, number): test for version, numbers, test in ELSEWHERE for number in numbers.split()}


def unproved() -> dict[Clause, str]:
    """Statements that no test proves, and why."""
    return {(version, number): why for version, numbers, why in UNPROVED for number in numbers.split()}


ELSEWHERE = [
    ("5.0", "3.2.2-9 3.2.2-10", "sessions/test_limits.py::test_a_broker_of_lower_qos_takes_every_subscription"),
    ("5.0", "3.2.2-11 3.2.2-14", "sessions/test_flow.py::test_what_connack_ruled_out_disconnects"),
    ("5.0", "3.2.2-12 3.2.2-13", "sessions/test_sessions.py::test_a_refused_connect_is_told_why_and_closed"),
    (
        "5.0",
        "3.4.2-2 3.4.2-3 3.5.2-2 3.5.2-3 3.6.2-2 3.6.2-3 3.7.2-2 3.7.2-3 3.9.2-1 3.9.2-2 3.11.2-1 3.11.2-2",
        "codec/test_encode.py::test_an_explanation_that_does_not_fit_is_left_out",
    ),
    (
        "5.0",
        "3.14.2-4 3.15.2-2 3.15.2-3",
        "codec/test_encode.py::test_an_explanation_that_does_not_fit_is_left_out",
    ),
]

_CLIENT = "it binds the client, and a server cannot tell"
_AUTHENTICATION = "no authentication method is supported, so there is no exchange of AUTH packets"

UNPROVED = [
    ("3.1.1", "2.3.1-2 2.3.1-3 3.1.2-23 4.5.0-2", _CLIENT),
    ("5.0", "3.1.2-20 3.1.2-21 3.2.2-4 3.2.2-5 3.2.2-21 3.3.2-10 3.3.4-8 4.5.0-2", _CLIENT),
    ("5.0", "3.3.4-5", "overlapping subscriptions give one copy, never several"),
    ("5.0", "3.1.2-30 4.12.0-2 4.12.0-3 4.12.0-4 4.12.0-5 4.12.1-1 4.12.1-2", _AUTHENTICATION),
]

INTRO = """\
<!-- Made by `python -m tests.mqtt.net.index`; a test says when it is stale. Change it there. -->

# MQTT conformance

Which test proves which normative statement of [MQTT 3.1.1](https://docs.oasis-open.org/mqtt/mqtt/v3.1.1/mqtt-v3.1.1.html)
and [MQTT 5.0](https://docs.oasis-open.org/mqtt/mqtt/v5.0/mqtt-v5.0.html). Tests of `net/` speak to a whole broker over
a socket; files are below `tests/mqtt/`. Where a statement binds the client, the test shows what becomes of one that
breaks it. Statements about the form of packets are proved twice: `codec/test_conformance.py` has the same cases for the
codec alone.

{checked}

Not in the tables, because nothing in them can be tried: 2.2.1-1 of 5.0, which does not exist, and section 7 of 3.1.1,
which says what conformance is.
"""

CHECKED = """\
The numbers were compared with public texts that quote the standards: all of 5.0 with two, those of 3.1.1 with a
translation of the whole standard, but for 2.2.2-2, 2.3.1-4, 2.3.1-5, 3.1.2-1, 3.1.2-7, 3.1.4-4, 3.2.2-1, 3.2.2-4,
3.3.1-4, 3.3.1-9, 3.10.4-3, 3.14.1-1 and 4.6.0-2 to 4.6.0-4, which it leaves out and which were found in other texts.
The standards themselves were not at hand: where a quotation was wrong, so is the number here."""


PAHO = """\
## Eclipse Paho's interoperability suites

`client_test.py` (3.1.1, 10 tests) and `client_test5.py` (5.0, 27 tests) of
[eclipse/paho.mqtt.testing](https://github.com/eclipse/paho.mqtt.testing) pass against `holdfast serve`, with two things
set as they expect them, and one assertion apart:

- `test_server_keep_alive` wants a keep alive of 120 s cut to 60 s: `mqtt.keep_alive_max = "60s"`.
- `test_subscribe_failure` wants a topic that may not be subscribed to: a user whose scopes lack `test/nosubscribe`.
  The 3.1.1 test then passes. The 5.0 test asserts the code 0x80 (unspecified error) and is given 0x87: section 3.9.3 of
  the standard has that code, not authorized, for exactly this case."""


def page() -> str:
    found, other, open_ = covered(), elsewhere(), unproved()
    lines = [INTRO.format(checked=CHECKED)]
    for version in SECTIONS:
        lines += [f"## {version}", "", "| statement | proved by |", "|---|---|"]
        reasons: dict[str, list[str]] = {}
        for clause in catalogue():
            if clause[0] != version:
                continue
            if clause in open_:
                reasons.setdefault(open_[clause], []).append(clause[1])
                continue
            tests = found.get(clause, []) or [other[clause]]
            lines.append(f"| MQTT-{clause[1]} | {'<br>'.join(f'`{test}`' for test in tests)} |")
        lines += ["", "Proved by none:", ""]
        lines += [f"- {', '.join(numbers)}: {why}." for why, numbers in reasons.items()]
        lines.append("")
    return "\n".join([*lines, PAHO, ""])


if __name__ == "__main__":
    PAGE.write_text(page())
