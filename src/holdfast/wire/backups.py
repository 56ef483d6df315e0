"""What a client of a backup has already."""

from __future__ import annotations

import msgspec


class BackupRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What need not be sent, because an earlier backup has it."""

    have: dict[str, str] = {}
    """Files of the store by their names, with the fingerprint that the server gave them."""
    segments: int = 0
    """The first so many entries of the lake's manifest, with their segments."""
    segments_hash: str = ""
    """SHA-256 of the last of these entries: if it is another one now, all segments are sent."""
    lake: bool = True
    """Send the lake's segments."""
