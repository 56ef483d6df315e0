"""Putting the layers together: defaults < TOML file < environment < flags.

Everything wrong is refused, nothing is ignored: a misspelt limit that silently keeps its default is found only when
the limit was needed. Each refusal names the setting, what is allowed and where the value came from.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.config.fields import Field, all_fields, sections
from holdfast.config.kinds import Secret, closest
from holdfast.config.secret import HIDDEN
from holdfast.config.settings import Config
from holdfast.error_text import SUGGESTED_LENGTH_MAX
from holdfast.errors import ConfigUnreadable, InvalidConfig, UnknownSetting

CONFIG_VARIABLE = "HOLDFAST_CONFIG"
"""Names the file when no --config is given. It is not a setting: a file cannot name itself."""

COMMAND_LINE_VARIABLES = frozenset(
    f"HOLDFAST_{name}"
    for name in (
        *("URL", "TOKEN", "TOKEN_FILE", "USER", "PASSWORD_FILE", "NAMESPACE", "CA_FILE", "CERTIFICATE_FILE"),
        *("KEY_FILE", "VERIFY", "TIMEOUT", "OUTPUT", "YES", "DRY_RUN"),
        *("QUEUE", "GROUP", "ID", "LEASE_TOKEN", "LEASE_DEADLINE", "ATTEMPT", "ENQUEUED_AT", "PRIORITY", "KEY"),
        *("MESSAGE_ID", "CONTENT_TYPE", "CORRELATION_ID", "REPLY_TO", "PAYLOAD"),
    )
)
"""Not settings of a server: where the commands of a client find it, and what they pass to a shell about a message."""

COMMAND_LINE_PREFIXES = tuple(
    f"HOLDFAST_{command}_"
    for command in (
        *("SERVE", "QUEUE", "SEND", "RECEIVE", "ACK", "NACK", "REJECT", "RELEASE", "EXTEND", "BROWSE", "DLQ", "TOP"),
        *("BENCH", "TOKEN", "USER", "CONFIG", "DOCTOR", "COMPLETION", "WORKER", "SCHEDULE", "CONTEXT", "CONSUMER"),
        *("HISTORY", "REQUEST", "APPLY", "EXPORT", "BACKUP", "RESTORE", "STORE_CHECK", "STORE_SALVAGE", "STORE_COPY"),
        *("AUDIT_VERIFY",),
    )
)
"""Twins of flags: HOLDFAST_QUEUE_CREATE_MAX_DEPTH."""


class _Given(NamedTuple):
    """A raw value somebody wrote, under the name they wrote it."""

    dotted: str
    raw: object
    origin: str


def load(
    path: Path | None = None, environ: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> Config:
    """The configuration, with the origin of every value.

    `flags` maps dotted names to values, None where a flag was not given. The file is `path`, else the one that
    HOLDFAST_CONFIG names, else none: no file is read unless somebody asked for it.
    """
    environ = environ or {}
    if path is None and environ.get(CONFIG_VARIABLE):
        path = Path(environ[CONFIG_VARIABLE])

    known = {field.dotted: field for field in all_fields()}
    values = {name: field.default for name, field in known.items()}
    origins = dict.fromkeys(known, "default")
    for given in (*_from_file(path), *_from_environment(environ), *_from_flags(flags or {}, known)):
        values[given.dotted] = _read(known[given.dotted], given)
        origins[given.dotted] = given.origin

    grouped: dict[str, dict[str, object]] = {name: {} for name in sections()}
    for field in known.values():
        grouped[field.section][field.name] = values[field.dotted]
    built = {name: kind(**grouped[name]) for name, kind in sections().items()}
    return msgspec.structs.replace(Config(), **built, origins=origins)


def _read(field: Field, given: _Given) -> object:
    try:
        return field.kind.read(given.raw)
    except ValueError as error:
        displayed = HIDDEN if isinstance(field.kind, Secret) else given.raw
        raise InvalidConfig(
            field=field.dotted, value=displayed, problem=f"it {error} ({given.origin})", allowed=field.kind.allowed()
        ) from None


def _from_file(path: Path | None) -> Iterator[_Given]:
    if path is None:
        return
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigUnreadable(path=path, problem=error.strerror or str(error)) from error
    except ValueError as error:  # of TOML, of UTF-8, or a number of thousands of digits
        raise ConfigUnreadable(path=path, problem=f"it is not TOML: {error}") from error

    origin = f"file {path}"
    known = {field.dotted for field in all_fields()}
    for section, table in document.items():
        if section not in sections() or not isinstance(table, dict):
            raise _unknown(section, origin, [*sections(), *known])
        for name, raw in table.items():
            dotted = f"{section}.{name}"
            if dotted not in known:
                raise _unknown(dotted, origin, sorted(known))
            yield _Given(dotted, raw, origin)


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Given]:
    by_variable = {field.variable: field.dotted for field in all_fields()}
    prefixes = tuple(f"HOLDFAST_{section.upper()}_" for section in sections())
    for variable in sorted(environ):
        if variable in by_variable:
            yield _Given(by_variable[variable], environ[variable], f"environment {variable}")
        elif variable in COMMAND_LINE_VARIABLES or variable.startswith(COMMAND_LINE_PREFIXES):
            continue
        elif variable.startswith(prefixes) or _resembles(variable, by_variable):
            # Not every unknown HOLDFAST_ variable is a slip: a scheduler may put some under our prefix (a Kubernetes
            # service named holdfast brings HOLDFAST_SERVICE_HOST), so only what looks like a setting is refused.
            raise _unknown(variable, "environment", sorted(by_variable))


def _resembles(variable: str, known: Mapping[str, str]) -> bool:
    return len(variable) <= SUGGESTED_LENGTH_MAX and bool(get_close_matches(variable, known, n=1, cutoff=0.85))


def _from_flags(flags: Mapping[str, object], known: Mapping[str, Field]) -> Iterator[_Given]:
    for dotted, raw in flags.items():
        if raw is None:
            continue
        if dotted not in known:
            raise _unknown(dotted, "flag", sorted(known))
        yield _Given(dotted, raw, f"flag {known[dotted].kind.flag or dotted}")


def _unknown(name: str, origin: str, known: list[str]) -> UnknownSetting:
    tail = name.rpartition(".")[2]
    same_name = [other for other in known if "." in name and other.rpartition(".")[2] == tail]
    close = next(iter(same_name), None) or closest(name, known)
    advice = f"Did you mean {close}?" if close else "`holdfast config show` lists them all."
    return UnknownSetting(field=name, origin=origin, advice=advice)
