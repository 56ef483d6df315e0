"""The context of a trace, as W3C defines it: `traceparent` and `tracestate`.

It travels with a message as two of its properties, through retries, dead letters and redrives, whoever brings it: a
property of the message, a user property of an MQTT PUBLISH, or the headers of an HTTP request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
TRACESTATE_BYTES_MAX: Final = 512
"""As much as W3C asks everybody to pass on."""

Pairs = tuple[tuple[str, str], ...]

_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_LENGTH: Final = 55  # of the first version; a later one may have more behind it


def is_traceparent(text: str) -> bool:
    """Whether it names a span. Of a version that is not known yet, the beginning does."""
    if _TRACEPARENT.fullmatch(text[:_LENGTH]) is None:
        return False
    return len(text) == _LENGTH or (not text.startswith("00") and text[_LENGTH] == "-")


def pairs_of(traceparent: str, tracestate: str) -> Pairs:
    """What a message carries of the headers of a request; nothing if they name no span, as W3C asks for."""
    if not is_traceparent(traceparent):
        return ()
    if tracestate and len(tracestate.encode()) <= TRACESTATE_BYTES_MAX:
        return ((TRACEPARENT, traceparent), (TRACESTATE, tracestate))
    return ((TRACEPARENT, traceparent),)


def find(properties: Iterable[tuple[str, str]]) -> Pairs:
    """The context that a message carries, if it carries one."""
    found = dict(properties)
    return pairs_of(found.get(TRACEPARENT, ""), found.get(TRACESTATE, ""))


def log_fields(context: Pairs) -> dict[str, str]:
    """What a log line says of the trace that it belongs to; nothing if there is none."""
    if not context:
        return {}
    _, trace_id, span_id, _ = context[0][1].split("-", 3)
    return {"trace_id": trace_id, "span_id": span_id}


def is_sampled(context: Pairs) -> bool:
    """Whether who began the trace records it."""
    return bool(context) and int(context[0][1][53:55], 16) & 1 == 1
