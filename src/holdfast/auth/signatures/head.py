"""What the head of a request says about its signature."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from holdfast.errors import Unauthenticated
from holdfast.units import MINUTE, SECOND

SCHEME: Final = b"aws4-hmac-sha256"
SKEW_MAX: Final = 15 * MINUTE
"""By how much the clock of a client may differ from the server's, as at AWS. A request that somebody recorded can be
sent again for so long; TLS keeps it from being recorded."""

_PARTS = re.compile(r"(Credential|SignedHeaders|Signature)=([^,\s]+)")
_TIME: Final = "%Y%m%dT%H%M%SZ"


class Signature(NamedTuple):
    """What the head of a request says about its signature."""

    key_id: str
    scope: tuple[str, str, str]  # date, region, service
    at: str
    headers: tuple[str, ...]
    digest: str


def read(headers: Mapping[bytes, bytes]) -> Signature:
    """The signature in a head. Raises Unauthenticated if it is none, or does not cover what it has to."""
    parts = dict(_PARTS.findall(headers.get(b"authorization", b"").decode("latin-1")))
    key_id, *scope = parts.get("Credential", "").split("/")
    names = tuple(parts.get("SignedHeaders", "").split(";"))
    at = headers.get(b"x-amz-date", b"").decode("latin-1")
    if len(scope) != 4 or scope[3] != "aws4_request" or not key_id or "Signature" not in parts or not at:
        raise refused("incomplete", "the Authorization header is no whole AWS4-HMAC-SHA256 signature with X-Amz-Date")
    needed = {"host", *[name.decode("latin-1") for name in headers if name.startswith(b"x-amz-")]}
    if unsigned := sorted(needed - set(names)):
        raise refused("incomplete", f"the signature does not cover the header {unsigned[0]}")
    return Signature(key_id, (scope[0], scope[1], scope[2]), at, names, parts["Signature"])


def check_time(signature: Signature, now: int) -> None:
    """Raises Unauthenticated if the request was signed too long ago, or in the future."""
    try:
        signed_at = int(datetime.strptime(signature.at, _TIME).replace(tzinfo=UTC).timestamp()) * SECOND
    except (ValueError, OverflowError):
        raise refused("incomplete", "X-Amz-Date is not a time like 20260131T235959Z") from None
    if abs(now - signed_at) > SKEW_MAX or not signature.at.startswith(signature.scope[0]):
        raise refused("expired", f"the request was not signed within 15 minutes of now; it says {signature.at}")


def refused(reason: str, problem: str) -> Unauthenticated:
    """`reason` is for a front, which may have an error of its own for it."""
    return Unauthenticated(problem=problem, reason=reason)
