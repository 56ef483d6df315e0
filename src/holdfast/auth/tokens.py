"""Tokens: JWTs signed with one of our keys.

    sub     who (needed)                      ns      namespace; the node's own if there is none
    exp     end (needed unless a setting says otherwise)
    nbf     not before                        scope   `produce:orders/# consume:bills`, or a list of such texts
    iss     issuer, if one is configured      aud     audience, if one is configured; refused if none is

Scopes that are not ours (`openid`, say) grant nothing and do no harm. The header chooses a key by `kid` and names the
key's own algorithm; nothing else in it is looked at, and what asks to be understood (`crit`) is refused.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from typing import Final

import msgspec

from holdfast.auth.keyring import Key, Keyring
from holdfast.auth.principal import Principal, Scope
from holdfast.config import AuthSettings
from holdfast.config.kinds import Name
from holdfast.errors import Unauthenticated
from holdfast.units import INSTANT_MAX, SECOND, format_duration

SUBJECT_BYTES_MAX: Final = 255

_FORM = re.compile(r"[A-Za-z0-9_-]{1,}\.[A-Za-z0-9_-]{1,}\.[A-Za-z0-9_-]{1,}")
_TYPES: Final = ("jwt", "at+jwt", "application/at+jwt")


class Header(msgspec.Struct, frozen=True):
    """What is looked at before the signature is known to be good."""

    alg: str
    kid: str | None = None
    typ: str | None = None
    crit: object = None
    b64: object = None


class Claims(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is looked at after it. Others are left alone."""

    sub: str | None = None
    ns: str | None = None
    scope: str | list[str] | None = None
    iss: str | None = None
    aud: str | list[str] | None = None
    exp: int | float | None = None
    nbf: int | float | None = None
    iat: int | float | None = None
    jti: str | None = None


class Token(msgspec.Struct, frozen=True):
    """A token whose signature is good. What it says has not been judged yet."""

    header: Header
    claims: Claims
    key: Key


def looks_like_token(text: str) -> bool:
    """Whether a password is more likely a token: it has the form, and begins as JSON in base64 does."""
    return text.startswith("eyJ") and _FORM.fullmatch(text) is not None


def sign(claims: Claims, key: Key) -> str:
    """A token in the usual form."""
    from holdfast.auth import keys  # noqa: PLC0415 - a server without keys does without its libraries

    header = {"typ": "JWT", "alg": key.algorithm}
    if key.kid or key.algorithm != "HS256":  # a secret's thumbprint is not for others
        header["kid"] = key.kid or key.thumbprint
    return keys.sign(header, msgspec.json.encode(claims), key)


def header_of(text: str, bytes_max: int) -> Header:
    """Reads the header of a token that nobody has vouched for. Raises Unauthenticated."""
    if len(text) > bytes_max:
        raise Unauthenticated(problem=f"the token is longer than {bytes_max} bytes")
    if not _FORM.fullmatch(text):
        raise Unauthenticated(problem="the token does not have the form of a JWT")
    raw = text.partition(".")[0]
    try:
        header = msgspec.json.decode(urlsafe_b64decode(raw + "=" * (-len(raw) % 4)), type=Header)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise Unauthenticated(problem="the token's header cannot be read") from None
    if (
        header.crit is not None
        or header.b64 is not None
        or (header.typ is not None and header.typ.lower() not in _TYPES)
    ):
        raise Unauthenticated(problem="the token's header asks for something that is not understood here")
    return header


def check_signature(text: str, keyring: Keyring, bytes_max: int) -> Token:
    """Raises Unauthenticated unless one of our keys signed it, with the key's own algorithm."""
    header = header_of(text, bytes_max)
    candidates = keyring.fitting(header.alg, header.kid)
    if not candidates:
        raise Unauthenticated(problem="no key here fits the token's `alg` and `kid`")
    from holdfast.auth import keys  # noqa: PLC0415 - see `sign`

    for key in candidates:
        payload = keys.signed_payload(text, key)
        if payload is not None:
            return Token(header, _claims(payload), key)
    raise Unauthenticated(problem="the token's signature is not good")


def _claims(payload: bytes) -> Claims:
    try:
        return msgspec.json.decode(payload, type=Claims)
    except msgspec.ValidationError as error:
        raise Unauthenticated(problem=f"the token's claims are not good: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Unauthenticated(problem="the token's claims cannot be read") from None


def principal(token: Token, settings: AuthSettings, namespace: str, now: int) -> Principal:
    """Who a token stands for. Raises Unauthenticated if it is too old, too new, or meant for somebody else."""
    claims = token.claims
    expires_at = _check_times(claims, settings, now)
    _check_parties(claims, settings, token.key.from_issuer)
    if not claims.sub or not claims.sub.isprintable() or len(claims.sub.encode()) > SUBJECT_BYTES_MAX:
        raise Unauthenticated(problem=f"the token's `sub` must have 1 to {SUBJECT_BYTES_MAX} printable bytes")
    try:
        home = Name().read(claims.ns) if claims.ns is not None else namespace
    except ValueError as error:
        raise Unauthenticated(problem=f"the token's `ns` {error}") from None
    granted, _ = scopes_of(claims)
    if len(granted) > settings.scopes_max:
        raise Unauthenticated(problem=f"the token has more than {settings.scopes_max} scopes (auth.scopes_max)")
    return Principal(
        name=claims.sub,
        namespace=home,
        scopes=tuple(granted),
        method="oidc" if token.key.from_issuer else "token",
        expires_at=expires_at,
        credential=token.key.credential,
        token_id=claims.jti or "",
    )


def scopes_of(claims: Claims) -> tuple[list[Scope], list[str]]:
    """What is granted, and what of the claim is not ours."""
    texts = claims.scope.split() if isinstance(claims.scope, str) else claims.scope or []
    granted: list[Scope] = []
    foreign: list[str] = []
    for text in texts:
        try:
            granted.append(Scope.parse(text))
        except ValueError:
            foreign.append(text)
    return granted, foreign


def _check_times(claims: Claims, settings: AuthSettings, now: int) -> int | None:
    leeway = settings.token_leeway
    if claims.exp is None and settings.token_expiry_required:
        raise Unauthenticated(problem="the token has no end (`exp`), and this server wants one")
    if claims.nbf is not None and now + leeway < claims.nbf * SECOND:
        raise Unauthenticated(problem="the token is not valid yet (`nbf`)")
    if claims.exp is None:
        return None
    if now >= claims.exp * SECOND + leeway:
        raise Unauthenticated(problem="the token has expired (`exp`)")
    issued_at = now if claims.iat is None else min(claims.iat * SECOND, now)
    if claims.exp * SECOND - issued_at > settings.token_lifetime_max + leeway:
        longest = format_duration(settings.token_lifetime_max)
        raise Unauthenticated(problem=f"the token is valid for longer than {longest} (auth.token_lifetime_max)")
    return int(min(claims.exp * SECOND + leeway, INSTANT_MAX))


def _check_parties(claims: Claims, settings: AuthSettings, from_issuer: bool) -> None:
    issuer = (from_issuer and settings.oidc_issuer) or settings.token_issuer
    if issuer and claims.iss != issuer:
        raise Unauthenticated(problem="the token is from another issuer (`iss`)")
    audience = [claims.aud] if isinstance(claims.aud, str) else claims.aud or []
    if settings.token_audience:
        if settings.token_audience not in audience:
            raise Unauthenticated(problem="the token is meant for somebody else (`aud`)")
    elif claims.aud is not None:
        raise Unauthenticated(problem="the token is meant for an audience (`aud`), and this server has no name for one")
