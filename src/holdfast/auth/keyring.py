"""The keys in force, each bound to its algorithm (keys.py says how). Without keys no library for them is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from holdfast.auth.keys import JoseKey


class Key(msgspec.Struct, frozen=True):
    """One key, bound to its algorithm."""

    jose: JoseKey
    algorithm: str
    thumbprint: str
    """RFC 7638: names the key by what it is. Of a secret it is a hash, and stays inside."""

    kid: str | None = None
    from_issuer: bool = False
    """Fetched from the identity provider, and so for its tokens only."""

    @property
    def credential(self) -> str:
        """What callers are authenticated by whose tokens it has signed."""
        return f"{'oidc' if self.from_issuer else 'key'}:{self.thumbprint}"

    @property
    def names(self) -> tuple[str, ...]:
        """The `alg` values that mean its algorithm; RFC 9864 gave EdDSA with this curve a second name."""
        return ("EdDSA", "Ed25519") if self.algorithm == "EdDSA" else (self.algorithm,)

    @property
    def can_sign(self) -> bool:
        return self.jose.is_private

    def public(self) -> dict[str, object]:
        """As a JWK without its private part."""
        if self.algorithm == "HS256":
            raise TypeError("a secret has no public part")
        return self._named(self.jose.as_dict(private=False))

    def private(self) -> dict[str, object]:
        """As a JWK with everything."""
        return self._named(self.jose.as_dict(private=True))

    def _named(self, jwk: object) -> dict[str, object]:
        assert isinstance(jwk, dict)
        return {**jwk, "kid": self.kid or self.thumbprint, "alg": self.algorithm, "use": "sig"}


class Keyring(msgspec.Struct, frozen=True):
    """All keys in force."""

    keys: tuple[Key, ...] = ()
    skipped: tuple[str, ...] = ()
    """Keys of a JWKS that are of no use here, and why. Those of an identity provider are for many purposes."""

    def fitting(self, algorithm: str, kid: str | None) -> list[Key]:
        """The keys that a token with this header may be signed with. A named key is taken by its name; keys without a
        name fit a token with any, but come after: a stranger's name for a key must not hide one of ours."""
        fitting = [key for key in self.keys if algorithm in key.names]
        if kid is None:
            return fitting
        named = [key for key in fitting if kid in (key.kid, key.thumbprint)]
        return named + [key for key in fitting if key.kid is None and key not in named]

    def signing(self) -> Key | None:
        """The first key that can sign."""
        return next((key for key in self.keys if key.can_sign), None)
