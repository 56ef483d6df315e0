"""Styles and scripts, as files of this package: read once, packed once, and kept by browsers.

The address of a file has a hash of its content, so that a browser may keep it for ever and still has the new one after
an upgrade.
"""

from __future__ import annotations

import gzip
import hashlib
from importlib import resources
from typing import Final, NamedTuple

from holdfast.http_api.server.response import Header, Response

KINDS: Final = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
}
FOR_EVER: Final = b"public, max-age=31536000, immutable"
VERSION_DIGITS: Final = 12


class Asset(NamedTuple):
    content: bytes
    packed: bytes
    content_type: bytes
    version: str


class Assets:
    """See the module."""

    def __init__(self) -> None:
        folder = resources.files("holdfast.console").joinpath("static")
        self._assets = {
            file.name: _asset(file.name, file.read_bytes())
            for file in folder.iterdir()
            if "." + file.name.rpartition(".")[2] in KINDS
        }

    def url(self, name: str) -> str:
        return f"/static/{name}?v={self._assets[name].version}"

    def response(self, name: str, *, takes_gzip: bool) -> Response | None:
        """The file; None if there is none of this name."""
        asset = self._assets.get(name)
        if asset is None:
            return None
        headers: list[Header] = [(b"cache-control", FOR_EVER), (b"vary", b"accept-encoding")]
        if takes_gzip:
            headers.append((b"content-encoding", b"gzip"))
        return Response(asset.packed if takes_gzip else asset.content, 200, asset.content_type, headers)


def _asset(name: str, content: bytes) -> Asset:
    version = hashlib.sha256(content).hexdigest()[:VERSION_DIGITS]
    return Asset(content, gzip.compress(content, mtime=0), KINDS["." + name.rpartition(".")[2]], version)
