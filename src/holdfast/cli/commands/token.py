"""`holdfast token`: create signing keys and tokens, inspect and revoke tokens."""

from __future__ import annotations

import base64
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.support.confirm import confirm, yes_option
from holdfast.cli.support.options import config_file, output_format
from holdfast.cli.support.output import show_json, show_note, show_rows, show_table
from holdfast.cli.support.secrets import ask_secret
from holdfast.config import AuthSettings, Config, load
from holdfast.config.kinds import Name
from holdfast.errors import InvalidArgument, Unauthenticated
from holdfast.units import DAY, SECOND, format_instant, parse_duration

if TYPE_CHECKING:
    from holdfast.auth.keyring import Keyring
    from holdfast.auth.revoked import Revocation

# The libraries that sign are imported by the commands that need them: the others should start quickly.

TTL_MAX = 3660 * DAY
"""Ten years. A token can be revoked only where the server has auth.revoked_file, so it should not live as long as
that."""

key_option = click.option(
    "--key",
    "key_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The key file. [default: the setting auth.key_file, else auth.token_secret]",
)


@click.group()
def token() -> None:
    """Create and inspect tokens (JWT), and the keys they are signed with."""


@token.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--algorithm",
    type=click.Choice(["EdDSA", "ES256", "RS256", "HS256"]),
    default="EdDSA",
    show_default=True,
    help="What the key is for. All but HS256 have a public part, so that servers need not know the secret one.",
)
@click.option(
    "--public",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the public parts of all keys in FILE to this file, for servers to check with.",
)
@click.option("--append", is_flag=True, help="Put the new key before those in FILE; tokens of the others stay valid.")
def key(file: Path, algorithm: str, public: Path | None, append: bool) -> None:
    """Create a key and write it to FILE, which only its owner may read.

    To rotate keys: `--append` the new one, wait until the old one's tokens have expired, then delete the old one from
    the file. A running server reloads the file by itself.
    """
    from holdfast.auth import files, keys  # noqa: PLC0415

    if public is not None and algorithm == "HS256":
        raise click.UsageError("HS256 has one secret for signing and checking: there is no public part.")
    if file.exists() and not append:
        raise InvalidArgument(field=f"Key file {file}", problem="exists already; --append adds a key to it")
    old = _read_keys(file, AuthSettings().keys_max).keys if append and file.exists() else ()
    if any(not key.can_sign for key in old):
        raise InvalidArgument(field=f"Key file {file}", problem="holds public keys only; append to the private one")
    made = (keys.generate(algorithm), *old)
    try:
        files.replace(file, keys.as_document(key.private() for key in made))
        if public is not None:
            printed = [key.public() for key in made if key.algorithm != "HS256"]
            files.replace(public, keys.as_document(printed), files.PUBLIC)
    except OSError as error:
        raise InvalidArgument(
            field=f"Key file {error.filename or file}", problem=f"cannot be written: {error}"
        ) from error
    show_note(f"Wrote {file}: {algorithm}, kid {made[0].kid}. Keep it secret.")
    if public is not None:
        show_note(f"Wrote {public}: give servers this one (auth.key_file).")


@token.command()
@click.option("--subject", required=True, help="Who the token is for; the user's name in the audit log.")
@click.option(
    "--scope", "scopes", multiple=True, help="What it allows, like produce:orders/#. May be given several times."
)
@click.option(
    "--node",
    is_flag=True,
    help="Allow what is the server's own, over all namespaces: metrics, health, quotas, and snapshots and backups,"
    " which have every payload. Short for --scope node.",
)
@click.option("--namespace", help="The namespace it is for. [default: the server's node.namespace]")
@click.option("--ttl", default="1h", show_default=True, help="How long it is valid: 15m, 12h, 30d, or none for ever.")
@key_option
@output_format
@config_file
def create(
    subject: str,
    scopes: tuple[str, ...],
    node: bool,
    namespace: str | None,
    ttl: str,
    key_path: Path | None,
    output: str,
    config_path: Path | None,
) -> None:
    """Create a token and print it on standard output.

    Issuer and audience are those of the settings auth.token_issuer and auth.token_audience.
    """
    from holdfast.auth import tokens  # noqa: PLC0415

    loaded = load(config_path, os.environ)
    settings = loaded.auth
    signing = _keyring(settings, key_path).signing()
    if signing is None:
        raise InvalidArgument(field="The key file", problem="holds public keys only; a token needs the private one")
    scopes += ("node",) if node else ()
    now = time.time_ns() // 1000
    until = _until(ttl, now, settings)
    claims = tokens.Claims(
        sub=subject,
        ns=_namespace(namespace),
        scope=_scopes(scopes, settings),
        iss=settings.token_issuer or None,
        aud=settings.token_audience or None,
        iat=now // SECOND,
        exp=until // SECOND if until is not None else None,
        jti=secrets.token_hex(16),
    )
    text = tokens.sign(claims, signing)
    try:  # a token that the same settings would refuse is useless
        checked = tokens.check_signature(text, _keyring(settings, key_path), settings.token_bytes_max)
        tokens.principal(checked, settings, loaded.node.namespace, now)
    except Unauthenticated as error:
        raise click.UsageError(
            f"No server with these settings would accept this token: {error.details['problem']}."
        ) from None
    if output == "table":
        click.echo(text)
    else:
        printed: dict[str, object] = {
            "token": text,
            "id": claims.jti,
            "subject": subject,
            "namespace": claims.ns,
            "scopes": list(scopes),
            "expires_at": format_instant(until) if until is not None else None,
            "algorithm": signing.algorithm,
            "kid": signing.kid,
        }
        show_rows("jsonl", [], [printed]) if output == "jsonl" else show_json(printed)
    if not scopes:
        show_note("The token has no scopes and allows nothing: give --scope or --node.")


@token.command()
@key_option
@output_format
@config_file
def inspect(key_path: Path | None, output: str, config_path: Path | None) -> None:
    """Show the claims of a token and whether the server would accept it.

    The token is prompted for at a terminal, or read from standard input. Exit code 1 if it would not be accepted.
    """
    loaded = load(config_path, os.environ)
    text = ask_secret("Token").strip().removeprefix("Bearer ").strip()
    if len(text) > loaded.auth.token_bytes_max:
        raise Unauthenticated(problem=f"the token is longer than {loaded.auth.token_bytes_max} bytes")
    printed = {"header": _part(text, 0), "claims": _part(text, 1), **_verdict(text, loaded, key_path)}
    if output == "table":
        rows = [
            [f"{group} {name}", _plain(name, value)]
            for group in ("header", "claims")
            for name, value in _items(printed[group])
        ]
        rows += [[name, _plain(name, printed[name])] for name in ("scopes", "ignored", "valid", "problem")]
        show_table(["what", "value"], rows)
    else:
        show_rows("jsonl", [], [printed]) if output == "jsonl" else show_json(printed)
    if printed["problem"] is not None:
        raise Unauthenticated(problem=printed["problem"])


@token.command()
@click.option("--id", "token_id", help="The token's `jti`, instead of the token itself.")
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file of revoked tokens. [default: the setting auth.revoked_file]",
)
@yes_option
@config_file
def revoke(token_id: str | None, path: Path | None, yes: bool, config_path: Path | None) -> None:
    """Revoke a token before it expires.

    The token is prompted for at a terminal, or read from standard input; `token inspect` shows its id (`jti`). Servers
    whose setting auth.revoked_file names the same file reload it by themselves, refuse the token, and close connections
    that were made with it.
    """
    from holdfast.auth import files, revoked  # noqa: PLC0415

    settings = load(config_path, os.environ).auth
    path = path or settings.revoked_file
    if path is None:
        raise click.UsageError("Which file? Give --file, or set auth.revoked_file.")
    found = revoked.Revocation(jti=token_id) if token_id else _revocation()
    confirm(f"Revoke the token {found.jti}{f' of {found.sub}' if found.sub else ''}?", yes)
    try:
        with files.locked(path):
            known = _read_revoked(path, settings)
            kept = revoked.still_needed(list({**known, found.jti: found}.values()), time.time())
            files.replace(path, revoked.as_document(kept))
    except OSError as error:
        raise InvalidArgument(field=f"File {path}", problem=f"cannot be written: {error}") from error
    show_note(f"Wrote {path}: the token {found.jti} is no longer valid. Revoked: {len(kept):,}.")


def _read_revoked(path: Path | None, settings: AuthSettings) -> dict[str, Revocation]:
    from holdfast.auth import revoked  # noqa: PLC0415

    if path is None or not path.exists():
        return {}
    try:
        return revoked.read(path.read_bytes(), settings.revoked_max)
    except ValueError as error:
        raise InvalidArgument(field=f"File {path}", problem=str(error)) from None


def _revocation() -> Revocation:
    """The claims of a token that is read. Its signature is not checked: who can write the file may revoke any."""
    from holdfast.auth.revoked import Revocation  # noqa: PLC0415

    claims = dict(_items(_part(ask_secret("Token").strip().removeprefix("Bearer ").strip(), 1)))
    token_id, subject, end = claims.get("jti"), claims.get("sub"), claims.get("exp")
    if not isinstance(token_id, str) or not token_id:
        raise InvalidArgument(
            field="The token", problem="has no id (`jti`): it ends only when it expires or the key is changed"
        )
    return Revocation(
        jti=token_id,
        sub=subject if isinstance(subject, str) else "",
        exp=end if isinstance(end, int | float) else None,
    )


def _verdict(text: str, loaded: Config, key_path: Path | None) -> dict[str, object]:
    from holdfast.auth import tokens  # noqa: PLC0415

    try:
        checked = tokens.check_signature(text, _keyring(loaded.auth, key_path), loaded.auth.token_bytes_max)
        granted, foreign = tokens.scopes_of(checked.claims)
        verdict: dict[str, object] = {"scopes": [str(scope) for scope in granted], "ignored": foreign}
    except Unauthenticated as error:
        return {"scopes": None, "ignored": None, "valid": False, "problem": error.details["problem"]}
    try:
        tokens.principal(checked, loaded.auth, loaded.node.namespace, time.time_ns() // 1000)
    except Unauthenticated as error:
        return {**verdict, "valid": False, "problem": error.details["problem"]}
    if checked.claims.jti in _read_revoked(loaded.auth.revoked_file, loaded.auth):
        return {**verdict, "valid": False, "problem": "the token was revoked (auth.revoked_file)"}
    return {**verdict, "valid": True, "problem": None}


def _part(text: str, index: int) -> object:
    """A part of the token, unverified."""
    parts = text.split(".")
    try:
        raw = parts[index]
        return msgspec.json.decode(base64.urlsafe_b64decode(raw + "=" * (-len(raw) % 4)))
    except (IndexError, ValueError, RecursionError):
        return None


def _items(value: object) -> list[tuple[str, object]]:
    return list(value.items()) if isinstance(value, dict) else []


def _plain(name: str, value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "-"
    if name in ("exp", "nbf", "iat") and isinstance(value, int | float) and 0 <= value < 253_402_300_800:
        return f"{value} ({format_instant(int(value * SECOND))})"
    return "-" if value is None else str(value)


# --- options --------------------------------------------------------------------------------------------------------


def _keyring(settings: AuthSettings, path: Path | None) -> Keyring:
    from holdfast.auth import keyring, keys  # noqa: PLC0415

    path = path or settings.key_file
    if path is not None:
        return _read_keys(path, settings.keys_max)
    if not settings.token_secret:
        raise click.UsageError("Which key? Give --key, or set auth.key_file. `holdfast token key` creates one.")
    try:
        return keyring.Keyring((keys.from_secret(settings.token_secret),))
    except ValueError as error:
        raise InvalidArgument(field="The setting auth.token_secret", problem=str(error)) from None


def _read_keys(path: Path, keys_max: int) -> Keyring:
    from holdfast.auth import keys  # noqa: PLC0415

    try:
        return keys.read(path.read_bytes(), keys_max)
    except OSError as error:
        raise InvalidArgument(field=f"Key file {path}", problem=f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgument(field=f"Key file {path}", problem=str(error)) from error


def _scopes(texts: tuple[str, ...], settings: AuthSettings) -> str | list[str] | None:
    from holdfast.auth.principal import Scope  # noqa: PLC0415

    for text in texts:
        try:
            Scope.parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--scope") from None
    if len(texts) > settings.scopes_max:
        raise click.BadParameter(f"There are at most {settings.scopes_max} (auth.scopes_max).", param_hint="--scope")
    return list(texts) if any(" " in text for text in texts) else " ".join(texts) or None


def _namespace(name: str | None) -> str | None:
    try:
        return Name().read(name) if name is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--namespace") from None


def _until(ttl: str, now: int, settings: AuthSettings) -> int | None:
    if ttl == "none":
        if settings.token_expiry_required:
            raise click.BadParameter(
                "The server requires an expiry; the setting auth.token_expiry_required = false allows none.",
                param_hint="--ttl",
            )
        return None
    try:
        duration = parse_duration(ttl)
    except ValueError as error:
        raise click.BadParameter(f"It {error}.", param_hint="--ttl") from None
    if not SECOND <= duration <= TTL_MAX:
        raise click.BadParameter("It is from 1s to 3660d.", param_hint="--ttl")
    return now + duration
