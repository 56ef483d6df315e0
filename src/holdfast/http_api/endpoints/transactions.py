"""Transactions over HTTP."""

from __future__ import annotations

from functools import partial

import msgspec
from msgspec.structs import replace

from holdfast import wire
from holdfast.auth.principal import Action
from holdfast.broker.parts.transactions import TransactionView
from holdfast.core.commands import Draft
from holdfast.core.queue import check_name
from holdfast.core.transactions import TransactionName
from holdfast.errors import (
    ArrowMissing,
    Forbidden,
    HoldfastError,
    InvalidArgument,
    LimitExceeded,
    MessageTooLarge,
    QueueFull,
    QueueNotFound,
    TransactionIncomplete,
    TransactionNotFound,
    TransactionPublished,
)
from holdfast.http_api.codecs.arrow_request import MEDIA_TYPE, read_drafts
from holdfast.http_api.codecs.json_slices import BulkArray, Steps, cut, is_cheap, read_bulk
from holdfast.http_api.codecs.shapes import read_staged
from holdfast.http_api.codecs.trace_headers import traced
from holdfast.http_api.codecs.values import decode
from holdfast.http_api.endpoints.messages import PAYLOADS
from holdfast.http_api.server.request import OFFLOAD_BYTES, Request
from holdfast.http_api.server.response import Response, response
from holdfast.http_api.server.routes import Right, Routes
from holdfast.units import format_instant

ROUTES = Routes("Transactions")
PROTOCOL = "http"
CHUNK_MAX = (1 << 31) - 1

_stage = msgspec.json.Decoder(wire.Stage)
_stage_batch = msgspec.json.Decoder(wire.StageBatch).decode
_staged = msgspec.json.Decoder(list[wire.StagedMessage]).decode
_publish = msgspec.json.Decoder(wire.Publish)

BATCHES = BulkArray(b"batches", (), "One stage", "batches")
MESSAGES = BulkArray(b"messages", PAYLOADS, "One stage", "messages")

Batches = list[tuple[str, list[Draft]]]


class StageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For an Arrow stream: what in JSON stands in the body."""

    queue: str = ""
    """Where its rows are to go."""
    part: str = ""
    attempt: str = ""
    chunk: int = 0


@ROUTES(
    "POST",
    "/api/v1/transactions/{transaction}/stage",
    Right.PRODUCE_SOMEWHERE,
    body=wire.Stage,
    query=StageQuery,
    request_types=(MEDIA_TYPE,),
    gives=wire.Staged,
    errors=(
        QueueNotFound,
        MessageTooLarge,
        LimitExceeded,
        TransactionPublished,
        ArrowMissing,
        Forbidden,
    ),
    bulk=True,
)
async def stage(request: Request) -> Response:
    """Stage messages: stored, but not visible until the transaction is published.

    All messages of a request are staged, or none; `errors` counts them through all batches. Needs the right to produce
    to each queue, and to each `source_queue` that they name. What is never published expires.
    """
    query = request.query(StageQuery)
    name = _name(request)
    if request.content_type == MEDIA_TYPE:
        limit = request.api.config.limits.enqueue_max
        raw, correlation_id = await request.body(), request.given_correlation_id
        drafts = await request.offload(
            len(raw) > OFFLOAD_BYTES, lambda: read_drafts(raw, correlation_id, limit, sourced=True)
        )
        batches: Batches = [(query.queue, list(traced(request, drafts)))]
        part, attempt, chunk = query.part, query.attempt, query.chunk
    else:
        raw = await request.body()
        request.check_json()
        if is_cheap(raw):
            body, batches = await request.offload(len(raw) > OFFLOAD_BYTES, lambda: _read(request, raw))
        else:
            body, batches = _drafts_of(request, await request.api.in_slices(_read_in_slices(request, raw)))
        part, attempt, chunk = body.part, body.attempt, body.chunk
    if not 0 <= chunk <= CHUNK_MAX:
        raise InvalidArgument(field="chunk", problem=f"is 0 to {CHUNK_MAX}")
    for queue, _ in batches:
        request.principal.require(Action.PRODUCE, check_name(queue))
    for source in {draft.extra.origin.source_queue for _, drafts in batches for draft in drafts if draft.extra.origin}:
        request.principal.require_source(source)
    sizes = [len(draft.payload) for _, part_of in batches for draft in part_of]
    request.api.gate.admit(request.namespace, len(sizes), sum(sizes))
    receipt = await request.node.transactions.stage(name, batches, part=part, attempt=attempt, chunk=chunk)
    if receipt.errors:
        starts = [sum(len(before) for _, before in batches[:at]) for at in range(len(batches))]
        raise request.refused({starts[batch] + index: error for (batch, index), error in receipt.errors.items()})
    return response(
        wire.Staged(
            messages=receipt.messages,
            size_bytes=receipt.size_bytes,
            expires_at=format_instant(receipt.expires_at),
            repeated=receipt.repeated,
        )
    )


def _read(request: Request, raw: bytes) -> tuple[wire.Stage, Batches]:
    return _drafts_of(request, request.decoded(_stage, raw))


def _read_in_slices(request: Request, raw: bytes) -> Steps[wire.Stage]:
    limits, http = request.api.config.limits, request.api.config.http
    found = yield from cut(raw, BATCHES, limits.enqueue_max)
    batches: list[wire.StageBatch] = []
    left = limits.enqueue_max
    for start, end in found.elements:
        messages: list[wire.StagedMessage] = []
        take = partial(_take, messages)
        rest = yield from read_bulk(raw[start:end], MESSAGES, left, http.max_request_bytes, take)
        left -= len(messages)
        batches.append(replace(decode(_stage_batch, rest), messages=messages))
    return replace(decode(_stage.decode, found.rest), batches=batches)


def _take(messages: list[wire.StagedMessage], chunk: bytes) -> None:
    messages += decode(_staged, chunk)


def _drafts_of(request: Request, body: wire.Stage) -> tuple[wire.Stage, Batches]:
    now, correlation_id = request.node.clock(), request.given_correlation_id
    batches: Batches = []
    errors: dict[int, HoldfastError] = {}
    count = 0
    for batch in body.batches:
        drafts: list[Draft] = []
        for item in batch.messages:
            try:
                drafts.append(read_staged(item, now, correlation_id))
            except HoldfastError as error:
                errors[count] = error
            count += 1
        batches.append((batch.queue, list(traced(request, drafts))))
    if errors:
        raise request.refused(errors)
    return body, batches


@ROUTES(
    "POST",
    "/api/v1/transactions/{transaction}/publish",
    Right.PRODUCE_SOMEWHERE,
    body=wire.Publish,
    gives=wire.Transaction,
    errors=(QueueFull, QueueNotFound, TransactionNotFound, TransactionIncomplete, LimitExceeded, Forbidden),
    bulk=True,
    waits=True,
)
async def publish(request: Request) -> Response:
    """Make everything that was staged visible together, exactly once.

    Needs the right to produce to each queue. The response is sent when all of it is in its queues and durable.
    Publishing again is answered as the first time.
    """
    body = await request.json(_publish, b"{}")
    _demand(request)
    return response(_to_wire(await request.node.transactions.publish(_name(request), body.parts, protocol=PROTOCOL)))


@ROUTES(
    "POST",
    "/api/v1/transactions/{transaction}/abort",
    Right.PRODUCE_SOMEWHERE,
    gives=wire.Aborted,
    errors=(TransactionPublished, Forbidden),
)
async def abort(request: Request) -> Response:
    """Remove what was staged. The id may be used again. Needs the right to produce to each queue."""
    _demand(request)
    return response(wire.Aborted(await request.node.transactions.abort(_name(request))))


@ROUTES(
    "GET",
    "/api/v1/transactions/{transaction}",
    Right.PRODUCE_SOMEWHERE,
    gives=wire.Transaction,
    errors=(TransactionNotFound,),
)
async def get(request: Request) -> Response:
    """Show a transaction that is open, or was published and is remembered."""
    return response(_to_wire(await request.node.transactions.get(_name(request))))


def _name(request: Request) -> TransactionName:
    """The caller's own transaction of that id."""
    return TransactionName(request.namespace, request.parameters[0], request.principal.owner)


def _demand(request: Request) -> None:
    """Require the right to produce to each queue of the transaction."""
    try:
        view = request.node.transactions.view(_name(request))
    except TransactionNotFound:
        return
    for queue in view.queues:
        request.principal.require(Action.PRODUCE, queue)


def _to_wire(view: TransactionView) -> wire.Transaction:
    return wire.Transaction(
        id=view.id,
        state=view.state.value,
        created_at=format_instant(view.created_at),
        ends_at=format_instant(view.ends_at),
        messages=view.messages,
        size_bytes=view.size_bytes,
        parts=[
            wire.TransactionPart(
                part=part.part,
                attempt=part.attempt,
                chunks=part.chunks,
                messages=part.messages,
                size_bytes=part.size_bytes,
            )
            for part in view.parts
        ],
        published_at=format_instant(view.published_at) if view.published_at else None,
        published=view.published,
        duplicates=view.duplicates,
        dropped=view.dropped,
        repeated=view.repeated,
    )
