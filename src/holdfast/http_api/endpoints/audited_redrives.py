"""Redrives under an id: dead letters are moved once, and the redrive can be inspected and undone."""

from __future__ import annotations

from functools import partial

import msgspec

from holdfast import wire
from holdfast.auth.fronts.redrive_rights import check_destination
from holdfast.auth.principal import Action
from holdfast.core.audits import Audit
from holdfast.engine.audited_redrive import RedriveResult, Rights
from holdfast.errors import AuditNotFound, InvalidArgument, LimitExceeded, NoDeadQueue, QueueNotFound
from holdfast.http_api.codecs.json_slices import BulkArray, is_cheap, read_bulk
from holdfast.http_api.codecs.values import decode, read_id
from holdfast.http_api.endpoints.dead_letters import dead_queue
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response, response
from holdfast.http_api.server.routes import Right, Routes
from holdfast.units import format_instant

ROUTES = Routes("Dead letters")
DEAD_LETTERS_MAX = 1_000  # of one request: half a second's work at most

_move = msgspec.json.Decoder(wire.AuditedMove).decode
_audited = msgspec.json.Decoder(list[wire.AuditedDeadLetter]).decode

DEAD_LETTERS = BulkArray(b"dead_letters", (b"base64",), "One request", "dead letters")
_undo = msgspec.json.Decoder(wire.UndoPage)


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/dlq/audits/{audit}",
    Right.ADMIN,
    body=wire.AuditedMove,
    gives=wire.RedriveOutcomes,
    errors=(QueueNotFound, NoDeadQueue, LimitExceeded),
    act="dlq.redrive",
    bulk=True,
)
async def move(request: Request) -> Response:
    """Redrive dead letters under an id, each once however often the request is repeated.

    Every message gets the property `holdfast-redrive` with the id. A dead letter is replaced by its message in
    one step, so that a request may be repeated: the response has the outcome of each dead letter. The caller must be
    allowed to produce to, or administer, the queue that it goes to, and to produce to it where a payload is replaced.
    In a dead queue that several queues share, a queue has its own dead letters and ids.
    """
    body = await _read_move(request)
    dead, source = dead_queue(request)
    check_destination(request.node, request.principal, body.to)
    if len(body.dead_letters) > DEAD_LETTERS_MAX:
        raise LimitExceeded(what="One request", limit=f"{DEAD_LETTERS_MAX} dead letters", advice="Send several")
    outcomes = await request.node.dead_letters.audited_redrive(
        dead,
        request.parameters[1],
        {read_id(dead_letter.id, "id"): dead_letter.base64 for dead_letter in body.dead_letters},
        to=body.to,
        by=request.principal.identity,
        note=body.note,
        source=source,
        rights=_rights(request),
    )
    return response(wire.RedriveOutcomes([_outcome_to_wire(outcome) for outcome in outcomes]))


async def _read_move(request: Request) -> wire.AuditedMove:
    raw = await request.body()
    request.check_json()
    if is_cheap(raw):
        return decode(_move, raw)
    found: list[wire.AuditedDeadLetter] = []
    limit = request.api.config.http.max_request_bytes
    work = read_bulk(raw, DEAD_LETTERS, DEAD_LETTERS_MAX, limit, lambda chunk: found.extend(decode(_audited, chunk)))
    return msgspec.structs.replace(decode(_move, await request.api.in_slices(work)), dead_letters=found)


@ROUTES(
    "GET",
    "/api/v1/queues/{name}/dlq/audits",
    Right.ADMIN,
    gives=wire.RedriveAudits,
    errors=(QueueNotFound, NoDeadQueue),
)
async def list_all(request: Request) -> Response:
    """List the redrives under an id of a queue's dead letters, newest first."""
    audits = request.node.dead_letters.audits(*dead_queue(request))
    return response(wire.RedriveAudits([_to_wire(audit) for audit in audits]))


@ROUTES(
    "GET",
    "/api/v1/queues/{name}/dlq/audits/{audit}",
    Right.ADMIN,
    gives=wire.RedriveAudit,
    errors=(QueueNotFound, NoDeadQueue, AuditNotFound),
)
async def get(request: Request) -> Response:
    """Show who began a redrive, when and why, and how many dead letters it moved."""
    dead, source = dead_queue(request)
    return response(_to_wire(request.node.dead_letters.audit(dead, request.parameters[1], source)))


class DeadLettersQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters."""

    cursor: str = ""
    """Where the page before ended."""
    limit: int = DEAD_LETTERS_MAX


@ROUTES(
    "GET",
    "/api/v1/queues/{name}/dlq/audits/{audit}/dead-letters",
    Right.ADMIN,
    query=DeadLettersQuery,
    gives=wire.RedriveOutcomes,
    errors=(QueueNotFound, NoDeadQueue, AuditNotFound),
)
async def dead_letters(request: Request) -> Response:
    """List the dead letters that a redrive moved, with the status of their messages."""
    query = request.query(DeadLettersQuery)
    after, limit = _place(query.cursor, query.limit)
    dead, source = dead_queue(request)
    outcomes = await request.node.dead_letters.redriven(dead, request.parameters[1], after, limit, source=source)
    return response(_page(outcomes, limit))


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/dlq/audits/{audit}/undo",
    Right.ADMIN,
    body=wire.UndoPage,
    gives=wire.RedriveOutcomes,
    errors=(QueueNotFound, NoDeadQueue, AuditNotFound),
    act="dlq.undo",
)
async def undo(request: Request) -> Response:
    """Undo a redrive for the messages that nobody has consumed: they are dead letters again.

    A dead letter has its own payload and properties again, and a new id. The response has the outcome of each; messages
    that are leased, settled or dead are left as they are. Needs `admin` on the queues that they are taken out of too.
    """
    body = await request.json(_undo, b"{}")
    after, limit = _place(body.cursor, body.limit)
    dead, source = dead_queue(request)
    outcomes = await request.node.dead_letters.undo_redrive(
        dead, request.parameters[1], after, limit, source=source, rights=_rights(request)
    )
    return response(_page(outcomes, limit))


def _rights(request: Request) -> Rights:
    principal = request.principal
    return Rights(
        put=principal.require_put,
        produce=partial(principal.require, Action.PRODUCE),
        take=partial(principal.require, Action.ADMIN),
    )


def _place(cursor: str, limit: int) -> tuple[int, int]:
    if not 1 <= limit <= DEAD_LETTERS_MAX:
        raise InvalidArgument(field="limit", problem=f"is 1 to {DEAD_LETTERS_MAX}")
    return read_id(cursor, "cursor") if cursor else 0, limit


def _page(outcomes: list[RedriveResult], limit: int) -> wire.RedriveOutcomes:
    cursor = str(outcomes[-1].dead_letter) if len(outcomes) == limit else ""
    return wire.RedriveOutcomes([_outcome_to_wire(outcome) for outcome in outcomes], cursor)


def _outcome_to_wire(outcome: RedriveResult) -> wire.RedriveOutcome:
    error = outcome.error
    return wire.RedriveOutcome(
        dead_letter=str(outcome.dead_letter),
        outcome=outcome.status.value,
        queue=outcome.queue,
        message=str(outcome.message) if outcome.message else "",
        again=str(outcome.again) if outcome.again else "",
        code=error.code if error is not None else "",
        problem=str(error) if error is not None else "",
        retryable=error is not None and error.retryable,
    )


def _to_wire(audit: Audit) -> wire.RedriveAudit:
    return wire.RedriveAudit(
        id=audit.id,
        dead_queue=audit.dead_queue,
        by=audit.by,
        note=audit.note,
        to=audit.to,
        began_at=format_instant(audit.began_at),
        changed_at=format_instant(audit.changed_at),
        moved=audit.moved,
        undone=audit.undone,
    )
