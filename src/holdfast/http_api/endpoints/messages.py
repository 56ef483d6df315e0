"""Enqueue, browse, and single messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast import wire
from holdfast.auth.principal import Action
from holdfast.broker.history import History
from holdfast.broker.parts.messages import Receipt
from holdfast.core.commands import NO_ID, Draft, payload_bytes
from holdfast.core.enqueue import MESSAGE_ID_BYTES_MAX
from holdfast.errors import (
    ArrowMissing,
    GroupNotFound,
    HoldfastError,
    InvalidArgument,
    LakeUnreadable,
    LimitExceeded,
    MediaTypeUnsupported,
    MessageNotFound,
    MessageNotWaiting,
    MessageTooLarge,
    QueueFull,
    QueueNotFound,
    RequestTooLarge,
)
from holdfast.http_api.codecs.arrow_request import MEDIA_TYPE, drafts_of, read_table
from holdfast.http_api.codecs.arrow_response import write_messages
from holdfast.http_api.codecs.json_batch import ids_in_json
from holdfast.http_api.codecs.json_slices import WHOLE_BYTES, BulkArray, is_cheap, read_bulk
from holdfast.http_api.codecs.raw_body import HEADERS, message_bytes_max, read_form, read_raw
from holdfast.http_api.codecs.shapes import history_to_wire, message_to_wire, read_draft, read_import, view_to_wire
from holdfast.http_api.codecs.trace_headers import traced
from holdfast.http_api.codecs.values import decode, duration, instant
from holdfast.http_api.server.request import OFFLOAD_BYTES, OFFLOAD_MESSAGES, Request
from holdfast.http_api.server.response import (
    ARROW,
    DeferredResponse,
    EndpointResult,
    Response,
    TaskResponse,
    item_error,
    response,
)
from holdfast.http_api.server.routes import Right, Routes

ROUTES = Routes("Messages")
PROTOCOL = "http"

_Item = TypeVar("_Item", bound=wire.Draft)


FORM = "multipart/form-data"
_STRUCTURED = {"application/json", FORM}
_NOT_RAW = {"", "application/x-www-form-urlencoded"}  # what curl and libraries send by default
_ALLOWED = "application/json with {messages: […]}, multipart/form-data, or any other type for a raw payload"


class EnqueueQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to take the body."""

    raw: bool = False
    """The body is one message's payload, even if its content type is JSON."""
    atomic: bool = False
    """For Arrow: all rows or none. In JSON it is a field."""


class _Parts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An enqueue of which one message is wrong: each is read by itself, to find which."""

    messages: list[msgspec.Raw]
    atomic: bool = False


_enqueue = msgspec.json.Decoder(wire.Enqueue).decode
_parts = msgspec.json.Decoder(_Parts).decode
_draft = msgspec.json.Decoder(wire.Draft).decode
_drafts = msgspec.json.Decoder(list[wire.Draft]).decode
_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_import = msgspec.json.Decoder(wire.Import).decode
_import_items = msgspec.json.Decoder(list[wire.ImportItem]).decode
_edit = msgspec.json.Decoder(wire.MessageEdit)


PAYLOADS = (b"payload", b"text", b"base64")
"""Fields of a message that hold its payload."""

MESSAGES = BulkArray(b"messages", PAYLOADS, "One enqueue", "messages")
IMPORTED = BulkArray(b"items", PAYLOADS, "One import", "items")


def _read_pending(request: Request, body: bytes) -> _PendingEnqueue | None:
    """The messages of a JSON body. None: some of many are wrong, and they are to be read in slices."""
    found = _read(body)
    return None if found is None else _identified_items(request, *found)


async def _read_pending_in_slices(request: Request, body: bytes) -> _PendingEnqueue:
    """The messages of a JSON body that holds, or may hold, very many values."""
    items: list[wire.Draft | None] = []
    errors: dict[int, HoldfastError] = {}

    def take(chunk: bytes) -> None:
        try:
            items.extend(decode(_drafts, chunk))
        except InvalidArgument:
            _read_each(decode(_raws, chunk), items, errors)

    limit = request.api.config.limits.enqueue_max
    work = read_bulk(body, MESSAGES, limit, message_bytes_max(request), take)
    rest = await request.api.in_slices(work)
    return _identified_items(request, items, errors, decode(_enqueue, rest).atomic)


def _identified_items(
    request: Request, items: list[wire.Draft | None], errors: dict[int, HoldfastError], atomic: bool
) -> _PendingEnqueue:
    key = _idempotency_key(request)
    if key is not None:
        ids = _made_ids(key, len(items))
        items = [item and _identified(item, made) for item, made in zip(items, ids, strict=True)]
    return _PendingEnqueue(request, items, errors, atomic, read_draft)


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/messages",
    Right.PRODUCE,
    body=wire.Enqueue,
    gives=wire.Receipt,
    errors=(QueueNotFound, QueueFull, MessageTooLarge, LimitExceeded, RequestTooLarge, ArrowMissing),
    query=EnqueueQuery,
    request_types=(MEDIA_TYPE, "multipart/form-data", "application/octet-stream", "text/plain"),
    headers=("Idempotency-Key", *HEADERS),
    bulk=True,
)
def enqueue(request: Request) -> EndpointResult:
    """Enqueue 1 to 10,000 messages.

    All of them are one commit, and the response is sent when it is durable. A message that is wrong is reported by its
    index and does not stop the others, unless `atomic` is true. If none was taken, the response is the first one's
    problem.

    Besides JSON a single message can be sent as it is: with any other content type, or with `raw=true`, the body is the
    payload and `Holdfast-` headers say the rest (`Holdfast-Properties` is a JSON object); `multipart/form-data` has it
    in a part `payload`, beside a part `meta` with the other fields as JSON. With `Idempotency-Key` messages that bring
    no `message_id` get one made from it, whatever the body is, so that the whole request can be repeated without harm.
    The trace context of the request (`traceparent`, `tracestate`) goes with messages that bring none as properties.

    In bulk, an Arrow IPC stream is fastest: a column `payload`, and optionally `key`, `message_id`, `priority`,
    `deliver_at`, `ttl`, `properties`, `correlation_id`, `content_type` and `reply_to`; not compressed, and in plain
    layouts (binary and string, also large or of a fixed size; no views, dictionaries or run-ends).
    """
    head = request.head
    if head.content_type != "application/json" or head.query:
        return TaskResponse(_enqueue_any(request))
    content = request.content
    if len(content) > OFFLOAD_BYTES or not is_cheap(content):
        return TaskResponse(_enqueue_any(request))
    pending = _read_pending(request, content)
    if pending is None:
        return TaskResponse(_enqueue_any(request))
    pending.admit()
    return _stored(request, pending) if pending.atomic or not pending.drafts else pending


async def _enqueue_any(request: Request) -> Response:
    """Enqueue what any kind of body brings."""
    query = request.query(EnqueueQuery)
    kind = request.content_type
    key = _idempotency_key(request)
    if kind == MEDIA_TYPE and not query.raw:
        return await _enqueue_arrow(request, query.atomic, key)
    if query.raw or kind not in _STRUCTURED:
        if kind in _NOT_RAW and not query.raw:
            raise MediaTypeUnsupported(given=kind, allowed=_ALLOWED)
        return await store(request, [_identified(await read_raw(request), key)], {}, True, read_draft)
    if kind == FORM:
        return await store(request, [_identified(await read_form(request), key)], {}, True, read_draft)
    body = request.content
    pending = None
    if is_cheap(body):
        pending = await request.offload(len(body) > OFFLOAD_BYTES, lambda: _read_pending(request, body))
    if pending is None:
        pending = await _read_pending_in_slices(request, body)
    pending.admit()
    return await _stored(request, pending).ready()


async def _enqueue_arrow(request: Request, atomic: bool, key: str | None) -> Response:
    """Enqueue the rows of an Arrow stream. The response has all their ids: it is encoded while the disk syncs."""
    table = read_table(await request.body(), request.api.config.limits.enqueue_max)
    made_ids = None if key is None else _made_ids(key, table.num_rows)
    large = (table.num_columns > 1 or made_ids is not None) and table.num_rows > OFFLOAD_MESSAGES
    correlation_id = request.given_correlation_id
    drafts = traced(request, await request.offload(large, lambda: drafts_of(table, correlation_id, made_ids)))
    count, size_bytes = len(drafts), payload_bytes(drafts)
    request.api.gate.admit(request.namespace, count, size_bytes)
    submission = request.node.messages.enqueue(request.queue, drafts, PROTOCOL, atomic=atomic)
    receipt = submission.result
    if receipt.errors and (atomic or len(receipt.errors) == count):
        raise request.refused(receipt.errors)
    made: list[Response] = []

    def make(error: HoldfastError | None) -> None:
        if error is None:
            made.append(_arrow_receipt(receipt))

    if not count:
        return _arrow_receipt(receipt)
    submission.on_written(make)
    await submission
    return made[0]


class _Receipt(wire.Receipt, frozen=True, kw_only=True):
    """A receipt whose ids are in JSON already."""

    ids: msgspec.Raw  # type: ignore[assignment]


def _arrow_receipt(receipt: Receipt) -> Response:
    durability = receipt.durability.value
    if not receipt.errors and not receipt.duplicates:
        return response(_Receipt(ids=msgspec.Raw(ids_in_json(receipt.ids)), durability=durability))
    ids: list[str | None] = list(map(str, receipt.ids))
    for index in receipt.errors:
        ids[index] = None
    errors = [item_error(index, error) for index, error in sorted(receipt.errors.items())]
    return response(wire.Receipt(ids=ids, duplicates=sorted(receipt.duplicates), errors=errors, durability=durability))


def _idempotency_key(request: Request) -> str | None:
    """With it a request as a whole can be repeated: its messages without an id get one made from it."""
    key = request.header(b"idempotency-key")
    if key == "":
        raise InvalidArgument(field="Idempotency-Key", problem=NO_ID)
    if key is not None and len(key.encode()) > MESSAGE_ID_BYTES_MAX:  # no id could be made of it, but 10,000 copies
        raise InvalidArgument(field="Idempotency-Key", problem=f"is at most {MESSAGE_ID_BYTES_MAX} bytes; shorten it")
    return key


def _made_ids(key: str, count: int) -> list[str]:
    """An id for each message of a request with an `Idempotency-Key`: the same when it is repeated, in JSON or Arrow."""
    return [key] if count == 1 else [f"{key}/{index}" for index in range(count)]


def _identified(item: wire.Draft, made_id: str | None) -> wire.Draft:
    return item if made_id is None or item.message_id is not None else replace(item, message_id=made_id)


def _read(raw: bytes) -> tuple[list[wire.Draft | None], dict[int, HoldfastError], bool] | None:
    """The messages of a request; None where one is wrong, with what is wrong by index. None instead of all: one is
    wrong, and to find out which takes long."""
    try:
        whole = decode(_enqueue, raw)
    except InvalidArgument:
        if len(raw) > WHOLE_BYTES:
            return None
        parts = decode(_parts, raw)
    else:
        return list(whole.messages), {}, whole.atomic
    items: list[wire.Draft | None] = []
    errors: dict[int, HoldfastError] = {}
    _read_each(parts.messages, items, errors)
    return items, errors, parts.atomic


def _read_each(parts: list[msgspec.Raw], items: list[wire.Draft | None], errors: dict[int, HoldfastError]) -> None:
    """Add messages of which one is wrong, or several."""
    for part in parts:
        try:
            items.append(decode(_draft, bytes(part)))
        except InvalidArgument as error:
            errors[len(items)] = InvalidArgument(field="The message", problem=error.details["problem"])
            items.append(None)


async def store(
    request: Request,
    items: list[_Item | None],
    errors: dict[int, HoldfastError],
    atomic: bool,
    read: Callable[[_Item, int, str | None], Draft],
) -> Response:
    """Enqueue the valid messages; the response has an id or an error for each."""
    pending = _PendingEnqueue(request, items, errors, atomic, read)
    pending.admit()
    return await _stored(request, pending).ready()


def _stored(request: Request, pending: _PendingEnqueue) -> DeferredResponse:
    submission = request.node.messages.enqueue(request.queue, pending.drafts, PROTOCOL, atomic=pending.atomic)
    return DeferredResponse(pending.response(submission.result), submission)


class _PendingEnqueue:
    """The messages of a request: `drafts` are the valid ones, at `places`; `errors` say what is wrong with the others.

    As an outcome (see `EndpointResult`) it enqueues them together with those of other requests.
    """

    __slots__ = ("_response", "atomic", "count", "drafts", "errors", "places", "request", "size_bytes")

    def __init__(
        self,
        request: Request,
        items: list[_Item | None],
        errors: dict[int, HoldfastError],
        atomic: bool,
        read: Callable[[_Item, int, str | None], Draft],
    ) -> None:
        """Raises the error that refuses the request as a whole."""
        if not items:
            raise InvalidArgument(field="messages", problem="is empty; send at least one")
        now = request.node.clock()
        correlation_id = request.given_correlation_id
        self.request = request
        self._response: Response | None = None
        self.count = len(items)
        self.errors = errors
        self.atomic = atomic
        self.drafts: Sequence[Draft] = (drafts := [])
        self.places: list[int] = []
        for index, item in enumerate(items):
            if item is None:
                continue
            try:
                drafts.append(read(item, now, correlation_id))
                self.places.append(index)
            except HoldfastError as error:
                errors[index] = error
        if atomic and errors:
            raise request.refused(errors)
        self.drafts = traced(request, self.drafts)
        self.size_bytes = sum([len(draft.payload) for draft in self.drafts])

    def admit(self) -> None:
        """Raises RateLimited if the namespace has used up its rate."""
        self.request.api.gate.admit(self.request.namespace, len(self.drafts), self.size_bytes)

    def deliver(self, request: Request) -> None:
        request.api.batcher.add(request.queue, self)

    def enqueued(self, receipt: Receipt) -> bool:
        """See `PendingEnqueue`."""
        try:
            self._response = self.response(receipt)
        except Exception as error:  # noqa: BLE001 - it is answered
            self.request.fail(error)
            return False
        return True

    def on_done(self, error: HoldfastError | None) -> None:
        """See `PendingEnqueue`."""
        if error is not None:
            self.request.fail(error)
        else:
            assert self._response is not None
            self.request.respond(self._response)

    def response(self, receipt: Receipt) -> Response:
        """The response to send when they are durable. Raises the first one's error if none was enqueued."""
        errors, places = self.errors, self.places
        if receipt.errors:
            errors.update((places[at], refused) for at, refused in receipt.errors.items())
        if errors and (self.atomic or len(errors) == self.count):
            raise self.request.refused(errors)
        ids: list[str | None] = [None] * self.count
        for at, message_id in zip(places, receipt.ids, strict=True):
            if message_id:
                ids[at] = str(message_id)
        result = wire.Receipt(
            ids=ids,
            duplicates=[places[at] for at in sorted(receipt.duplicates)] if receipt.duplicates else [],
            errors=[item_error(at, errors[at]) for at in sorted(errors)] if errors else [],
            durability=receipt.durability,
        )
        return response(result)


class BrowseQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to look at."""

    state: Literal["", "ready", "scheduled", "leased", "settled"] = ""
    """Only messages that are in this state in some group (or in `group`): `ready`, `scheduled`, `leased`, `settled`."""
    group: str = ""
    cursor: str = ""
    """Where the page before ended."""
    limit: int = 100
    encoding: wire.Encoding = "auto"


@ROUTES(
    "GET",
    "/api/v1/queues/{name}/messages",
    Right.CONSUME,
    query=BrowseQuery,
    gives=wire.MessagePage,
    response_types=(MEDIA_TYPE,),
    errors=(QueueNotFound, GroupNotFound, ArrowMissing),
)
async def browse(request: Request) -> Response:
    """Browse live messages, oldest first. Nothing is leased or changed.

    A page may hold fewer messages than `limit`, even none, and still have a `cursor`: continue until it is empty. As
    an Arrow stream the messages have no delivery statuses, and the cursor is in the header `Holdfast-Cursor`.
    """
    query = request.query(BrowseQuery)
    page = await request.node.inspection.browse(request.queue, query.limit, query.cursor, query.state, query.group)
    if request.accepts(MEDIA_TYPE):
        rows = [(at, message) for at, message, _ in page.messages]
        headers = [(b"holdfast-cursor", page.cursor.encode())]
        return Response(write_messages(rows, {"cursor": page.cursor}, []), 200, ARROW, headers)
    result = [
        view_to_wire(message, partition, statuses, query.encoding) for partition, message, statuses in page.messages
    ]
    return response(wire.MessagePage(result, page.cursor))


class MessageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to show a message."""

    encoding: wire.Encoding = "auto"
    history: bool = False
    """With every step of its life."""


@ROUTES(
    "GET",
    "/api/v1/queues/{name}/messages/{id}",
    Right.CONSUME,
    query=MessageQuery,
    gives=wire.MessageView,
    errors=(QueueNotFound, MessageNotFound, LakeUnreadable),
)
async def get(request: Request) -> Response:
    """Show one live message, its delivery status in each group, and optionally its history."""
    query = request.query(MessageQuery)
    partition, message, statuses = await request.node.inspection.find(request.queue, request.message_id())
    result = view_to_wire(message, partition, statuses, query.encoding)
    if query.history:
        result.history = history_to_wire(await _history(request)).steps
    return response(result)


class NamedQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to show a message, and how long to wait for it."""

    encoding: wire.Encoding = "auto"
    wait: wire.Duration = 0
    """If it is not there, wait up to this long for it. The queue need not exist yet."""


@ROUTES(
    "GET",
    "/api/v1/queues/{name}/message-ids/{id}",
    Right.CONSUME,
    query=NamedQuery,
    gives=wire.MessageView,
    errors=(QueueNotFound, MessageNotFound),
    waits=True,
)
async def get_named(request: Request) -> Response:
    """Show one live message by the `message_id` that its producer gave it.

    It is found for as long as the queue remembers the id: its `dedup_window`.
    """
    query = request.query(NamedQuery)
    wait = duration(query.wait, "wait")
    work = request.node.inspection.find_named(request.queue, request.parameters[1], wait)
    partition, message, statuses = await (request.api.until_disconnect(request, work) if wait else work)
    return response(view_to_wire(message, partition, statuses, query.encoding))


class HistoryQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose steps to show."""

    related: bool = False
    """Also those of the messages that this one was made of, and of those that were made of it: dead letters, what
    redrives made of them, and so on. Steps in queues that the caller may not consume are left out."""


@ROUTES(
    "GET",
    "/api/v1/queues/{name}/messages/{id}/history",
    Right.CONSUME,
    query=HistoryQuery,
    gives=wire.History,
    errors=(MessageNotFound, LakeUnreadable),
)
async def history(request: Request) -> Response:
    """Show every step of a message's life, also if it is long gone, from the journal.

    Queues with `journal = off` have none, and a step can be as old as the oldest segment in the lake.
    """
    related = request.query(HistoryQuery).related
    found = await _history(request, related=related)
    if related:
        seen = [step for step in found.steps if request.principal.may(Action.CONSUME, step.queue)]
        found = History(seen, found.complete)
    if not found.steps and found.complete:
        raise MessageNotFound(message_id=request.message_id(), queue=request.queue[1])
    return response(history_to_wire(found, related=related))


async def _history(request: Request, *, related: bool = False) -> History:
    """It may take long: a client that has gone, or a server that stops, need not wait for the lake."""
    return await request.api.until_disconnect(
        request, request.node.inspection.history(request.queue, request.message_id(), related=related)
    )


@ROUTES(
    "POST",
    "/api/v1/queues/{name}/import",
    Right.ADMIN,
    body=wire.Import,
    gives=wire.Receipt,
    errors=(QueueNotFound, QueueFull, MessageTooLarge, LimitExceeded, RequestTooLarge),
    act="queue.import",
    bulk=True,
)
async def take_in(request: Request) -> Response:
    """Import stored items with where they come from.

    Importing the same `source_id` and `source_group` again, while the first is still there, stores nothing and is
    answered as a duplicate. Needs `produce` or `admin` on each `source_queue` too.
    """
    body = await request.body()
    request.check_json()
    items: list[wire.ImportItem] = []
    if not is_cheap(body):
        limit = request.api.config.limits.enqueue_max
        work = read_bulk(
            body, IMPORTED, limit, message_bytes_max(request), lambda chunk: items.extend(decode(_import_items, chunk))
        )
        body = await request.api.in_slices(work)
    pending = decode(_import, body)
    items += pending.items
    for source in {item.origin.source_queue for item in items}:
        request.principal.require_source(source)
    return await store(request, [*items], {}, pending.atomic, read_import)


@ROUTES(
    "PATCH",
    "/api/v1/queues/{name}/messages/{id}",
    Right.ADMIN,
    body=wire.MessageEdit,
    gives=wire.Message,
    errors=(QueueNotFound, MessageNotFound, MessageNotWaiting),
    act="message.edit",
)
async def edit(request: Request) -> Response:
    """Change the priority or the delivery time of a waiting message."""
    change = await request.json(_edit)
    deliver_at = None if change.deliver_at is None else instant(change.deliver_at, "deliver_at")
    message = await request.node.messages.edit(
        request.queue, request.message_id(), priority=change.priority, deliver_at=deliver_at
    )
    return response(message_to_wire(message, 0, "auto"))


class DeleteQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages may be removed."""

    leased: bool = False
    """Also one that consumers hold: they lose their leases, and workers cancel what they do."""


@ROUTES(
    "DELETE",
    "/api/v1/queues/{name}/messages/{id}",
    Right.ADMIN,
    query=DeleteQuery,
    status=204,
    errors=(QueueNotFound, MessageNotFound, MessageNotWaiting),
    act="message.delete",
)
async def delete(request: Request) -> Response:
    """Remove a waiting message, for all groups; with `leased` also one that consumers hold."""
    leased = request.query(DeleteQuery).leased
    await request.node.messages.delete(request.queue, request.message_id(), leased=leased)
    return Response(status=204)
