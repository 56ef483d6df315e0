"""Spans of what the engine does with messages, for OpenTelemetry. Imported only where tracing is switched on.

`TracedEngine` is an engine that also records spans, so that an engine which is not traced has nothing to ask for each
message. All spans of a message belong to the trace that it carries (see `holdfast.trace_context`), which is its
producer's, or was begun here for a message that brought none:

    enqueue      from its arrival until it is durable; also of a redrive or a schedule, but not of a transaction
    lease        one for each attempt, until it is written; with a link to the span that created the message
    settle       from its arrival until it is durable; with a link to the lease that it ends
    dead-letter  the move to the dead queue

Attributes follow OpenTelemetry's conventions for messaging; `holdfast.` is before what these do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from holdfast import __version__
from holdfast.broker.commit.group_commit import DoneCallback
from holdfast.config import Config
from holdfast.core.commands import Draft, Enqueued, HomogeneousDrafts, Leased, Settlement, Verb
from holdfast.core.enqueue import PROPERTIES_MAX
from holdfast.core.queue import Durability
from holdfast.core.records import Extra
from holdfast.engine.catalog import Queue, QueueName, Routes
from holdfast.engine.engine import NOTHING_KNOWN, Engine, Limits, SettleResult
from holdfast.engine.message_ids import Known
from holdfast.errors import HoldfastError
from holdfast.store.contract import Store
from holdfast.trace_context import TRACEPARENT, Pairs, find, is_sampled

Attributes = dict[str, AttributeValue]
OnDurable = Callable[[DoneCallback], None]

LEASES_MAX: Final = 100_000
"""Leases whose spans are remembered, for their settlements: some 40 MiB. The oldest are forgotten beyond it."""

SEND, RECEIVE, SETTLE = "send", "receive", "settle"  # as the conventions name the types of operations


class Tracing:
    """Records spans and sends them to a collector."""

    def __init__(self, config: Config, clock: Callable[[], int]) -> None:
        settings = config.tracing
        resource = Resource.create(
            {"service.name": "holdfast", "service.version": __version__, "service.instance.id": config.node.node_id}
        )
        sampler = ParentBased(TraceIdRatioBased(settings.new_traces_percent / 100))
        self._provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(settings.endpoint or None)))
        self._spans = Spans(self._provider, clock, begins_traces=settings.new_traces_percent > 0)

    def engine(self, store: Store, cell: int, limits: Limits, on_durable: OnDurable) -> Engine:
        """An engine that records spans."""
        return TracedEngine(store, cell, limits, self._spans, on_durable)

    def flush(self) -> None:
        """Send now what is not sent yet; blocks until it is."""
        self._provider.force_flush()

    def close(self) -> None:
        """Send what is not sent yet. Blocks for a while if the collector does not answer."""
        self._provider.shutdown()


class Spans:
    """Begins and ends spans."""

    def __init__(self, provider: TracerProvider, clock: Callable[[], int], *, begins_traces: bool) -> None:
        self._tracer = provider.get_tracer("holdfast", __version__)
        self._clock = clock
        self._propagator = TraceContextTextMapPropagator()
        self.begins_traces = begins_traces

    def parent(self, carried: Pairs) -> Context:
        """The context of the span that a message carries; of none, the context in which a trace begins."""
        return self._propagator.extract(dict(carried), Context())

    def begin(
        self, operation: str, kind: str, queue: QueueName, parent: Context, now: int, attributes: Attributes,
        links: Sequence[Link] = (),
    ) -> Span:  # fmt: skip
        return self._tracer.start_span(
            f"{operation} {queue[1]}",
            parent,
            SpanKind.SERVER,
            {
                "messaging.system": "holdfast",
                "messaging.operation.name": operation,
                "messaging.operation.type": kind,
                "messaging.destination.name": queue[1],
                "holdfast.namespace": queue[0],
                **attributes,
            },
            links,
            now * 1000,
        )

    def end(self, spans: Sequence[Span], error: HoldfastError | None = None) -> None:
        """They end now. With an error: what they did is not stored."""
        now = self._clock() * 1000
        for span in spans:
            if error is not None:
                fail(span, error)
            span.end(now)


def fail(span: Span, error: HoldfastError) -> None:
    span.set_attribute("error.type", error.code)
    span.set_status(Status(StatusCode.ERROR, str(error)))


class LeaseSpan(NamedTuple):
    """The span of a lease, and the context of the message."""

    span: SpanContext
    message: Context


class TracedEngine(Engine):
    """See the module."""

    def __init__(self, store: Store, cell: int, limits: Limits, spans: Spans, on_durable: OnDurable) -> None:
        super().__init__(store, cell, limits)
        self._spans = spans
        self._on_durable = on_durable
        self._until_written: list[Span] = []
        self._until_durable: list[Span] = []
        self._leases: dict[tuple[QueueName, str, int], LeaseSpan] = {}
        self._enqueuing = False  # a call of `enqueue_routed` is a part of an enqueue, and not a move of dead letters

    def write(self) -> bool:
        """Write the batch; spans of what it holds end now, or when it is durable."""
        must_sync = super().write()
        if self._until_written:
            spans, self._until_written = self._until_written, []
            self._spans.end(spans)
        if self._until_durable:
            spans, self._until_durable = self._until_durable, []
            self._on_durable(partial(self._spans.end, spans))
        return must_sync

    def _leave_open(self, queue: Queue, spans: list[Span]) -> None:
        """They end when what they did is as safe as the queue asks for."""
        open_spans = self._until_durable if queue.config.durability is Durability.FSYNC else self._until_written
        open_spans += spans

    # --- enqueue ----------------------------------------------------------------------------------------------------

    def enqueue_in(
        self,
        queue: Queue,
        drafts: Sequence[Draft],
        protocol: str,
        now: int,
        atomic: bool = False,
        group: str = "",
    ) -> Enqueued:
        sent = self._sent("enqueue", queue, drafts, protocol, now)
        self._enqueuing = True
        try:
            reply = super().enqueue_in(queue, sent.drafts, protocol, now, atomic, group)
        except HoldfastError as error:
            self._spans.end(list(sent.spans), error)
            raise
        finally:
            self._enqueuing = False
        self._leave_open(queue, sent.spans_with(reply))
        return reply

    def enqueue_routed(
        self,
        queue: Queue,
        routes: Routes,
        drafts: Sequence[Draft],
        room: int,
        protocol: str,
        now: int,
        dry_run: bool = False,
        group: str = "",
        known: Known = NOTHING_KNOWN,
    ) -> Enqueued:
        if self._enqueuing or dry_run:
            return super().enqueue_routed(queue, routes, drafts, room, protocol, now, dry_run, group, known)
        sent = self._sent("dead-letter", queue, drafts, protocol, now, begins_traces=False)
        reply = super().enqueue_routed(queue, routes, drafts, room, protocol, now, dry_run, group, known)
        self._until_written += sent.spans_with(reply)
        return reply

    def _sent(
        self,
        operation: str,
        queue: Queue,
        drafts: Sequence[Draft],
        protocol: str,
        now: int,
        *,
        begins_traces: bool = True,
    ) -> _Sent:
        """A span for the drafts of each context that is recorded. A message that brings no context is given that of its
        span. Payloads that came as one column, from one request, share one."""
        begins_traces = begins_traces and self._spans.begins_traces
        sent = _Sent(drafts, {})
        begin = partial(self._begin_send, operation, queue, protocol, now)
        if type(drafts) is HomogeneousDrafts:
            carried = find(drafts.extra.properties)
            if is_sampled(carried) or (not carried and begins_traces):
                span = begin(carried, range(len(drafts)), drafts.payloads.size_bytes)
                if span.is_recording():
                    sent.spans[span] = range(len(drafts))
                    sent.drafts = HomogeneousDrafts(drafts.payloads, _carrying(drafts.extra, carried, span))
            return sent
        by_context: dict[Pairs, list[int]] = {}
        changed: list[Draft] = []
        for index, draft in enumerate(drafts):
            carried = find(draft.extra.properties) if draft.extra.properties else ()
            if is_sampled(carried):
                by_context.setdefault(carried, []).append(index)
            elif not carried and begins_traces:
                span = begin((), (index,), len(draft.payload))
                if span.is_recording():
                    sent.spans[span] = (index,)
                    changed = changed or list(drafts)
                    changed[index] = replace(draft, extra=_carrying(draft.extra, (), span))
        for carried, indexes in by_context.items():
            size_bytes = sum([len(drafts[index].payload) for index in indexes])
            sent.spans[begin(carried, indexes, size_bytes)] = indexes
        sent.drafts = changed or drafts
        return sent

    def _begin_send(
        self, operation: str, queue: Queue, protocol: str, now: int, carried: Pairs, indexes: Collection[int], size: int
    ) -> Span:
        attributes: Attributes = {"holdfast.protocol": protocol, "messaging.message.body.size": size}
        if len(indexes) > 1:
            attributes["messaging.batch.message_count"] = len(indexes)
        return self._spans.begin(operation, SEND, queue.name, self._spans.parent(carried), now, attributes)

    # --- lease and settle -------------------------------------------------------------------------------------------

    def lease_in(
        self,
        queue: Queue,
        group: str,
        limit: int,
        timeout: int,
        consumer: str,
        protocol: str,
        now: int,
        partitions: Collection[int] | None = None,
        max_bytes: int = 0,
    ) -> list[Leased]:
        found = super().lease_in(queue, group, limit, timeout, consumer, protocol, now, partitions, max_bytes)
        for leased in found:
            properties = leased.message.extra.properties
            carried = find(properties) if properties else ()
            if is_sampled(carried):
                self._leased(queue, leased, consumer, protocol, carried, now)
        return found

    def _leased(self, queue: Queue, leased: Leased, consumer: str, protocol: str, carried: Pairs, now: int) -> None:
        message, context = leased.message, self._spans.parent(carried)
        attributes: Attributes = {
            "messaging.message.id": str(message.id),
            "messaging.message.body.size": len(message.payload),
            "messaging.consumer.group.name": leased.group,
            "messaging.client.id": consumer,
            "messaging.destination.partition.id": str(leased.partition),
            "holdfast.protocol": protocol,
            "holdfast.attempt": leased.attempt,
        }
        creation = get_current_span(context).get_span_context()
        span = self._spans.begin("lease", RECEIVE, queue.name, context, now, attributes, (Link(creation),))
        self._until_written.append(span)
        self._leases.pop((queue.name, leased.group, message.id), None)  # so that it is the newest
        self._leases[queue.name, leased.group, message.id] = LeaseSpan(span.get_span_context(), context)
        if len(self._leases) > LEASES_MAX:
            self._leases.pop(next(iter(self._leases)))

    def settle(self, name: QueueName, group: str, settlements: list[Settlement], now: int) -> list[SettleResult]:
        results = super().settle(name, group, settlements, now)
        if self._leases:
            for settlement, result in zip(settlements, results, strict=True):
                if settlement.verb is not Verb.EXTEND:
                    self._settled(name, group, settlement.id, settlement.verb, result, now)
        return results

    def ack(
        self, name: QueueName, group: str, ids: list[int], tokens: list[int], now: int, partition: int = -1
    ) -> list[SettleResult]:
        results = super().ack(name, group, ids, tokens, now, partition)
        if self._leases:
            for message_id, result in zip(ids, results, strict=True):
                self._settled(name, group, message_id, Verb.ACK, result, now)
        return results

    def _settled(
        self, name: QueueName, group: str, message_id: int, verb: Verb, result: SettleResult, now: int
    ) -> None:
        lease = self._leases.get((name, group, message_id))
        if lease is None:
            return
        attributes: Attributes = {
            "messaging.message.id": str(message_id),
            "messaging.consumer.group.name": group,
            "holdfast.settlement": verb.value,
        }
        span = self._spans.begin("settle", SETTLE, name, lease.message, now, attributes, (Link(lease.span),))
        if isinstance(result, HoldfastError):
            self._spans.end([span], result)
            return
        del self._leases[name, group, message_id]
        self._leave_open(self.queues[name], [span])


class _Sent:
    """Drafts, and the spans of which of them."""

    def __init__(self, drafts: Sequence[Draft], spans: dict[Span, Collection[int]]) -> None:
        self.drafts = drafts
        self.spans = spans

    def spans_with(self, reply: Enqueued) -> list[Span]:
        """The spans, with what became of their messages."""
        for span, indexes in self.spans.items():
            errors = [reply.errors[index] for index in indexes if index in reply.errors]
            if errors:
                fail(span, errors[0])
            elif len(indexes) == 1:
                span.set_attribute("messaging.message.id", str(reply.ids[next(iter(indexes))]))
        return list(self.spans)


def _carrying(extra: Extra, carried: Pairs, span: Span) -> Extra:
    """The fields of a message, with the context of a span if it brought none."""
    if carried or len(extra.properties) >= PROPERTIES_MAX:
        return extra
    context = span.get_span_context()
    traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return replace(extra, properties=(*extra.properties, (TRACEPARENT, traceparent)))
