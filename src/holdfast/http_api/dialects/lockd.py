"""lockd's queue API: `/v1/queue/` with `enqueue`, `dequeue`, `subscribe`, `ack`, `nack`, `extend`, `stats`, `watch`.

Deliveries come as multipart: a `meta` part with JSON and a `payload` part. A lease's identifier, fencing token and
metadata tag are all our lease token. Consumers share the group `default`; `owner` is the consumer's name. How long a
message is hidden and how often it is delivered is the queue's configuration here: an enqueue may ask for other values,
and its response has those that apply.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import Any, Final

import msgspec

from holdfast.auth.principal import Action
from holdfast.broker.dispatch.dispatcher import releases
from holdfast.core.commands import NO_ID, Draft, Leased, Settlement, Verb
from holdfast.core.queue import QueueConfig, check_name
from holdfast.core.records import Extra
from holdfast.engine.catalog import QueueName
from holdfast.errors import (
    Forbidden,
    HoldfastError,
    InvalidArgument,
    LeaseLost,
    LimitExceeded,
    MalformedRequest,
    MessageNotFound,
    MessageTooLarge,
    NamespaceForbidden,
    NothingReady,
    QueueFull,
    QueueNotFound,
    RequestTooLarge,
    StateChanged,
)
from holdfast.http_api.codecs.multipart import Limits, boundary_of, read_parts
from holdfast.http_api.codecs.raw_body import META_BYTES_MAX, OCTETS
from holdfast.http_api.codecs.shapes import read_consumer
from holdfast.http_api.codecs.trace_headers import traced
from holdfast.http_api.codecs.values import decode, read_id
from holdfast.http_api.dialects.lockd_shapes import (
    LockdAcked,
    LockdDequeue,
    LockdDequeued,
    LockdEnqueued,
    LockdEnqueueMeta,
    LockdExtend,
    LockdExtended,
    LockdLease,
    LockdMessage,
    LockdNack,
    LockdPlace,
    LockdRefusal,
    LockdRequeued,
    LockdStats,
    LockdWatched,
)
from holdfast.http_api.endpoints.streams import NO_BUFFERING, Stream, StreamQuery, open_stream
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import EVENTS, RETRY_AFTER_SECONDS, Header, Response, encode, response
from holdfast.http_api.server.routes import ErrorFormat, Handler, Right, Routes
from holdfast.units import SECOND

PROTOCOL: Final = "lockd"
GROUP: Final = "default"
ATTRIBUTES: Final = "lockd-attributes"
"""The property that keeps a message's attributes, as JSON: their values may be of any kind, those of properties not."""

PAGE_MAX: Final = 1_000
RELATED: Final = "multipart/related"

_CODES: Final[dict[type[HoldfastError], str]] = {LeaseLost: "queue_message_lease_mismatch"}


def error_response(error: HoldfastError, _content_type: str) -> Response:
    """An error as lockd says it."""
    code = _CODES.get(type(error), error.code)
    wait_ms = int(str(error.details.get("retry_after_ms", RETRY_AFTER_SECONDS * 1000)))
    wait = max(1, -(-wait_ms // 1000)) if error.retryable else 0
    return Response(encode(LockdRefusal(code, str(error), wait)), error.http)


ROUTES = Routes("lockd", ErrorFormat(error_response, LockdRefusal))


def _consuming(path: str, *errors: type[HoldfastError]) -> Callable[[Handler], Handler]:
    """A route that returns deliveries, or streams them."""
    return ROUTES(
        "POST",
        path,
        Right.CONSUME_SOMEWHERE,
        body=LockdDequeue,
        response_types=(RELATED,),
        errors=(QueueNotFound, *errors, Forbidden, NamespaceForbidden),
        waits=True,
    )


def _settling(path: str, body: type[LockdLease], gives: type[msgspec.Struct]) -> Callable[[Handler], Handler]:
    """A route that settles a delivery."""
    return ROUTES(
        "POST",
        path,
        Right.CONSUME_SOMEWHERE,
        body=body,
        gives=gives,
        errors=(QueueNotFound, LeaseLost, Forbidden, NamespaceForbidden),
    )


_enqueue_meta = msgspec.json.Decoder(LockdEnqueueMeta).decode
_place = msgspec.json.Decoder(LockdPlace)
_dequeue = msgspec.json.Decoder(LockdDequeue)
_lease = msgspec.json.Decoder(LockdLease)
_nack = msgspec.json.Decoder(LockdNack)
_extend = msgspec.json.Decoder(LockdExtend)
_attributes = msgspec.json.Decoder(dict[str, Any]).decode


# --- enqueue --------------------------------------------------------------------------------------------------------


@ROUTES(
    "POST",
    "/v1/queue/enqueue",
    Right.PRODUCE_SOMEWHERE,
    bulk=True,
    gives=LockdEnqueued,
    request_types=("multipart/form-data", RELATED),
    errors=(QueueNotFound, QueueFull, MessageTooLarge, RequestTooLarge, Forbidden, NamespaceForbidden),
)
async def enqueue(request: Request) -> Response:
    """Enqueue one message: a form with `meta` (JSON) and `payload`."""
    limits = Limits(
        {
            "meta": (META_BYTES_MAX, RequestTooLarge(limit_bytes=META_BYTES_MAX)),
            "payload": (request.api.config.http.max_request_bytes, RequestTooLarge()),
        }
    )
    parts = await read_parts(request.chunks(), boundary_of(request.header(b"content-type") or ""), limits)
    if "meta" not in parts:
        raise MalformedRequest(problem="the form has no part named meta")
    meta = decode(_enqueue_meta, bytes(parts["meta"].content))
    name = _queue(request, meta, Action.PRODUCE)
    payload = parts.get("payload")
    if request.header(b"idempotency-key") == "":
        raise InvalidArgument(field="Idempotency-Key", problem=NO_ID)
    content = bytes(payload.content) if payload is not None else b""
    kind = meta.payload_content_type or (payload.content_type if payload is not None else "")
    extra = Extra(
        message_id=request.header(b"idempotency-key"),
        properties=((ATTRIBUTES, encode(meta.attributes).decode()),) if meta.attributes else (),
        correlation_id=request.correlation_id,
        content_type=kind if kind not in {"", OCTETS} else None,
    )
    now = request.node.clock()
    deliver_at = now + meta.delay_seconds * SECOND if meta.delay_seconds else 0
    draft = Draft(
        content, deliver_at=deliver_at, ttl=meta.ttl_seconds * SECOND if meta.ttl_seconds else -1, extra=extra
    )
    request.api.gate.admit(name[0], 1, len(content))
    receipt = await request.node.messages.enqueue(name, traced(request, [draft]), PROTOCOL)
    if receipt.errors:
        raise receipt.errors[0]
    config = request.node.queues.get(name).config
    return response(
        LockdEnqueued(
            namespace=name[0],
            queue=name[1],
            message_id=str(receipt.ids[0]),
            attempts=0,
            max_attempts=_attempts_max(config),
            not_visible_until_unix=(deliver_at or now) // SECOND,
            visibility_timeout_seconds=config.delivery_timeout // SECOND,
            payload_bytes=len(content),
            correlation_id=request.correlation_id,
        )
    )


# --- consuming ------------------------------------------------------------------------------------------------------


@_consuming("/v1/queue/dequeue", NothingReady)
async def dequeue(request: Request) -> Response:
    """Lease deliveries, waiting for the first. If none becomes ready in time, the response is 409 `waiting`."""
    return await _dequeue_now(request, with_state=False)


@_consuming("/v1/queue/dequeueWithState", NothingReady)
async def dequeue_with_state(request: Request) -> Response:
    """Lease deliveries with their workflow state, which is made if there is none (`{}`).

    `meta` has its tag and lease. The state itself is at `/api/v1/queues/{name}/messages/{id}/state`. It is kept through
    retries and goes with a dead letter.
    """
    return await _dequeue_now(request, with_state=True)


async def _dequeue_now(request: Request, *, with_state: bool) -> Response:
    fields = await request.json(_dequeue)
    name = _queue(request, fields, Action.CONSUME)
    limits = request.api.config.limits
    wait = limits.max_wait if fields.wait_seconds == 0 else min(max(fields.wait_seconds, 0) * SECOND, limits.max_wait)
    work = request.node.messages.lease(
        name,
        GROUP,
        min(max(fields.page_size, 1), PAGE_MAX),
        timeout=fields.visibility_timeout_seconds * SECOND or -1,
        wait=wait,
        consumer=read_consumer(_owner(fields), request.principal),
        protocol=PROTOCOL,
    )

    async def release(found: list[Leased]) -> None:
        if found:
            await request.node.messages.settle(name, GROUP, releases(found))

    found = await request.api.until_disconnect(request, work, release) if wait else await work
    if not found:
        raise NothingReady(queue=name[1])
    boundary = secrets.token_hex(16)
    states = await _states(request, name, found) if with_state else {}
    body = _parts(request, name, found, states, boundary) + b"--%b--\r\n" % boundary.encode()
    return Response(body, 200, _content_type(boundary), _correlation(found[0]))


@_consuming("/v1/queue/subscribe", LimitExceeded)
async def subscribe(request: Request) -> Response:
    """Be sent deliveries as they become ready, for as long as the connection lasts, `page_size` unsettled at a time.

    What is not settled when the connection ends is released immediately.
    """
    return await _subscribe(request, with_state=False)


@_consuming("/v1/queue/subscribeWithState", LimitExceeded)
async def subscribe_with_state(request: Request) -> Response:
    """Be sent deliveries as they become ready, each with its workflow state, as `dequeueWithState` gives it."""
    return await _subscribe(request, with_state=True)


async def _subscribe(request: Request, *, with_state: bool) -> Response:
    fields = await request.json(_dequeue)
    name = _queue(request, fields, Action.CONSUME)
    query = StreamQuery(
        group=GROUP,
        credit=min(max(fields.page_size, 1), PAGE_MAX),
        timeout=f"{fields.visibility_timeout_seconds}s" if fields.visibility_timeout_seconds else "",
        consumer=_owner(fields),
    )
    stream = await open_stream(request, query, name, PROTOCOL)
    boundary = secrets.token_hex(16)
    body = _endless(stream, name, boundary, with_state=with_state)
    return Response(body, 200, _content_type(boundary), NO_BUFFERING, stream.close)


async def _endless(stream: Stream, name: QueueName, boundary: str, *, with_state: bool) -> AsyncIterator[bytes]:
    async with aclosing(stream.lines()) as lines:
        async for line in lines:
            if isinstance(line, HoldfastError):
                yield b"--%b--\r\n" % boundary.encode()
            elif line:
                states = await _states(stream.request, name, line) if with_state else {}
                yield _parts(stream.request, name, line, states, boundary)


async def _states(request: Request, name: QueueName, found: list[Leased]) -> dict[int, int]:
    """The tags of the deliveries' states; a delivery that has none is given an empty one."""
    tags: dict[int, int] = {}
    for leased, state in zip(found, await request.node.workflow_state.of_leased(name, GROUP, found), strict=True):
        if state is None:
            state = await request.node.workflow_state.put(name, GROUP, leased.message.id, leased.token, b"{}", 0)  # noqa: PLW2901
        tags[leased.message.id] = state.etag
    return tags


def _parts(request: Request, name: QueueName, found: list[Leased], states: dict[int, int], boundary: str) -> bytes:
    """Two parts for each delivery. Several in one response are distinguished by file names."""
    config = request.node.queues.get(name).config
    parts: list[bytes | str] = []
    for index, leased in enumerate(found):
        payload = leased.message.payload
        kind = _plain(leased.message.extra.content_type) or OCTETS
        several = len(found) > 1
        meta_name = f'name="meta"; filename="meta-{index}.json"' if several else 'name="meta"'
        payload_name = f'name="payload"; filename="payload-{index}"' if several else 'name="payload"'
        parts += [
            f"--{boundary}\r\nContent-Disposition: form-data; {meta_name}\r\nContent-Type: application/json\r\n\r\n",
            encode(LockdDequeued(_message(name, config, leased, states.get(leased.message.id)))),
            f"\n\r\n--{boundary}\r\nContent-Disposition: form-data; {payload_name}\r\n",
            f"Content-Length: {len(payload)}\r\nContent-Type: {kind}\r\n\r\n",
            payload,
            "\r\n",
        ]
    return b"".join(part if isinstance(part, bytes) else part.encode() for part in parts)


def _message(name: QueueName, config: QueueConfig, leased: Leased, state: int | None) -> LockdMessage:
    message = leased.message
    extra = message.extra
    attributes = next((value for key, value in extra.properties if key == ATTRIBUTES), "")
    return LockdMessage(
        namespace=name[0],
        queue=name[1],
        message_id=str(message.id),
        attempts=leased.attempt,
        max_attempts=_attempts_max(config),
        failure_attempts=leased.attempt - 1,
        not_visible_until_unix=leased.deadline // SECOND,
        visibility_timeout_seconds=config.delivery_timeout // SECOND,
        attributes=decode(_attributes, attributes.encode()) if attributes else {},
        payload_content_type=extra.content_type or OCTETS,
        payload_bytes=len(message.payload),
        correlation_id=extra.correlation_id or "",
        lease_id=str(leased.token),
        lease_expires_at_unix=leased.deadline // SECOND,
        fencing_token=leased.token,
        meta_etag=str(leased.token),
        state_etag="" if state is None else str(state),
        state_lease_id="" if state is None else str(leased.token),
        state_lease_expires_at_unix=0 if state is None else leased.deadline // SECOND,
        state_fencing_token=0 if state is None else leased.token,
    )


# --- settling -------------------------------------------------------------------------------------------------------


@_settling("/v1/queue/ack", LockdLease, LockdAcked)
async def ack(request: Request) -> Response:
    """Acknowledge a delivery: it is done and goes."""
    fields = await request.json(_lease)
    _, correlation_id = await _settle(request, fields, Verb.ACK)
    return response(LockdAcked(True, correlation_id))


@_settling("/v1/queue/nack", LockdNack, LockdRequeued)
async def nack(request: Request) -> Response:
    """Nack a delivery: as a failure, which spends an attempt, or deferred (`defer`), which does not.

    A deferred one with a delay is not seen before that has passed.
    """
    fields = await request.json(_nack)
    error = fields.last_error if isinstance(fields.last_error, str) else encode(fields.last_error).decode()
    delay = fields.delay_seconds * SECOND if fields.delay_seconds else -1
    if fields.intent == "defer":
        _, correlation_id = await _settle(request, fields, Verb.RELEASE, delay)
    else:
        _, correlation_id = await _settle(
            request, fields, Verb.NACK, delay, error if fields.last_error is not None else ""
        )
    return response(LockdRequeued(True, fields.meta_etag or fields.lease_id, correlation_id))


@_settling("/v1/queue/extend", LockdExtend, LockdExtended)
async def extend(request: Request) -> Response:
    """Hold a delivery for `extend_by_seconds` from now, or for the queue's own time."""
    fields = await request.json(_extend)
    timeout = fields.extend_by_seconds * SECOND if fields.extend_by_seconds else -1
    deadline, correlation_id = await _settle(request, fields, Verb.EXTEND, timeout=timeout)
    config = request.node.queues.get(_queue(request, fields, Action.CONSUME)).config
    seconds = fields.extend_by_seconds or config.delivery_timeout // SECOND
    return response(LockdExtended(deadline // SECOND, seconds, fields.meta_etag or fields.lease_id, correlation_id))


async def _settle(
    request: Request,
    fields: LockdLease,
    verb: Verb,
    delay: int = -1,
    error: str = "",
    timeout: int = -1,  # noqa: ASYNC109
) -> tuple[int, str]:
    """The new deadline, if it has one, and the message's own correlation id."""
    name = _queue(request, fields, Action.CONSUME)
    message_id = read_id(fields.message_id, "message_id")
    token = read_id(fields.lease_id, "lease_id")
    tokens = {fields.fencing_token, fields.state_fencing_token} - {0}
    if tokens - {token} or fields.state_lease_id not in {"", fields.lease_id}:
        raise LeaseLost(message_id=message_id)
    if fields.state_etag and verb is Verb.ACK:
        await _check_state(request, name, message_id, token, fields.state_etag)
    correlation_id = request.correlation_id
    with suppress(MessageNotFound):  # it may have been settled before: the response is the same
        _, message, _ = await request.node.inspection.find(name, message_id)
        correlation_id = message.extra.correlation_id or correlation_id
    settlement = Settlement(message_id, token, verb, delay, error, timeout)
    [result] = await request.node.messages.settle(name, GROUP, [settlement])
    if isinstance(result, HoldfastError):
        raise result
    return result or 0, correlation_id


async def _check_state(request: Request, name: QueueName, message_id: int, token: int, etag: str) -> None:
    """Refuse an ack that was made without the current state."""
    state = await request.node.workflow_state.get(name, GROUP, message_id, token)
    if state is None or str(state.etag) != etag:
        raise StateChanged(message_id=message_id, etag=0 if state is None else state.etag, given=etag)


# --- looking --------------------------------------------------------------------------------------------------------


@ROUTES(
    "POST",
    "/v1/queue/stats",
    Right.CONSUME_SOMEWHERE,
    body=LockdPlace,
    gives=LockdStats,
    errors=(QueueNotFound, Forbidden, NamespaceForbidden),
)
async def stats(request: Request) -> Response:
    """Show the status of a queue: waiting consumers, and its first message."""
    fields = await request.json(_place)
    name = _queue(request, fields, Action.CONSUME)
    inspection = request.node.inspection
    head = inspection.head(name, GROUP)
    members = [member for member in inspection.consumers(name) if member.group[1] == GROUP]
    now = request.node.clock()
    return response(
        LockdStats(
            namespace=name[0],
            queue=name[1],
            waiting_consumers=len(members) + inspection.waiting(name, GROUP),
            pending_candidates=0,
            total_consumers=inspection.waiting() + len(inspection.consumers()),
            has_active_watcher=True,
            available=head is not None,
            head_message_id="" if head is None else str(head.id),
            head_enqueued_at_unix=0 if head is None else head.enqueued_at // SECOND,
            head_not_visible_until_unix=0 if head is None else (head.deliver_at or head.enqueued_at) // SECOND,
            head_age_seconds=0 if head is None else (now - head.enqueued_at) // SECOND,
            correlation_id=request.correlation_id,
        )
    )


@ROUTES(
    "POST",
    "/v1/queue/watch",
    Right.CONSUME_SOMEWHERE,
    body=LockdPlace,
    response_types=("text/event-stream",),
    errors=(QueueNotFound, LimitExceeded, Forbidden, NamespaceForbidden),
    waits=True,
)
async def watch(request: Request) -> Response:
    """Send a server-sent event whenever the first message of the queue changes. Nothing is leased."""
    fields = await request.json(_place)
    name = _queue(request, fields, Action.CONSUME)
    request.node.queues.get(name)
    request.api.long_requests.check(request.principal)
    return Response(_events(request, name), 200, EVENTS, NO_BUFFERING)


async def _events(request: Request, name: QueueName) -> AsyncIterator[bytes]:
    heartbeat = request.api.config.http.heartbeat / SECOND
    gone = request.disconnected
    over = request.api.closing
    last_head: int | None = -1
    number = 0
    with request.node.inspection.watch(name) as changed:

        def end(_why: HoldfastError) -> None:
            nonlocal over
            over = True
            changed.set()

        try:
            with request.api.long_requests.until(request.principal, end):
                while not over and not gone.done():
                    changed.clear()
                    head = request.node.inspection.head(name, GROUP)
                    if (head.id if head is not None else None) != last_head:
                        last_head = head.id if head is not None else None
                        number += 1
                        yield _watched(request, name, last_head, number)
                    wake = asyncio.create_task(changed.wait())
                    done, _ = await asyncio.wait((wake, gone), timeout=heartbeat, return_when=asyncio.FIRST_COMPLETED)
                    wake.cancel()
                    if not done:
                        yield b": keepalive\n\n"
        except HoldfastError:
            return  # the queue was deleted: the stream ends


def _watched(request: Request, name: QueueName, head_id: int | None, number: int) -> bytes:
    event = LockdWatched(
        namespace=name[0],
        queue=name[1],
        available=head_id is not None,
        head_message_id=str(head_id or ""),
        changed_at_unix=request.node.clock() // SECOND,
        correlation_id=request.correlation_id,
    )
    return b"id: %d\nevent: queue_watch\ndata: %b\n\n" % (number, encode(event))


# --- common ---------------------------------------------------------------------------------------------------------


def _queue(request: Request, place: LockdPlace, action: Action) -> QueueName:
    """The queue, if it is in the caller's own namespace. Without configured credentials any namespace is."""
    principal = request.principal
    namespace = place.namespace or principal.namespace
    if not place.queue:
        raise InvalidArgument(field="queue", problem="is missing: name the queue")
    if namespace != principal.namespace and not principal.unlimited:
        raise NamespaceForbidden(namespace=namespace, own=principal.namespace)
    check_name(namespace, "namespace")
    principal.require(action, check_name(place.queue))
    return (namespace, place.queue)


def _owner(fields: LockdDequeue) -> str:
    if not fields.owner:
        raise InvalidArgument(field="owner", problem="is missing: name the consumer")
    return fields.owner


def _attempts_max(config: QueueConfig) -> int:
    return config.retry.max_retries + 1


def _plain(text: str | None) -> str:
    """What a producer gave, if it can stand in a header; else nothing: it might end the header, and begin another."""
    return text if text and text.isascii() and text.isprintable() else ""


def _content_type(boundary: str) -> bytes:
    return f"{RELATED}; boundary={boundary}".encode()


def _correlation(first: Leased) -> list[Header]:
    correlation_id = _plain(first.message.extra.correlation_id)
    return [(b"x-correlation-id", correlation_id.encode())] if correlation_id else []
