"""Addresses of webhooks: which are valid, and how they are shown without the credentials in them."""

from __future__ import annotations

import re
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


def hide_credentials(address: str) -> str:
    """The address as it is shown."""
    return _CREDENTIALS.sub(HIDDEN, address)
