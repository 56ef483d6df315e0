"""MQueue's API: `/enqueue`, `/dequeue`, `/ack`, `/nack`. A namespace and a topic are a namespace and a queue here.

Ids are integers, payloads base64. There are no lease tokens in it: a delivery is settled by the caller that
dequeued it, in the group `default`.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from typing import Annotated

import msgspec

from holdfast.auth.principal import Action
from holdfast.core.commands import Draft, Settlement, Verb
from holdfast.core.queue import PRIORITY_DEFAULT, check_name
from holdfast.core.records import NO_EXTRA, Extra
from holdfast.engine.catalog import QueueName
from holdfast.errors import (
    CrossOrigin,
    Forbidden,
    GroupNotFound,
    HoldfastError,
    InvalidArgument,
    LeaseLost,
    LimitExceeded,
    MessageTooLarge,
    NamespaceForbidden,
    QueueFull,
    QueueNotFound,
    RequestTooLarge,
)
from holdfast.http_api.codecs.json_slices import BulkArray, is_cheap, read_bulk
from holdfast.http_api.codecs.trace_headers import traced
from holdfast.http_api.codecs.values import decode, instant
from holdfast.http_api.server.request import Request
from holdfast.http_api.server.response import Response, response
from holdfast.http_api.server.routes import Right, Routes
from holdfast.units import format_instant

ROUTES = Routes("MQueue")
PROTOCOL = "mqueue"
GROUP = "default"
ITEMS = BulkArray(None, (b"payload",), "One enqueue", "items")
CONSUMER = "mqueue"
"""What all consumers of one caller are called: the API has no name for them."""

Id = Annotated[int, msgspec.Meta(gt=0, le=(1 << 63) - 1)]


class MQueueItem(msgspec.Struct, frozen=True):
    """A message to enqueue."""

    namespace: str
    topic: str
    payload: str = ""
    """In base64."""
    priority: Annotated[int, msgspec.Meta(ge=0, le=255)] = PRIORITY_DEFAULT
    """Lower is sooner."""
    deliver_after: str = ""
    """Not before this instant, as RFC 3339."""


class MQueueDequeued(msgspec.Struct, frozen=True):
    """A delivery."""

    id: Id
    payload: str
    lease_expires_at: str


class DequeueQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From where, and how many."""

    namespace: str
    topic: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10


class MQueueAck(msgspec.Struct, frozen=True):
    """Which delivery is done."""

    id: Id
    namespace: str
    topic: str


class MQueueNack(msgspec.Struct, frozen=True):
    """Which delivery failed, and why."""

    id: Id
    namespace: str
    topic: str
    error: str = ""


_items = msgspec.json.Decoder(list[MQueueItem]).decode
_ack = msgspec.json.Decoder(MQueueAck)
_nack = msgspec.json.Decoder(MQueueNack)


@ROUTES(
    "POST",
    "/enqueue",
    Right.PRODUCE_SOMEWHERE,
    body=list[MQueueItem],
    gives=list[Id],
    errors=(QueueNotFound, QueueFull, MessageTooLarge, LimitExceeded, RequestTooLarge, Forbidden, NamespaceForbidden),
    bulk=True,
)
async def enqueue(request: Request) -> Response:
    """Enqueue items, to one or several topics, and get their ids.

    The items of one topic are stored all or none, since the response cannot report errors of single items. If a later
    topic of the same request is refused, the items of those before it are stored; the problem names the items that are
    not.
    """
    items = await _read_items(request)
    if not items:
        raise InvalidArgument(field="The body", problem="is empty; send at least one item")
    batches: dict[QueueName, list[int]] = {}
    drafts: list[Draft] = []
    for index, item in enumerate(items):
        name = _queue(request, item.namespace, item.topic, Action.PRODUCE)
        batches.setdefault(name, []).append(index)
        drafts.append(_draft(request, item))
    for (namespace, _), places in batches.items():
        request.api.gate.admit(namespace, len(places), sum([len(drafts[place].payload) for place in places]))
    ids = [0] * len(items)
    for name, places in batches.items():
        await _add_first_group(request, name)
        of_queue = traced(request, [drafts[place] for place in places])
        receipt = await request.node.messages.enqueue(name, of_queue, PROTOCOL, atomic=True)
        if receipt.errors:
            raise request.refused({places[at]: error for at, error in receipt.errors.items()})
        for place, message_id in zip(places, receipt.ids, strict=True):
            ids[place] = message_id
    return response(ids)


async def _add_first_group(request: Request, name: QueueName) -> None:
    """The group that `GET /dequeue` leases for, unless the queue has consumers of other kinds: MQueue has no groups,
    and a GET creates none."""
    node = request.node
    if not node.queues.exists(name) or not node.queues.get(name).groups:
        await node.groups.create(name, GROUP)


async def _read_items(request: Request) -> list[MQueueItem]:
    body = await request.body()
    request.check_json()
    if is_cheap(body):
        return decode(_items, body)
    items: list[MQueueItem] = []
    config = request.api.config

    def take(chunk: bytes) -> None:
        items.extend(decode(_items, chunk))

    work = read_bulk(body, ITEMS, config.limits.enqueue_max, config.http.max_request_bytes, take)
    decode(_items, await request.api.in_slices(work))
    return items


def _draft(request: Request, item: MQueueItem) -> Draft:
    try:
        payload = b64decode(item.payload, validate=True)
    except binascii.Error:
        raise InvalidArgument(field="payload", problem="is not base64") from None
    correlation_id = request.given_correlation_id
    extra = NO_EXTRA if correlation_id is None else Extra(correlation_id=correlation_id)
    deliver_at = instant(item.deliver_after, "deliver_after") if item.deliver_after else 0
    return Draft(payload, item.priority, deliver_at, extra=extra)


@ROUTES(
    "GET",
    "/dequeue",
    Right.CONSUME_SOMEWHERE,
    query=DequeueQuery,
    gives=list[MQueueDequeued],
    errors=(QueueNotFound, GroupNotFound, Forbidden, NamespaceForbidden, CrossOrigin),
    changes=True,
)
async def dequeue(request: Request) -> Response:
    """Lease up to `limit` items, the best first. An empty list means that nothing is ready.

    It leases for the group `default`, which the first enqueue to a topic creates. A topic that has consumers of other
    APIs only has no such group until it is created by hand.

    As a GET that changes something it is for programs: a browser is refused unless it calls for a page of this server,
    also with a token.
    """
    query = request.query(DequeueQuery)
    name = _queue(request, query.namespace, query.topic, Action.CONSUME)
    consumer = request.principal.consumer(CONSUMER)
    if not request.node.queues.exists(name):
        return response([])
    found = await request.node.messages.lease(
        name, GROUP, query.limit, consumer=consumer, protocol=PROTOCOL, create=False
    )
    return response(
        [
            MQueueDequeued(one.message.id, b64encode(one.message.payload).decode("ascii"), format_instant(one.deadline))
            for one in found
        ]
    )


@ROUTES(
    "POST",
    "/ack",
    Right.CONSUME_SOMEWHERE,
    body=MQueueAck,
    errors=(QueueNotFound, LeaseLost, Forbidden, NamespaceForbidden),
)
async def ack(request: Request) -> Response:
    """Acknowledge an item: it is done and goes."""
    body = await request.json(_ack)
    return await _settle(request, body, Verb.ACK, "")


@ROUTES(
    "POST",
    "/nack",
    Right.CONSUME_SOMEWHERE,
    body=MQueueNack,
    errors=(QueueNotFound, LeaseLost, Forbidden, NamespaceForbidden),
)
async def nack(request: Request) -> Response:
    """Say that an item failed: it is retried after the queue's backoff, or dead."""
    body = await request.json(_nack)
    return await _settle(request, body, Verb.NACK, body.error)


async def _settle(request: Request, body: MQueueAck | MQueueNack, verb: Verb, error: str) -> Response:
    name = _queue(request, body.namespace, body.topic, Action.CONSUME)
    settlement = Settlement(body.id, verb=verb, error=error, consumer=request.principal.consumer(CONSUMER))
    [result] = await request.node.messages.settle(name, GROUP, [settlement])
    if isinstance(result, HoldfastError):
        raise result
    return Response(b"", 200)


def _queue(request: Request, namespace: str, topic: str, action: Action) -> QueueName:
    """The queue, if it is in the caller's own namespace. Without configured credentials any namespace is."""
    principal = request.principal
    if namespace != principal.namespace and not principal.unlimited:
        raise NamespaceForbidden(namespace=namespace, own=principal.namespace)
    check_name(namespace, "namespace")
    principal.require(action, check_name(topic))
    return (namespace, topic)
