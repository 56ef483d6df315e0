"""Groups of a queue, and cursor groups: reading a queue as a log."""

from __future__ import annotations

import msgspec

from holdfast import wire
from holdfast.auth.principal import Action
from holdfast.core.queue import GroupKind, check_name
from holdfast.engine.cursors import CursorEnd
from holdfast.errors import (
    ArrowMissing,
    CursorOutOfRange,
    GroupExists,
    GroupNotFound,
    InvalidArgument,
    LimitExceeded,
    QueueNotFound,
    WrongGroupKind,
)
from holdfast.http_api.codecs.arrow_request import MEDIA_TYPE
from holdfast.http_api.codecs.arrow_response import MESSAGES, choose, write_messages
from holdfast.http_api.codecs.shapes import group_to_wire, message_to_wire
from holdfast.http_api.codecs.values import ID_MAX, duration
from holdfast.http_api.server.request import OFFLOAD_MESSAGES, Request
from holdfast.http_api.server.response import ARROW, Response, response
from holdfast.http_api.server.routes import Right, Routes

ROUTES = Routes("Groups")
COUNT_MAX = 1 << 40

_create = msgspec.json.Decoder(wire.GroupCreate)
_read = msgspec.json.Decoder(wire.CursorRead)
_commit = msgspec.json.Decoder(wire.CursorCommit)


def _group(request: Request) -> str:
    return check_name(request.parameters[1], "group")


@ROUTES("GET", "/api/v1/queues/{name}/groups", Right.ANY, gives=wire.GroupList, errors=(QueueNotFound,))
async def list_all(request: Request) -> Response:
    """List the groups of a queue."""
    return response(wire.GroupList([group_to_wire(group) for group in request.node.queues.get(request.queue).groups]))


@ROUTES(
    "PUT",
    "/api/v1/queues/{name}/groups/{group}",
    Right.CONSUME,
    body=wire.GroupCreate,
    gives=wire.Group,
    errors=(QueueNotFound, GroupExists, LimitExceeded),
)
async def create(request: Request) -> Response:
    """Create a group by hand. Creating one that is there already, of the same kind, changes nothing."""
    body = await request.json(_create, b"{}")
    name, group = request.queue, _group(request)
    age = duration(body.max_lag_age, "max_lag_age")
    if not 0 <= body.max_lag_messages <= COUNT_MAX:
        raise InvalidArgument(field="max_lag_messages", problem=f"is 0 to {COUNT_MAX}")
    try:
        record = await request.node.groups.create(
            name,
            group,
            GroupKind(body.kind),
            earliest=None if body.start is None else body.start == "earliest",
            max_lag_messages=body.max_lag_messages,
            max_lag_age=age,
            by_consumer=not request.principal.may(Action.ADMIN, name[1]),
        )
    except GroupExists:
        known = request.node.queues.get(name).group(group)
        if known is None or (known.kind.value, known.max_lag_messages, known.max_lag_age) != (
            body.kind,
            body.max_lag_messages,
            age,
        ):
            raise
        record = known
    return response(group_to_wire(record))


@ROUTES(
    "DELETE",
    "/api/v1/queues/{name}/groups/{group}",
    Right.ADMIN,
    status=204,
    errors=(QueueNotFound, GroupNotFound),
    act="group.delete",
)
async def delete(request: Request) -> Response:
    """Delete a group. What only it still needed goes with it."""
    await request.node.groups.delete(request.queue, _group(request))
    return Response(status=204)


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/groups/{group}/read",
    Right.CONSUME,
    body=wire.CursorRead,
    gives=wire.CursorRange,
    response_types=(MEDIA_TYPE,),
    errors=(QueueNotFound, WrongGroupKind, CursorOutOfRange, LimitExceeded, ArrowMissing),
)
async def read(request: Request) -> Response:
    """Read a range of sequences of one partition, in order, without leasing anything.

    The same range can be read again until the group commits past it. The group appears if it is new.
    As an Arrow stream what is not a message is in headers (`Holdfast-Next`, …) and in the schema's metadata.
    """
    body = await request.json(_read, b"{}")
    for field, sequence in (("first", body.first), ("until", body.until)):
        if not 0 <= sequence <= ID_MAX:
            raise InvalidArgument(field=field, problem="is a sequence, or 0")
    columns = choose(body.columns, MESSAGES)
    found = await request.node.cursors.read(
        request.queue, _group(request), body.partition, body.first, body.limit, body.max_bytes, body.until
    )
    if request.accepts(MEDIA_TYPE):
        facts = {
            "next": found.next_seq,
            "committed": found.committed,
            "high": found.high,
            "lost_from": found.lost_from,
            "lost_to": found.lost_to,
        }
        headers = [(b"holdfast-" + name.replace("_", "-").encode(), b"%d" % fact) for name, fact in facts.items()]

        def make() -> Response:
            rows = [(body.partition, message) for message in found.messages]
            return Response(write_messages(rows, facts, columns), 200, ARROW, headers)
    else:

        def make() -> Response:
            return response(
                wire.CursorRange(
                    messages=[message_to_wire(message, body.partition, body.encoding) for message in found.messages],
                    next=found.next_seq,
                    committed=found.committed,
                    high=found.high,
                    lost_from=found.lost_from,
                    lost_to=found.lost_to,
                )
            )

    return await request.offload(len(found.messages) > OFFLOAD_MESSAGES, make)


@ROUTES(
    "GET",
    "/api/v1/queues/{name}/groups/{group}/ends",
    Right.CONSUME,
    gives=wire.CursorEnds,
    errors=(QueueNotFound, GroupNotFound, WrongGroupKind),
)
async def ends(request: Request) -> Response:
    """Show what a cursor group can read now, by partition. It costs the same at any depth."""
    return _ends(await request.node.cursors.ends(request.queue, _group(request), create=False))


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/groups/{group}/ends",
    Right.CONSUME,
    gives=wire.CursorEnds,
    errors=(QueueNotFound, WrongGroupKind, LimitExceeded),
)
async def ends_created(request: Request) -> Response:
    """Show the same, after creating the group, as a cursor group, if it is new."""
    return _ends(await request.node.cursors.ends(request.queue, _group(request)))


def _ends(found: list[CursorEnd]) -> Response:
    result = [
        wire.CursorEnd(
            partition=end.partition,
            first=end.first,
            committed=end.committed,
            end=end.end,
            lost_from=end.lost_from,
            lost_to=end.lost_to,
        )
        for end in found
    ]
    return response(wire.CursorEnds(result))


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/groups/{group}/commit",
    Right.CONSUME,
    body=wire.CursorCommit,
    gives=wire.CursorCommitted,
    errors=(QueueNotFound, GroupNotFound, WrongGroupKind, CursorOutOfRange),
)
async def commit(request: Request) -> Response:
    """Commit a cursor group: it needs nothing up to and including these sequences.

    Partitions are committed one after another; if one is refused, those before it stay committed.
    """
    body = await request.json(_commit)
    name, group = request.queue, _group(request)
    for position in body.positions:
        if not 0 <= position.sequence <= ID_MAX:
            raise InvalidArgument(field="sequence", problem="is a sequence that was read")
    positions = {position.partition: position.sequence for position in body.positions}
    return response(wire.CursorCommitted(await request.node.cursors.commit_many(name, group, positions)))
