"""The file of `holdfast apply`: what it may say, read from YAML or TOML, and written.

[queues."shop/orders"]
max_depth = 50_000
retry = {max_retries = 5}
groups = {billing = {}, audit = {kind = "cursor"}}

[schedules.nightly]
queue = "reports"
payload = {kind = "daily"}
cron = "30 2 * * *"
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from holdfast import wire
from holdfast.errors import InvalidArgument
from holdfast.units import parse_duration, parse_size
from holdfast.wire.times import Duration, Size

BYTES_MAX = 16 << 20
FORMATS = ("toml", "yaml")

Kind = TypeVar("Kind", bound=msgspec.Struct)


class GroupEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A group as a file says it. `start` counts when it is created."""

    kind: Literal["lease", "cursor"] = "lease"
    start: Literal["earliest", "latest"] | None = None
    max_lag_messages: int = 0
    max_lag_age: str | int | float = "0s"


class ScheduleEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A schedule as a file says it: the arguments of `client.schedules.put`. Text is stored as text."""

    queue: str
    payload: Any = ""
    cron: str = ""
    every: str | int | float | None = None
    timezone: str = "UTC"
    starts_at: str | None = None
    ends_at: str | None = None
    jitter: str | int | float = "0s"
    catch_up: wire.CatchUp = "skip"
    overlap: wire.Overlap = "queue"
    key: str | None = None
    priority: int = 128
    ttl: str | int | float | None = None
    content_type: str | None = None
    properties: dict[str, str] = {}


class UserEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A user as a file says it: what it may do. Passwords and access keys are in the users file only."""

    scopes: list[str] = []
    namespace: str | None = None
    subject: str | None = None


class QueueEntry(msgspec.Struct, frozen=True):
    """A queue: the settings that a file names, by dotted name, and its groups."""

    settings: dict[str, object]
    groups: dict[str, GroupEntry]


class Topology(msgspec.Struct, frozen=True):
    """What a file says."""

    queues: dict[str, QueueEntry]
    schedules: dict[str, ScheduleEntry]
    users: dict[str, UserEntry] | None = None
    """None: the file says nothing of users."""


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def settings_of(config: wire.QueueConfig) -> dict[str, object]:
    """All settings of a queue, by dotted name."""
    return _flat(msgspec.to_builtins(config))


DEFAULTS = settings_of(wire.QueueConfig())
_KINDS = {
    **{field.name: field.type for field in msgspec.structs.fields(wire.QueueConfig)},
    **{f"retry.{field.name}": field.type for field in msgspec.structs.fields(wire.RetryConfig)},
    **{f"breaker.{field.name}": field.type for field in msgspec.structs.fields(wire.BreakerConfig)},
}
AS_THEY_ARE = ("partitions", "paused")
"""Settings that a file leaves alone unless it names them: the one only grows, the other is for the night."""


def same(name: str, one: object, other: object) -> bool:
    """Whether two values of a setting mean the same: `1h` and `60m`, `1MiB` and 1048576."""
    kind = _KINDS.get(name)
    try:
        if kind == Duration:
            return parse_duration(one) == parse_duration(other)
        if kind == Size:
            return parse_size(one) == parse_size(other)
    except ValueError:
        return False  # the server says what is wrong with it
    return one == other


def read(path: Path) -> Topology:
    """Raises InvalidArgument that names the place."""
    try:
        if path.stat().st_size > BYTES_MAX:
            raise InvalidArgument(field=str(path), problem=f"is larger than {BYTES_MAX >> 20} MiB")
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(field=str(path), problem=f"cannot be read: {error}") from None
    found = _yaml(path, text) if path.suffix in (".yaml", ".yml") else _toml(path, text)
    return _topology(str(path), found)


def _toml(path: Path, text: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(field=str(path), problem=f"is not TOML (a YAML file ends in .yaml): {error}") from None


def _yaml(path: Path, text: str) -> object:
    yaml = _yaml_library()
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidArgument(field=str(path), problem=f"is not YAML: {' '.join(str(error).split())}") from None


def _yaml_library() -> Any:
    try:
        import yaml  # noqa: PLC0415
    except ModuleNotFoundError:
        problem = 'needs: pip install "holdfast[yaml]". TOML needs nothing'
        raise InvalidArgument(field="YAML", problem=problem) from None
    return yaml


def _topology(where: str, found: object) -> Topology:
    document = _table(where, {} if found is None else found)
    _check_names(where, document, ("queues", "schedules", "users"))
    queues = _table(f"{where}: queues", document.get("queues") or {})
    schedules = _table(f"{where}: schedules", document.get("schedules") or {})
    return Topology(
        {name: _queue(f"{where}: queues.{name}", entry) for name, entry in queues.items()},
        {name: _entry(f"{where}: schedules.{name}", entry, ScheduleEntry) for name, entry in schedules.items()},
        _users(where, document.get("users")),
    )


def _users(where: str, found: object) -> dict[str, UserEntry] | None:
    if found is None:
        return None
    entries = _table(f"{where}: users", found)
    return {name: _entry(f"{where}: users.{name}", entry, UserEntry) for name, entry in entries.items()}


def _queue(where: str, entry: object) -> QueueEntry:
    table = dict(_table(where, {} if entry is None else entry))
    groups = _table(f"{where}.groups", table.pop("groups", None) or {})
    settings = _flat(table)
    _check_names(where, settings, DEFAULTS)
    return QueueEntry(
        settings, {name: _entry(f"{where}.groups.{name}", each or {}, GroupEntry) for name, each in groups.items()}
    )


def _entry(where: str, entry: object, kind: type[Kind]) -> Kind:
    table = _table(where, entry)
    _check_names(where, table, kind.__struct_fields__)
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(field=where, problem=f"is not good: {error}") from None


def _table(where: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidArgument(field=where, problem="must be a table: names with values")
    return value


def _check_names(where: str, table: Mapping[str, object], known: Any) -> None:
    for name in table:
        if name not in known:
            close = get_close_matches(name, list(known), 1)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise InvalidArgument(field=where, problem=f"has no setting {name!r}{meant}")


# --- writing --------------------------------------------------------------------------------------------------------


def write(found: Topology, shape: str) -> str:
    """The text of a file, without what is at its default."""
    document = {
        "queues": {
            name: {
                **_nested(each.settings),
                **({"groups": {group: given(entry) for group, entry in each.groups.items()}} if each.groups else {}),
            }
            for name, each in found.queues.items()
        },
        "schedules": {name: given(each) for name, each in found.schedules.items()},
        **({} if found.users is None else {"users": {name: given(each) for name, each in found.users.items()}}),
    }
    if shape == "yaml":
        return str(_yaml_library().safe_dump(document, sort_keys=False, allow_unicode=True))
    lines: list[str] = []
    for section, entries in document.items():
        for name, fields in entries.items():
            lines += [
                f"[{section}.{_text(name)}]",
                *(f"{field} = {_value(value)}" for field, value in fields.items()),
                "",
            ]
    return "\n".join(lines)


def given(entry: GroupEntry | ScheduleEntry | UserEntry) -> dict[str, Any]:
    """What is not at its default."""
    return {
        field.name: value
        for field in msgspec.structs.fields(entry)
        if (value := getattr(entry, field.name))
        != (field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory())
    }


def _nested(settings: Mapping[str, object]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in settings.items():
        section, _, inner = name.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[inner] = value
    return nested


def _value(value: object) -> str:
    """A value in TOML, which has no null: what is null in a payload cannot be said in it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(str(name))} = {_value(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if value is None:
        raise InvalidArgument(field="A payload with null", problem="cannot be written as TOML; try: --format yaml")
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(text: str) -> str:
    """A basic string of TOML: JSON's, but that JSON may leave DEL as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
