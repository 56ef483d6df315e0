"""The signature of a request that is here whole."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from holdfast.auth.signatures.head import Signature, refused

_UNRESERVED: Final = "-_.~"


class SignedRequest(NamedTuple):
    """What a signature covers. Names of headers are in lower case; path and query are as they were sent."""

    method: str
    path: str
    query: bytes
    headers: Mapping[bytes, bytes]
    body: bytes


def check(signature: Signature, secret: str, request: SignedRequest) -> None:
    """Raises Unauthenticated if the request was not signed with that secret, or was changed on its way."""
    canonical = "\n".join(
        [
            request.method,
            quote(request.path, safe="/~"),
            _canonical_query(request.query),
            *[f"{name}:{_canonical_value(request.headers, name)}" for name in signature.headers],
            "",
            ";".join(signature.headers),
            hashlib.sha256(request.body).hexdigest(),
        ]
    )
    date, region, service = signature.scope
    text = "\n".join(
        [
            "AWS4-HMAC-SHA256",
            signature.at,
            f"{date}/{region}/{service}/aws4_request",
            hashlib.sha256(canonical.encode()).hexdigest(),
        ]
    )
    key = f"AWS4{secret}".encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    expected = hmac.digest(key, text.encode(), "sha256").hex()
    if not hmac.compare_digest(expected.encode(), signature.digest.encode()):
        raise refused("mismatch", "the signature is not that of this request with the secret of its access key")


def _canonical_value(headers: Mapping[bytes, bytes], name: str) -> str:
    return " ".join(headers.get(name.encode("latin-1"), b"").decode("utf-8", "replace").split())


def _canonical_query(query: bytes) -> str:
    if not query:
        return ""
    pairs = [part.partition(b"=") for part in query.split(b"&")]
    return "&".join(
        f"{name}={value}"
        for name, value in sorted(
            (quote(unquote_to_bytes(name), safe=_UNRESERVED), quote(unquote_to_bytes(value), safe=_UNRESERVED))
            for name, _, value in pairs
        )
    )
