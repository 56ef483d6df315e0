"""What tests of the auth room share: cheap hashes, files, gates."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec

from holdfast.auth import files, keys, tokens
from holdfast.auth.gate import Gate
from holdfast.auth.keyring import Key
from holdfast.auth.passwords import hasher
from holdfast.auth.tokens import Claims
from holdfast.auth.users import User, Users
from holdfast.config import AuditSettings, AuthSettings, Config
from holdfast.units import KIB, SECOND
from tests.auth.conftest import Clock

CHEAP = AuthSettings(hash_memory=8 * KIB, hash_passes=1, reload_interval=0)
"""Hashes that cost nothing, and files that are looked at every time."""


def settings(**changes: object) -> AuthSettings:
    return msgspec.structs.replace(CHEAP, **changes)


def gate(clock: Clock, **changes: object) -> Gate:
    return Gate(Config(auth=settings(**changes), audit=AuditSettings(enabled=False)), clock)


def write(path: Path, content: bytes | str) -> Path:
    """As an editor would; `write_keys` and `write_users` do it as our commands do."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(0o600)
    return path


def write_keys(path: Path, *jwks: dict[str, object]) -> Path:
    files.replace(path, keys.as_document(jwks))
    return path


def write_users(path: Path, *entries: User) -> Path:
    files.replace(path, Users(entries).encode())
    return path


def user(name: str, password: str | None = "correct horse", *scopes: str, **fields: Any) -> User:
    return User(
        name=name,
        scopes=scopes or ("produce:#",),
        password=hasher(CHEAP).hash(password) if password else None,
        **fields,
    )


def claims(clock: Clock, **changes: object) -> Claims:
    now = clock() // SECOND
    basic = Claims(sub="shop", ns="acme", scope="produce:orders/# consume:bills", exp=now + 60)
    return msgspec.structs.replace(basic, **changes)


def token(clock: Clock, key: Key, **changes: object) -> str:
    return tokens.sign(claims(clock, **changes), key)


def part(value: object) -> str:
    """One part of a token, made by hand."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()
