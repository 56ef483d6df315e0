"""A message in a form: what a person has typed, as the API takes it; and back again, to be changed."""

from __future__ import annotations

import base64
from typing import Final

import msgspec

from holdfast import wire
from holdfast.console.caller import whole_number
from holdfast.console.refusals import PageRefused

TEXTS: Final = (
    "key",
    "message_id",
    "delay",
    "deliver_at",
    "ttl",
    "content_type",
    "correlation_id",
    "reply_to",
)
"""Fields that are taken as they are typed."""


def draft_of(form: dict[str, str]) -> dict[str, object]:
    """What the form says, as the API takes it."""
    text = form.get("payload", "").replace("\r\n", "\n")
    draft: dict[str, object] = {}
    match form.get("kind"):
        case "json":
            try:
                msgspec.json.decode(text)
            except msgspec.DecodeError as error:
                raise PageRefused(400, "No JSON", f"The payload is not JSON: {error}") from None
            draft["payload"] = msgspec.Raw(text.encode())
        case "base64":
            draft["base64"] = text.strip()
        case _:
            draft["text"] = text
    for field in TEXTS:
        if form.get(field, "").strip():
            draft[field] = form[field].strip()
    if form.get("priority", "").strip():
        draft["priority"] = number_of(form["priority"].strip())
    properties = _properties(form.get("properties", ""))
    if properties:
        draft["properties"] = properties
    return draft


def _properties(text: str) -> dict[str, str | list[str]]:
    """One a line; a name that is there several times has a list of values."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.strip():
            name, _, value = line.partition("=")
            found.setdefault(name.strip(), []).append(value.strip())
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def form_of(draft: wire.Draft) -> dict[str, str]:
    """What the form shows of a message."""
    if isinstance(draft.payload, msgspec.Raw):
        kind, payload = "json", bytes(draft.payload).decode()
    elif isinstance(draft.base64, bytes):
        kind, payload = "base64", base64.b64encode(draft.base64).decode()
    else:
        kind, payload = "text", draft.text if isinstance(draft.text, str) else ""
    lines = [
        f"{name}={value}"
        for name, values in draft.properties.items()
        for value in (values if isinstance(values, list) else [values])
    ]
    known = {field: getattr(draft, field) for field in TEXTS}
    return {
        "kind": kind,
        "payload": payload,
        "priority": str(draft.priority),
        "properties": "\n".join(lines),
        **{field: str(value) for field, value in known.items() if value is not None},
    }


def number_of(text: str) -> object:
    """What is no number is passed on as it is: the API says what is wrong."""
    found = whole_number(text)
    return text if found is None else found
