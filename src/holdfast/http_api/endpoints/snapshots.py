"""A consistent point of a node that works: what `holdfast pipeline reconcile` compares the journal with."""

from __future__ import annotations

from holdfast.errors import CopyUnsupported, LimitExceeded, SnapshotFailed
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import ARROW, Response
from holdfast.http_api.server.routes import Right, Routes

ROUTES = Routes("Health and stats")


@ROUTES(
    "GET",
    "/api/v1/snapshot",
    Right.NODE,
    response_types=("application/vnd.apache.arrow.stream",),
    errors=(CopyUnsupported, LimitExceeded, SnapshotFailed),
    act="node.snapshot",
    waits=True,
)
async def snapshot(request: Request) -> Response:
    """Take everything that is live at one point of the journal, of all namespaces, as two Arrow streams in a row.

    The first has a row for each live delivery: `namespace`, `queue`, `partition`, `group`, `message_id`, `state` and
    `attempt`; its schema's metadata `holdfast.snapshot` is JSON with `node`, `last_lsn` (the point), `exported_lsn` and
    `queues`. The second has the journal's rows up to that point that were not in the lake, as segments have them. The
    node works on meanwhile; one snapshot is taken at a time.
    """
    taking = await request.node.snapshots.take()
    return Response(taking.parts(), 200, ARROW, close=taking.close)
