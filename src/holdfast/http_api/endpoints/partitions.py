"""Partitions of a queue, looked at one by one: what many readers share out among themselves."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast import wire
from holdfast.engine.browse import SequenceRange
from holdfast.errors import ArrowMissing, InvalidArgument, QueueNotFound
from holdfast.http_api.codecs.arrow_request import MEDIA_TYPE
from holdfast.http_api.codecs.arrow_response import DELIVERIES, MESSAGES, ArrowRow, choose, write_rows
from holdfast.http_api.codecs.conditions import Test, read_conditions
from holdfast.http_api.codecs.shapes import view_to_wire
from holdfast.http_api.codecs.values import ID_MAX, instant
from holdfast.http_api.server.request import OFFLOAD_MESSAGES, Request
from holdfast.http_api.server.response import ARROW, Response, response
from holdfast.http_api.server.routes import Right, Routes

ROUTES = Routes("Partitions")


class BoundsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From when on."""

    since: str = ""
    """Only what was enqueued at this instant or later, by the server's clock."""


@ROUTES(
    "GET",
    "/api/v1/queues/{name}/partitions",
    Right.CONSUME,
    query=BoundsQuery,
    gives=wire.PartitionList,
    errors=(QueueNotFound,),
)
async def list_all(request: Request) -> Response:
    """Show between which sequences each partition has messages. It costs the same at any depth."""
    query = request.query(BoundsQuery)
    since = instant(query.since, "since") if query.since else 0
    found = await request.node.inspection.bounds(request.queue, since)
    return response(wire.PartitionList([wire.Partition(one.partition, one.first, one.end) for one in found]))


class RangeQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to look at."""

    view: Literal["messages", "deliveries"] = "messages"
    """`deliveries`: as an Arrow stream, a row for each group that a message is for."""
    first: int = 0
    """The sequence to start at."""
    until: int = 0
    """The sequence to stop before; `0`: the end."""
    limit: int = 1000
    """How many records to look at; those that are not live any more, or do not match, count too."""
    gone: bool = False
    """Also messages that nobody needs any more, as long as the journal has not taken them: to watch what passes through
    a queue. They have no `deliveries`. Not with the view `deliveries`."""
    max_bytes: int = 8 << 20
    """About how many bytes of payload to look at."""
    columns: str = ""
    """Of an Arrow stream: which, with commas between; empty: all."""
    where: str = ""
    """Conditions that all must hold, as JSON: `[["priority","<=",5],["key","in",["a","b"]]]`. Operators are `=`, `<`,
    `<=`, `>`, `>=`, `in`, `null` and `not null`."""
    encoding: wire.Encoding = "auto"


@ROUTES(
    "GET",
    "/api/v1/queues/{name}/partitions/{partition}/messages",
    Right.CONSUME,
    query=RangeQuery,
    gives=wire.MessageRange,
    response_types=(MEDIA_TYPE,),
    errors=(QueueNotFound, ArrowMissing),
)
async def browse(request: Request) -> Response:
    """Browse live messages of one partition by sequence. Nothing is leased or changed.

    A range may hold fewer messages than `limit`, even none: continue at `next` until it is 0. In an Arrow stream
    `next` is in the header `Holdfast-Next`.
    """
    query = request.query(RangeQuery)
    for field, sequence in (("first", query.first), ("until", query.until)):
        if not 0 <= sequence <= ID_MAX:
            raise InvalidArgument(field=field, problem="is a sequence, or 0")
    if query.max_bytes < 1:
        raise InvalidArgument(field="max_bytes", problem="is at least 1")
    if not request.parameters[1].isdecimal():
        raise InvalidArgument(field="partition", problem="is a number")
    partition = int(request.parameters[1][:9])
    deliveries = query.view == "deliveries"
    tests = read_conditions(query.where, deliveries)
    known = DELIVERIES if deliveries else MESSAGES
    columns = choose([name for name in query.columns.split(",") if name], known)
    found = await request.node.inspection.browse_range(
        request.queue, partition, query.first, query.until, query.limit, query.max_bytes, query.gone and not deliveries
    )
    as_arrow = request.accepts(MEDIA_TYPE)

    def make() -> Response:
        return _range_response(found, partition, query, columns, tests, as_arrow=as_arrow)

    return await request.offload(len(found.messages) > OFFLOAD_MESSAGES, make)


def _range_response(
    found: SequenceRange, partition: int, query: RangeQuery, columns: list[str], tests: list[Test], *, as_arrow: bool
) -> Response:
    deliveries = query.view == "deliveries"
    if as_arrow:
        rows: list[ArrowRow] = (
            [(partition, message, status) for message, statuses in found.messages for status in statuses]
            if deliveries
            else [(partition, message, None) for message, _ in found.messages]
        )
        if tests:
            rows = [row for row in rows if all(test(row) for test in tests)]
        body = write_rows(rows, {"next": found.next_seq}, columns, DELIVERIES if deliveries else MESSAGES)
        return Response(body, 200, ARROW, [(b"holdfast-next", b"%d" % found.next_seq)])
    result = [
        view_to_wire(message, partition, statuses, query.encoding)
        for message, statuses in found.messages
        if any(
            all(test((partition, message, status)) for test in tests) for status in (statuses if deliveries else [None])
        )
    ]
    return response(wire.MessageRange(result, found.next_seq))
