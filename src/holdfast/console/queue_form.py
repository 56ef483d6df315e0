"""Forms made from the API's own schema: a field for each setting, with its text. A queue's configuration is one."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec

from holdfast import wire
from holdfast.http_api.openapi.descriptions import fields_of
from holdfast.units import format_size

SECTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    "retry": wire.RetryConfig,
    "dlq": wire.DeadLetterConfig,
    "throttle": wire.ThrottleConfig,
    "breaker": wire.BreakerConfig,
}
TITLES: Final = {
    "": "Queue",
    "retry": "Retries",
    "dlq": "Dead letters",
    "throttle": "Limits of deliveries",
    "breaker": "Circuit breaker",
}


class FormField(msgspec.Struct, frozen=True, kw_only=True):
    """One input."""

    name: str
    """As the API calls it: `retry.max_retries`."""
    label: str
    hint: str
    kind: str
    """`switch`, `choice`, `lines`, `number` or `text`."""
    choices: list[str]
    default: str


class FormSection(msgspec.Struct, frozen=True):
    title: str
    fields: list[FormField]


@cache
def sections() -> list[FormSection]:
    """All fields, by section."""
    parts: dict[str, type[msgspec.Struct]] = {"": wire.QueueConfig, **SECTIONS}
    return [
        FormSection(TITLES[section], form_fields(shape, shown(shape(), section), section))
        for section, shape in parts.items()
    ]


def form_fields(shape: type[msgspec.Struct], defaults: dict[str, str], section: str = "") -> list[FormField]:
    """A field for each setting of `shape` that has a default here."""
    prefix = f"{section}." if section else ""
    return [
        FormField(
            name=prefix + field.name,
            label=field.name.replace("_", " ").capitalize(),
            hint=field.text,
            kind=_kind(field.schema),
            choices=[str(choice) for choice in field.schema.get("enum", [])],
            default=defaults[prefix + field.name],
        )
        for field in fields_of(shape)
        if prefix + field.name in defaults
    ]


def _kind(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return "choice"
    return {"boolean": "switch", "integer": "number", "number": "number", "array": "lines"}.get(
        str(schema.get("type")), "text"
    )


def shown(config: msgspec.Struct, section: str = "") -> dict[str, str]:
    """The values of a configuration, as inputs show them."""
    found: dict[str, str] = {}
    for name in config.__struct_fields__:
        value = getattr(config, name)
        if name in SECTIONS:
            found |= shown(value, name)
        else:
            found[f"{section}.{name}" if section else name] = _text(name, value)
    return found


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else ""
    if isinstance(value, list):
        return "\n".join(str(one) for one in value)
    if name == "max_message_size" and isinstance(value, int):
        return format_size(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def given(form: dict[str, str], before: dict[str, str]) -> dict[str, object]:
    """What a form changes, as the API takes it. What is no number is passed on as it is: the API says what is wrong."""
    found: dict[str, object] = {}
    for section in sections():
        for field in section.fields:
            text = form.get(field.name, "").replace("\r\n", "\n").strip()
            if text != before[field.name].strip():
                found[field.name] = _value(field.kind, text)
    return found


def _value(kind: str, text: str) -> object:
    if kind == "switch":
        return text == "on"
    if kind == "lines":
        return [line.strip() for line in text.splitlines() if line.strip()]
    if kind == "number":
        for read in (int, float):
            try:
                return read(text)
            except ValueError:
                continue
    return text
