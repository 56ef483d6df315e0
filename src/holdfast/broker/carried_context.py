"""A trace context that messages carry: of a request that brought them, where they bring none of their own."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.commands import Draft, HomogeneousDrafts
from holdfast.core.enqueue import PROPERTIES_MAX
from holdfast.core.records import Extra
from holdfast.trace_context import TRACEPARENT, Pairs


def carrying(drafts: Sequence[Draft], context: Pairs) -> Sequence[Draft]:
    """The same messages, with the context, if it is one."""
    if not context:
        return drafts
    if type(drafts) is HomogeneousDrafts:
        return HomogeneousDrafts(drafts.payloads, _carrying(drafts.extra, context))
    shared: dict[Extra, Extra] = {}  # messages that share their fields do so afterwards: they are stored as columns
    found: list[Draft] = []
    for draft in drafts:
        extra = shared.get(draft.extra)
        if extra is None:
            extra = shared[draft.extra] = _carrying(draft.extra, context)
        found.append(replace(draft, extra=extra))
    return found


def _carrying(extra: Extra, context: Pairs) -> Extra:
    properties = extra.properties
    full = len(properties) + len(context) > PROPERTIES_MAX
    if full or any(name == TRACEPARENT for name, _ in properties):
        return extra
    return replace(extra, properties=(*properties, *context))
