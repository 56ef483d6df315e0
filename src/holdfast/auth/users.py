"""The users file: who there is, with which password or certificate, and what they may do.

    {
      "version": 1,
      "users": [
        {
          "name": "shop",
          "namespace": "default",
          "scopes": ["produce:orders/#", "consume:bills"],
          "password": "$argon2id$v=19$m=19456,t=2,p=1$...",
          "subject": "CN=shop,O=Acme",
          "access_keys": [{"id": "HFAK7QZ3M2WJ5NTX6RPD", "secret": "..."}]
        }
      ]
    }

`namespace` may be left out and is then the node's own. A user has a password (argon2id, in the PHC form), or the
subject of a client certificate as RFC 4514 writes it, or access keys for clients that sign their requests (SQS), or
several of these. The secret of an access key is stored as it is, since signatures are checked with it: the file is as
secret as the keys are. Unknown fields are refused. `holdfast user` writes the
file whole, aside, and renames it, with mode 0600; a server sees the change by itself.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from typing import Final

import msgspec

from holdfast.auth.principal import Principal, Scope
from holdfast.auth.watch import Emptied
from holdfast.config.kinds import Name
from holdfast.units import GIB

VERSION: Final = 1
NAME_BYTES_MAX: Final = 255
HASH_MEMORY_MAX_KIB: Final = GIB // 1024
"""A hash that asks for more is refused when the file is read, not when somebody logs in and takes the node down."""


HASH_PASSES_MAX: Final = 100

ACCESS_KEYS_MAX: Final = 2
"""Of a user: the one in use, and the one that replaces it."""

_KEY_ID = re.compile(r"[A-Za-z0-9_]{8,128}")
_KEY_SECRET = re.compile(r"[!-~]{32,128}")

_PHC = re.compile(r"\$argon2id\$v=19\$m=(\d{1,9}),t=(\d{1,9}),p=\d{1,3}\$[A-Za-z0-9+/]{11,128}\$[A-Za-z0-9+/]{16,128}")


class AccessKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An id, which is sent, and a secret, with which requests are signed."""

    id: str
    secret: str


class User(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One entry."""

    name: str
    namespace: str | None = None
    scopes: tuple[str, ...] = ()
    password: str | None = None
    subject: str | None = None
    access_keys: tuple[AccessKey, ...] = ()

    def principal(self, method: str, namespace: str) -> Principal:
        return Principal(
            name=self.name,
            namespace=self.namespace or namespace,
            scopes=tuple(Scope.parse(text) for text in self.scopes),
            method=method,
            credential=self.credential,
        )

    @property
    def credential(self) -> str:
        """Changes when anything about the user does, so that what was let in before is not valid any more."""
        return f"user:{hashlib.sha256(msgspec.json.encode(self)).hexdigest()}"


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    users: tuple[User, ...]


class Users:
    """All users, by name, by subject and by the ids of their access keys."""

    def __init__(self, users: tuple[User, ...] = ()) -> None:
        self.by_name = {user.name: user for user in users}
        self.by_subject = {user.subject: user for user in users if user.subject}
        self.by_access_key = {key.id: (user, key) for user in users for key in user.access_keys}
        self.credentials = {user.credential for user in users}
        self._hashes = [user.password for user in users if user.password]

    def hash_like(self, name: str) -> str | None:
        """The hash of some user, always the same for a name: what checking a user of that name would cost."""
        return self._hashes[zlib.crc32(name.encode(errors="replace")) % len(self._hashes)] if self._hashes else None

    def with_user(self, user: User) -> Users:
        """In place of the one of that name, if there is one."""
        return Users(tuple({**self.by_name, user.name: user}.values()))

    def without(self, name: str) -> Users:
        return Users(tuple(user for user in self.by_name.values() if user.name != name))

    def encode(self) -> bytes:
        document = _Document(VERSION, tuple(sorted(self.by_name.values(), key=lambda user: user.name)))
        return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def read(content: bytes, users_max: int, scopes_max: int) -> Users:
    """The users in a file's content, or ValueError whose text completes "The file ...". No hash is quoted."""
    if not content.strip():
        raise Emptied("is empty")
    try:
        document = msgspec.json.decode(content, type=_Document)
    except msgspec.ValidationError as error:
        raise ValueError(f"is not a users file: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("is not JSON") from None
    if document.version != VERSION:
        raise ValueError(f"has version {document.version}; this Holdfast reads version {VERSION}")
    if len(document.users) > users_max:
        raise ValueError(f"has more than {users_max} users (auth.users_max)")
    for user in document.users:
        check(user, scopes_max)
    users = Users(document.users)
    if len(users.by_name) != len(document.users):
        raise ValueError("names a user twice")
    if len(users.by_subject) != sum(user.subject is not None for user in document.users):
        raise ValueError("gives two users the same subject")
    if len(users.by_access_key) != sum(len(user.access_keys) for user in document.users):
        raise ValueError("has the id of an access key twice")
    return users


def check(user: User, scopes_max: int) -> None:
    """Raises ValueError whose text completes "The file ..."."""
    if not 1 <= len(user.name.encode()) <= NAME_BYTES_MAX or not user.name.isprintable():
        raise ValueError(f"has a user name that is not 1 to {NAME_BYTES_MAX} printable bytes: {user.name!r}")
    if user.password is None and not user.subject and not user.access_keys:
        raise ValueError(f"gives user {user.name!r} neither a password nor a subject nor an access key")
    if len(user.scopes) > scopes_max:
        raise ValueError(f"gives user {user.name!r} more than {scopes_max} scopes (auth.scopes_max)")
    try:
        if user.namespace is not None:
            Name().read(user.namespace)
    except ValueError as error:
        raise ValueError(f"has user {user.name!r} in a namespace that {error}") from None
    for text in user.scopes:
        try:
            Scope.parse(text)
        except ValueError as error:
            raise ValueError(f"has a wrong scope for user {user.name!r}. {error}") from None
    if user.password is not None:
        _check_hash(user)
    _check_access_keys(user)


def _check_access_keys(user: User) -> None:
    if len(user.access_keys) > ACCESS_KEYS_MAX:
        raise ValueError(f"gives user {user.name!r} more than {ACCESS_KEYS_MAX} access keys")
    for key in user.access_keys:
        if not _KEY_ID.fullmatch(key.id):
            raise ValueError(f"has an access key of user {user.name!r} whose id is not 8 to 128 letters and digits")
        if not _KEY_SECRET.fullmatch(key.secret):
            raise ValueError(f"has an access key of user {user.name!r} whose secret is not 32 to 128 ASCII characters")


def _check_hash(user: User) -> None:
    match = _PHC.fullmatch(user.password or "")
    if match is None:
        raise ValueError(f"has a password of user {user.name!r} that is not an argon2id hash")
    memory_kib, passes = int(match[1]), int(match[2])
    if memory_kib > HASH_MEMORY_MAX_KIB or passes > HASH_PASSES_MAX:
        raise ValueError(
            f"has a password of user {user.name!r} that asks for more than 1 GiB or {HASH_PASSES_MAX} passes"
        )
