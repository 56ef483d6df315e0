"""Saved servers: what the options of `holdfast` itself are when they are not given.

They are in `contexts.toml` in the user's configuration directory, which nobody else may read. No secret is in it, only
the names of files that have one.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import ConfigUnreadable, InvalidArgument

NAMES_MAX = 1_000
NAME_LENGTH_MAX = 64


class SavedServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of `holdfast`, by their names."""

    url: str
    token_file: str | None = None
    user: str | None = None
    password_file: str | None = None
    namespace: str | None = None
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    verify: bool = True


class Contexts(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The file."""

    current: str = ""
    contexts: dict[str, SavedServer] = {}


def file_path() -> Path:
    """`$XDG_CONFIG_HOME/holdfast/contexts.toml`."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    return Path(base) / "holdfast" / "contexts.toml"


def load() -> Contexts:
    """What is saved; nothing if there is no file."""
    try:
        path = file_path()
    except RuntimeError:  # a user without a home, as in containers
        return Contexts()
    try:
        text = path.read_text()
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigUnreadable(path=path, problem=str(error)) from None
    try:
        return msgspec.convert(tomllib.loads(text), Contexts)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigUnreadable(path=path, problem=str(error)) from None


def save(contexts: Contexts) -> None:
    """Write the file, whole or not at all."""
    path = file_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [f"current = {json.dumps(contexts.current)}", ""]
    for name, saved in sorted(contexts.contexts.items()):
        lines.append(f"[contexts.{json.dumps(name)}]")
        lines += [f"{field} = {json.dumps(value)}" for field, value in msgspec.to_builtins(saved).items()]
        lines.append("")
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    aside.touch(mode=0o600)
    aside.write_text("\n".join(lines))
    aside.replace(path)


def options(name: str | None) -> dict[str, Any]:
    """What a saved server says of the options: the one of this name, else the current one, if there is one."""
    found = load()
    chosen = name or found.current
    if not chosen:
        return {}
    if chosen not in found.contexts:
        known = ", ".join(sorted(found.contexts)) or "none is saved"
        raise InvalidArgument(field=f"Context {chosen!r}", problem=f"does not exist; there are: {known}")
    saved = msgspec.to_builtins(found.contexts[chosen])
    return {field: Path(value) if field.endswith("_file") else value for field, value in saved.items()}
