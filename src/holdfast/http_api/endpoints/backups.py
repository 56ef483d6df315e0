"""Backups of a node that works, for `holdfast backup`."""

from __future__ import annotations

import msgspec

from holdfast import wire
from holdfast.errors import BackupFailed, LimitExceeded
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response
from holdfast.http_api.server.routes import Right, Routes

ROUTES = Routes("Health and stats")
CONTENT_TYPE = b"application/vnd.holdfast.backup"

_request = msgspec.json.Decoder(wire.BackupRequest)


@ROUTES(
    "POST",
    "/api/v1/backup",
    Right.NODE,
    body=wire.BackupRequest,
    response_types=(CONTENT_TYPE.decode(),),
    errors=(BackupFailed, LimitExceeded),
    act="node.backup",
    waits=True,
)
async def backup(request: Request) -> Response:
    """Send a consistent backup of the store and the lake, of all namespaces, payloads too. Use `holdfast backup`.

    The response is a sequence of files: a line of JSON with `file` and `size_bytes`, then so many bytes. The first line
    has `begin`: what is backed up, and its position in the journal; the last one has `end`, without which it is cut
    short. The node works on meanwhile; one backup is made at a time.
    """
    taking = await request.node.backups.take(await request.json(_request))
    return Response(taking.parts(), 200, CONTENT_TYPE, close=taking.close)
