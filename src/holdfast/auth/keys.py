"""Reads and makes the keys that tokens are signed and checked with, and uses them.

A key has one algorithm, which follows from what the key is, never from what a token says:

    RSA, 2048 to 8192 bits   RS256        EC, curve P-256   ES256
    OKP, Ed25519             EdDSA        oct, 32 bytes     HS256

So a token cannot choose to be checked with a public key as if it were a secret, or not at all. A key file is a PEM
file (public keys, private keys, certificates), a JWK or a JWKS. A secret is never a bare text in a file: anything that
is not one of these is refused, since it may be a public key in another format.
"""

from __future__ import annotations

import re
import secrets
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate
from joserfc import jws
from joserfc.errors import JoseError, SecurityWarning, UnsupportedAlgorithmError
from joserfc.jwa import JWSAlgModel
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from holdfast.auth.keyring import Key, Keyring
from holdfast.auth.watch import Emptied
from holdfast.config.secret import SecretText

JoseKey = RSAKey | ECKey | OKPKey | OctKey
ALGORITHMS: Final = ("EdDSA", "ES256", "RS256", "HS256")

RSA_BITS: Final = range(2048, 8193)
"""Below it RSA is broken by those who can afford it; above it checking a signature takes longer than it should."""

SECRET_BYTES_MIN: Final = 32
"""As long as the hash (RFC 7518, 3.2)."""

_PEM_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.+?-----END \1-----", re.DOTALL)
_NOT_OURS: Final = ("alg", "use", "key_ops", "kid", "x5c", "x5t", "x5t#S256", "x5u", "ext")


def from_secret(secret: SecretText) -> Key:
    """The key of `auth.token_secret`. Raises ValueError if it is a public key."""
    encoded = urlsafe_b64encode(secret.reveal().encode()).rstrip(b"=").decode()
    return _bound(_import({"kty": "oct", "k": encoded}), None)


def generate(algorithm: str) -> Key:
    """A new key with its private part."""
    match algorithm:
        case "RS256":
            jose: JoseKey = RSAKey.generate_key(3072)
        case "ES256":
            jose = ECKey.generate_key("P-256")
        case "EdDSA":
            jose = OKPKey.generate_key("Ed25519")
        case _:
            jose = OctKey.generate_key(SECRET_BYTES_MIN * 8)
    return _bound(jose, secrets.token_urlsafe(9))


def read(content: bytes, keys_max: int) -> Keyring:
    """The keys in a file's content, or ValueError whose text completes "The file ...". Nothing in it is quoted: it may
    be secret."""
    stripped = content.strip()
    if stripped.startswith(b"{"):
        return _from_json(stripped, keys_max)
    blocks = [(block[1], block[0]) for block in _PEM_BLOCK.finditer(content)]
    if not blocks:
        problem = ValueError if stripped else Emptied
        raise problem("holds no key: it must be PEM, a JWK or a JWKS; `holdfast token key` makes one")
    if len(blocks) > keys_max:
        raise ValueError(f"holds more than {keys_max} keys (auth.keys_max)")
    return Keyring(keys=tuple(_from_pem(kind, block) for kind, block in blocks if kind != b"EC PARAMETERS"))


def read_issuers(content: bytes, keys_max: int) -> Keyring:
    """The keys that an identity provider publishes, or ValueError whose text completes "The answer ...". What could
    sign is no key for checking: a secret, or a private key that should not be there."""
    try:
        found = _from_json(content, keys_max)
    except Emptied as error:
        return Keyring(skipped=(str(error),))
    public = tuple(msgspec.structs.replace(key, from_issuer=True) for key in found.keys if not key.can_sign)
    private = tuple(f"key {key.kid or ''} is not public" for key in found.keys if key.can_sign)
    return Keyring(public, (*found.skipped, *private))


def _from_pem(kind: bytes, block: bytes) -> Key:
    try:
        if kind == b"CERTIFICATE":
            native: object = load_pem_x509_certificate(block).public_key()
        elif kind.endswith(b"PUBLIC KEY"):
            native = load_pem_public_key(block)
        elif kind.endswith(b"PRIVATE KEY"):
            native = load_pem_private_key(block, password=None)
        else:
            raise ValueError(f"holds PEM of a kind that is no key: {kind.decode()}")
    except TypeError:
        raise ValueError("holds a private key with a passphrase; remove it") from None
    except ValueError as error:
        raise ValueError(str(error) if "holds" in str(error) else "holds PEM that cannot be read") from None
    match native:
        case RSAPublicKey() | RSAPrivateKey():
            if native.key_size not in RSA_BITS:
                raise ValueError(f"holds an RSA key of {native.key_size} bits; 2048 to 8192 are needed")
            return _bound(RSAKey.import_key(native), None)
        case EllipticCurvePublicKey() | EllipticCurvePrivateKey():
            return _bound(ECKey.import_key(native), None)
        case Ed25519PublicKey() | Ed25519PrivateKey():
            return _bound(OKPKey.import_key(native), None)
        case _:
            raise ValueError("holds a key that is neither RSA, EC nor Ed25519")


def _from_json(content: bytes, keys_max: int) -> Keyring:
    try:
        document = msgspec.json.decode(content, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise ValueError("is not JSON") from None
    if "keys" not in document:
        return Keyring(keys=(_from_jwk(document),))
    entries = document["keys"]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("is no JWKS: `keys` must be a list of objects")
    if len(entries) > keys_max:
        raise ValueError(f"holds more than {keys_max} keys (auth.keys_max)")
    keys: list[Key] = []
    skipped: list[str] = []
    for index, entry in enumerate(entries):
        try:
            keys.append(_from_jwk(entry))
        except ValueError as error:
            skipped.append(f"key {index} {error}")
    if not keys:
        raise Emptied("holds no key of use: " + ("; ".join(skipped) or "it is empty"))
    return Keyring(tuple(keys), tuple(skipped))


def _from_jwk(jwk: dict[str, object]) -> Key:
    """Only what the key is matters; what it says about its use is checked and left out."""
    if jwk.get("use", "sig") != "sig":
        raise ValueError("is not for signatures")
    operations = jwk.get("key_ops")
    if isinstance(operations, list) and not {"verify", "sign"} & {str(operation) for operation in operations}:
        raise ValueError("is not for signatures")
    kid = jwk.get("kid")
    if kid is not None and not (isinstance(kid, str) and 1 <= len(kid) <= 255):
        raise ValueError("has a `kid` that is not text of 1 to 255 characters")
    key = _bound(_import(jwk), kid)
    if jwk.get("alg", key.algorithm) not in key.names:
        raise ValueError(f"is for another algorithm than {key.algorithm}")
    return key


def _import(jwk: dict[str, object]) -> JoseKey:
    kinds: dict[object, type[RSAKey] | type[ECKey] | type[OKPKey] | type[OctKey]] = {
        "RSA": RSAKey,
        "EC": ECKey,
        "OKP": OKPKey,
        "oct": OctKey,
    }
    kind = kinds.get(jwk.get("kty"))
    if kind is None:
        raise ValueError("has a `kty` that is not RSA, EC, OKP or oct")
    material = {name: value for name, value in jwk.items() if name not in _NOT_OURS}
    if not all(isinstance(value, str) for value in material.values()):
        raise ValueError("has parts that are not text")
    try:
        # What the library only warns of (a short key, a public key as a secret) is no key for us.
        with warnings.catch_warnings():
            warnings.simplefilter("error", SecurityWarning)
            return kind.import_key(material)  # type: ignore[arg-type]
    except (JoseError, SecurityWarning, ValueError, KeyError, TypeError):
        raise ValueError("cannot be read, or is too weak") from None


def _bound(jose: JoseKey, kid: str | None) -> Key:
    match jose:
        case RSAKey():
            if jose.raw_value.key_size not in RSA_BITS:
                raise ValueError(f"is an RSA key of {jose.raw_value.key_size} bits; 2048 to 8192 are needed")
            algorithm = "RS256"
        case ECKey():
            if jose.curve_name != "P-256":
                raise ValueError(f"is on the curve {jose.curve_name}; P-256 is needed")
            algorithm = "ES256"
        case OKPKey():
            if jose.curve_name != "Ed25519":
                raise ValueError(f"is on the curve {jose.curve_name}; Ed25519 is needed")
            algorithm = "EdDSA"
        case _:
            if len(jose.raw_value) < SECRET_BYTES_MIN:
                raise ValueError(f"is a secret of less than {SECRET_BYTES_MIN} bytes")
            algorithm = "HS256"
    return Key(jose, algorithm, jose.thumbprint(), kid)


def as_document(keys: Iterable[dict[str, object]]) -> bytes:
    """A JWKS, indented."""
    return msgspec.json.format(msgspec.json.encode({"keys": list(keys)}), indent=2) + b"\n"


# --- signatures -----------------------------------------------------------------------------------------------------


class _OneAlgorithm(JWSRegistry):
    """The library's rules with the key's algorithm instead of a list to choose from."""

    max_header_length = 4096
    max_signature_length = 2048

    def __init__(self, key: Key) -> None:
        super().__init__(strict_check_header=False)
        self._key = key

    def get_alg(self, name: str) -> JWSAlgModel:
        if name not in self._key.names:
            raise UnsupportedAlgorithmError(name)
        return self.algorithms[self._key.algorithm]


def sign(header: dict[str, str], payload: bytes, key: Key) -> str:
    """A token (JWS, compact)."""
    return jws.serialize_compact(header, payload, key.jose, registry=_OneAlgorithm(key))


def signed_payload(text: str, key: Key) -> bytes | None:
    """What a token says, or None if it was not signed with this key."""
    try:
        return jws.deserialize_compact(text, key.jose, registry=_OneAlgorithm(key)).payload
    except (JoseError, ValueError, RecursionError):
        return None
