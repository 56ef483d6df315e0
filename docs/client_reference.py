"""The reference of the Python client, from its docstrings and signatures."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator

import msgspec

from holdfast import client, testing

INTRO = """\
# Python client

Everything is in `holdfast.client`. How-to pages: [send and receive](../how-to/send-and-receive-in-python.md),
[workers](../how-to/write-workers.md), [schedules](../how-to/schedule-messages.md),
[tests](../how-to/test-your-code.md). Errors are those of [the list](errors.md), as classes of `holdfast.errors`.

`SyncClient`, `SyncConsumer`, `SyncMessage`, `SyncTransaction` and `SyncSchedules` have the methods of `Client`,
`Consumer`, `Message`, `Transaction` and `Schedules` without `await`.

A `Duration` is `"250ms"`, `"5s"`, `"2m"`, `"1h"`, `"7d"`, a number of seconds or a `timedelta`; an `Instant` a
`datetime` with its time zone, RFC 3339 text or milliseconds since 1970."""

LINE = 100  # characters of a signature on one line
INSIDE = {
    *(
        "call",
        "settle_one",
        "hold",
        "keep",
        "forget",
        "done",
        "reserve",
        "free",
        "lose",
        "finish",
        "handle",
        "lease_seconds",
        "stream_messages",
    ),
    *("another", "context", "Retries.pause"),
}
"""Methods that the parts of the client have for each other, some with their class."""

CLASSES: tuple[type, ...] = (
    client.Client,
    client.Message,
    client.Consumer,
    client.Transaction,
    client.Schedules,
    client.State,
    client.Reply,
    client.Sent,
    client.SentMany,
    client.Retries,
    client.Tls,
    client.Worker,
    client.Workers,
    client.Retry,
    client.Reject,
    client.Release,
)


def client_reference() -> str:
    """Every class and function that a user of the client meets."""
    lines = [INTRO]
    for function in (client.draft, client.worker):
        lines += ["", f"## `{function.__name__}`", "", *_signature(function.__name__, function), "", _doc(function)]
    for kind in CLASSES:
        lines += ["", f"## `{kind.__name__}`", "", _doc(kind)]
        if not issubclass(kind, msgspec.Struct | Exception):
            lines += ["", *_signature(kind.__name__, kind)]
        lines += _fields(kind)
        for name, member in _methods(kind):
            lines += ["", f"### `{kind.__name__}.{name}`", "", *_signature(name, member), "", _doc(member)]
    lines += ["", "## `holdfast.testing.Broker`", "", _doc(testing.Broker), "", *_signature("Broker", testing.Broker)]
    for name, member in _methods(testing.Broker):
        lines += ["", f"### `Broker.{name}`", "", *_signature(name, member), "", _doc(member)]
    return "\n".join(lines) + "\n"


def _doc(thing: object) -> str:
    return inspect.getdoc(thing) or ""


def _methods(kind: type) -> Iterator[tuple[str, object]]:
    """What is documented: a method without a docstring is for the parts of the client among themselves."""
    for owner in reversed([each for each in kind.__mro__ if each.__module__.startswith("holdfast.")]):
        for name, member in vars(owner).items():
            inside = name.startswith("_") or not {name, f"{owner.__name__}.{name}"}.isdisjoint(INSIDE)
            if inspect.isfunction(member) and member.__doc__ and not inside:
                yield name, member


def _fields(kind: type) -> list[str]:
    """Fields of a struct, and properties."""
    rows: list[str] = []
    if issubclass(kind, msgspec.Struct):
        rows += [
            f"- `{field.name}`" + ("" if field.required else f" = `{_default(field)}`")
            for field in msgspec.structs.fields(kind)
        ]
    for owner in reversed(kind.__mro__):
        for name, member in vars(owner).items():
            if isinstance(member, property) and not name.startswith("_"):
                text = inspect.getdoc(member)
                rows.append(f"- `{name}`" + (f": {text}" if text else ""))
    return ["", *rows] if rows else []


def _default(field: msgspec.structs.FieldInfo) -> object:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def _default_text(value: object) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)


def _signature(name: str, thing: object) -> list[str]:
    """How it is called; if it can be called in several ways, all of them."""
    assert callable(thing)
    ways = typing.get_overloads(thing) or [thing]
    lines = [line for way in ways for line in _one_signature(name, way)[1:-1]]
    return ["```text", *lines, "```"]


def _one_signature(name: str, thing: Callable[..., object]) -> list[str]:
    signature = inspect.signature(thing)
    parts: list[str] = []
    named = False  # whether what follows is given by name
    for each in signature.parameters.values():
        if each.name == "self":
            continue
        if each.kind is each.KEYWORD_ONLY and not named:
            parts.append("*")
        named = named or each.kind in {each.KEYWORD_ONLY, each.VAR_POSITIONAL}
        star = "*" if each.kind is each.VAR_POSITIONAL else ""
        default = "" if each.default is each.empty else f" = {_default_text(each.default)}"
        parts.append(f"{star}{each.name}: {each.annotation}{default}")
    prefix = "async " if inspect.iscoroutinefunction(thing) or inspect.isasyncgenfunction(thing) else ""
    gives = "" if isinstance(thing, type) else f" -> {signature.return_annotation}"
    whole = f"{prefix}{name}({', '.join(parts)}){gives}"
    if len(whole) > LINE:
        inner = ",\n    ".join(parts)
        whole = f"{prefix}{name}(\n    {inner},\n){gives}"
    return ["```text", whole, "```"]
