"""Addresses that the server calls: which are valid, and how they are shown without the credentials in them."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

HIDDEN: Final = "********"

URL_LENGTH_MAX: Final = 2_048

_CREDENTIALS: Final = re.compile(r"(?<=//)[^/?#]*(?=@)|(?<=\?)[^#]+")
"""User and password, and the query: they hold what the receiver knows its caller by. Found in any text, also in one
that is no address."""


def is_web_address(text: str) -> bool:
    if len(text) > URL_LENGTH_MAX or not text.isprintable():
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number, a bracket that is not closed
        return False


def is_key_address(text: str, query: bool) -> bool:
    """Whether keys that others are trusted by may come from there: over TLS, or from this machine. Nothing in it is
    secret; `query`: it may have one."""
    if not is_web_address(text):
        return False
    parts = urlsplit(text)
    if "@" in parts.netloc or "#" in text or ("?" in text and not query) or " " in text:
        return False
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def hide_credentials(address: str) -> str:
    """The address as it is shown."""
    return _CREDENTIALS.sub(HIDDEN, address)


@lru_cache(maxsize=64)  # every request brings the name it was called by
def is_loopback(host: str) -> bool:
    """A name other than `localhost` is not looked up: what it means can change after the check."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
