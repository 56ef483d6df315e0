"""Spans of a client and its workers, for OpenTelemetry (`pip install "holdfast[otel]"`).

    from holdfast.client import tracing

    tracing.instrument()        # once, where the program sets OpenTelemetry up

From then on every client of the process, synchronous ones too, records

    send      a message or many of them; messages carry the context of this span to whoever consumes them
    receive   a lease of messages, with a link to the span that created each
    process   a worker's function with a message; a child of the span that created the message, and linked to it
    ack, nack, reject, release    the settlement, a child of `process`

Without `instrument` the client does not know of any of this: it calls nothing, and imports nothing.
"""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from holdfast import __version__, wire
from holdfast.client.client import Client
from holdfast.client.consumer import Consumer
from holdfast.client.drafts import Properties, as_draft
from holdfast.client.messages import Message, Received, Reply
from holdfast.client.sent import Sent, SentMany
from holdfast.client.transactions import Transaction
from holdfast.client.workers.outcomes import Release
from holdfast.client.workers.worker import Middleware, Proceed, Worker
from holdfast.trace_context import TRACEPARENT

Result = TypeVar("Result")
Call = Callable[..., Coroutine[Any, Any, Result]]
Attributes = dict[str, AttributeValue]

_propagator: Final = TraceContextTextMapPropagator()
_originals: Final[list[tuple[type, str, Any]]] = []


def instrument(provider: TracerProvider | None = None) -> None:
    """Record spans from now on, with this provider or the process's own. A second call changes nothing."""
    if _originals:
        return
    spans = _Spans(trace.get_tracer("holdfast", __version__, provider))
    _replace(Client, "send", spans.around_send)
    _replace(Client, "request", spans.around_send)
    _replace(Client, "send_many", spans.around_send_many)
    _replace(Client, "lease", spans.around_lease)
    _replace(Client, "lease_messages", spans.around_lease_messages)
    _replace(Client, "settle_one", spans.around_settle_one)
    _replace(Transaction, "stage", spans.around_send)
    _replace(Transaction, "stage_many", spans.around_send_many)
    _replace(Worker, "handle", spans.around_handle)


def uninstrument() -> None:
    """Record nothing any more."""
    while _originals:
        owner, name, original = _originals.pop()
        setattr(owner, name, original)


def _replace(owner: type, name: str, around: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    _originals.append((owner, name, original))
    setattr(owner, name, functools.wraps(original)(around(original)))


def context_of(message: Received) -> Context:
    """The context of the span that created a message, to make spans of one's own its children."""
    carrier = {name: value for name, value in message.properties.items() if isinstance(value, str)}
    return _propagator.extract(carrier, Context())


class _Spans:
    """Makes methods of the client record spans: each `around_` takes a method and returns one that does."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._processing: WeakKeyDictionary[Message, SpanContext] = WeakKeyDictionary()

    def _begin(
        self,
        operation: str,
        kind: str,
        queue: str,
        span_kind: SpanKind,
        attributes: Attributes,
        context: Context | None = None,
        links: Sequence[Link] = (),
        start_ns: int | None = None,
    ) -> Span:
        named: Attributes = {
            "messaging.system": "holdfast",
            "messaging.operation.name": operation,
            "messaging.operation.type": kind,
            "messaging.destination.name": queue,
        }
        return self._tracer.start_span(
            f"{operation} {queue}", context, span_kind, {**named, **attributes}, links, start_ns
        )

    # --- send -------------------------------------------------------------------------------------------------------

    def around_send(self, send: Call[Result]) -> Call[Result]:
        """Of a call that sends one message: it takes the queue, and `properties`."""

        async def traced(
            owner: Client | Transaction,
            queue: str,
            *arguments: Any,
            properties: Properties | None = None,
            **fields: Any,
        ) -> Result:
            span = self._begin("send", "send", queue, SpanKind.PRODUCER, {})
            with trace.use_span(span, end_on_exit=True):
                sent = await send(owner, queue, *arguments, properties=_with_context(properties or {}), **fields)
                _name(span, sent)
                return sent

        return traced

    def around_send_many(self, send_many: Call[Result]) -> Call[Result]:
        """Of a call that sends many: one span for all of them."""

        async def traced(
            owner: Client | Transaction,
            queue: str,
            messages: Iterable[object] | AsyncIterable[object],
            *arguments: Any,
            **fields: Any,
        ) -> Result:
            span = self._begin("send", "send", queue, SpanKind.PRODUCER, {})
            with trace.use_span(span, end_on_exit=True):
                sent = await send_many(owner, queue, _drafts(messages), *arguments, **fields)
                count = len(sent.ids) if isinstance(sent, SentMany) else sent
                if isinstance(count, int):
                    span.set_attribute("messaging.batch.message_count", count)
                return sent

        return traced

    # --- receive ----------------------------------------------------------------------------------------------------

    def around_lease(self, lease: Call[list[wire.Delivery]]) -> Call[list[wire.Delivery]]:
        async def traced(client: Client, queue: str, *, group: str = "default", **fields: Any) -> list[wire.Delivery]:
            began = time.time_ns()
            found = await lease(client, queue, group=group, **fields)
            self._received(queue, group, [Received(delivery) for delivery in found], began)
            return found

        return traced

    def around_lease_messages(self, lease: Call[list[Message]]) -> Call[list[Message]]:
        async def traced(
            client: Client, consumer: Consumer, limit: int, wait_seconds: float, lease_seconds: float
        ) -> list[Message]:
            began = time.time_ns()
            found = await lease(client, consumer, limit, wait_seconds, lease_seconds)
            self._received(consumer.queue, consumer.group, found, began)
            return found

        return traced

    def _received(self, queue: str, group: str, messages: Sequence[Received], began: int) -> None:
        """A poll that found nothing is no span: an idle worker would record nothing else."""
        if messages:
            attributes: Attributes = {
                "messaging.consumer.group.name": group,
                "messaging.batch.message_count": len(messages),
            }
            links = [Link(creation) for creation in map(_creation, messages) if creation.is_valid]
            self._begin("receive", "receive", queue, SpanKind.CLIENT, attributes, None, links, began).end()

    # --- process and settle -----------------------------------------------------------------------------------------

    def around_handle(self, handle: Call[Result]) -> Call[Result]:
        async def traced(
            worker: Worker[..., Any], message: Message, client: Client, threads: object, portal: object,
            around: Sequence[Middleware] = (),
        ) -> Result:  # fmt: skip
            return await handle(worker, message, client, threads, portal, (self._process, *around))

        return traced

    async def _process(self, message: Message, proceed: Proceed) -> object:
        creation = _creation(message)
        links = [Link(creation)] if creation.is_valid else []
        attributes = {**_attributes(message), "holdfast.attempt": message.attempt}
        context = context_of(message)
        span = self._begin("process", "process", message.queue, SpanKind.CONSUMER, attributes, context, links)
        self._processing[message] = span.get_span_context()
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                return await proceed()
            except Release:
                raise
            except BaseException as error:
                span.record_exception(error)
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR, str(error)))
                raise

    def around_settle_one(self, settle: Call[str | None]) -> Call[str | None]:
        async def traced(client: Client, message: Message, settlement: wire.Settlement) -> str | None:
            if settlement.action == "extend":
                return await settle(client, message, settlement)
            # A worker settles when its function has ended, outside of that span.
            processing = self._processing.get(message)
            context = context_of(message)
            if processing is not None:
                context = trace.set_span_in_context(trace.NonRecordingSpan(processing), context)
            creation = _creation(message)
            links = [Link(creation)] if creation.is_valid else []
            span = self._begin(
                settlement.action, "settle", message.queue, SpanKind.CLIENT, _attributes(message), context, links
            )
            with trace.use_span(span, end_on_exit=True):
                return await settle(client, message, settlement)

        return traced


def _with_context(properties: Mapping[str, str | Sequence[str]]) -> dict[str, str | Sequence[str]]:
    """Properties of a message, with the context of the current span unless they have one."""
    found = dict(properties)
    if TRACEPARENT not in found:
        carrier: dict[str, str] = {}
        _propagator.inject(carrier)
        found.update(carrier)
    return found


async def _drafts(messages: Iterable[object] | AsyncIterable[object]) -> AsyncIterator[wire.Draft]:
    """The messages as drafts that carry the context of the current span."""
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield _carrying(as_draft(message))
    else:
        for message in messages:
            yield _carrying(as_draft(message))


def _carrying(draft: wire.Draft) -> wire.Draft:
    properties = {
        name: value if isinstance(value, str) else list(value)
        for name, value in _with_context(draft.properties).items()
    }
    return replace(draft, properties=properties)


def _name(span: Span, sent: object) -> None:
    if isinstance(sent, Sent):
        span.set_attribute("messaging.message.id", sent.id)
    elif isinstance(sent, Reply):
        span.set_attribute("messaging.message.id", sent.request_id)


def _creation(message: Received) -> SpanContext:
    return trace.get_current_span(context_of(message)).get_span_context()


def _attributes(message: Received) -> Attributes:
    return {
        "messaging.message.id": message.id,
        "messaging.consumer.group.name": message.group,
        "messaging.message.body.size": len(message.body),
    }
