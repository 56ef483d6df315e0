"""Spans of clients and workers: a chain from the producer to the handler's settlement, beside the server's own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from holdfast.client import Client, Reject, SyncClient, Workers, draft, tracing, worker
from tests.console.rig import Served
from tests.tracing.receiver import Collector
from tests.tracing.test_broker_spans import flushed


@pytest.fixture
def provider(collector: Collector) -> Iterator[TracerProvider]:
    """The program has set OpenTelemetry up, and its clients record spans."""
    provider = TracerProvider(resource=Resource.create({"service.name": "shop"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(collector.endpoint)))
    tracing.instrument(provider)
    yield provider
    tracing.uninstrument()
    provider.shutdown()


async def sent_all(served: Served, provider: TracerProvider) -> None:
    await asyncio.to_thread(provider.force_flush)
    await flushed(served)


async def test_a_job_is_one_trace_over_producer_server_and_worker(
    traced: Served, collector: Collector, provider: TracerProvider
) -> None:
    seen: list[int] = []

    @worker("c/jobs")
    def handle(payload: dict[str, int]) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    async with traced.client() as client:
        with provider.get_tracer("test").start_as_current_span("checkout"):
            sent = await client.send("c/jobs", {"order": 1})
        assert await Workers(handle).work_off(client) == 1
    await sent_all(traced, provider)
    checkout, send = collector.named("checkout", "send c/jobs")
    names = ("enqueue c/jobs", "lease c/jobs", "process c/jobs", "ack c/jobs", "settle c/jobs")
    enqueue, lease, process, ack, settle = collector.named(*names, trace_id=checkout.trace_id)
    assert (send.kind, process.kind, ack.kind) == ("PRODUCER", "CONSUMER", "CLIENT")
    assert send.parent_id == checkout.span_id
    assert [one.parent_id for one in (enqueue, lease, process, settle)] == [send.span_id] * 4
    assert process.links == lease.links == [send.span_id]
    assert ack.parent_id == process.span_id
    assert settle.links == [lease.span_id]
    assert [format(one, "016x") for one in seen] == [process.span_id], "the handler runs inside of its span"
    [receive] = [one for one in collector.all_named("receive c/jobs") if send.span_id in one.links]
    assert receive.attributes["messaging.operation.type"] == "receive"
    assert {one.service for one in (send, process, ack)} == {"shop"}
    assert {one.service for one in (enqueue, lease, settle)} == {"holdfast"}
    assert {one.attributes["messaging.message.id"] for one in (send, enqueue, lease, process, ack, settle)} == {sent.id}
    assert process.attributes["messaging.operation.type"] == "process"


async def test_a_handler_that_fails_fails_its_span(
    traced: Served, collector: Collector, provider: TracerProvider
) -> None:
    @worker("c/failing")
    async def handle(payload: str) -> None:
        raise Reject(f"cannot {payload}")

    async with traced.client() as client:
        await client.send("c/failing", "work")
        await Workers(handle).work_off(client)
    await sent_all(traced, provider)
    process, reject, moved = collector.named("process c/failing", "reject c/failing", "dead-letter dlq/c/failing")
    assert process.failed
    assert process.attributes["error.type"] == "Reject"
    assert not reject.failed
    assert moved.trace_id == process.trace_id


async def test_what_a_handler_sends_continues_the_trace(
    traced: Served, collector: Collector, provider: TracerProvider
) -> None:
    async with traced.client() as client:

        @worker("c/first")
        async def handle(payload: str) -> None:
            await client.send("c/second", payload)

        await client.send("c/first", "x")
        await Workers(handle).work_off(client)
    await sent_all(traced, provider)
    process, second = collector.named("process c/first", "send c/second")
    assert (second.trace_id, second.parent_id) == (process.trace_id, process.span_id)


async def test_many_messages_share_a_span(traced: Served, collector: Collector, provider: TracerProvider) -> None:
    async with traced.client() as client:
        await client.send_many("c/many", ["a", draft("b", properties={"shop": "north"})])
        async with client.transaction() as transaction:
            await transaction.stage("c/staged", "x")
        found = await client.receive("c/many", limit=2)
        staged = await client.receive("c/staged")
    await sent_all(traced, provider)
    many, stage = collector.named("send c/many", "send c/staged")
    assert many.attributes["messaging.batch.message_count"] == 2
    assert {str(one.properties["traceparent"])[:53] for one in found} == {many.traceparent[:53]}
    assert found[1].properties["shop"] == "north"
    assert [str(one.properties["traceparent"])[:53] for one in staged] == [stage.traceparent[:53]]


async def test_the_synchronous_client_records_too(
    traced: Served, collector: Collector, provider: TracerProvider
) -> None:
    def send() -> None:
        with SyncClient(traced.url) as client, provider.get_tracer("test").start_as_current_span("nightly"):
            client.send("c/sync", "x")

    await asyncio.to_thread(send)
    await sent_all(traced, provider)
    nightly, sent = collector.named("nightly", "send c/sync")
    assert sent.parent_id == nightly.span_id


def test_instrumenting_can_be_undone() -> None:
    before = Client.send
    tracing.instrument()
    tracing.instrument()
    assert Client.send is not before
    tracing.uninstrument()
    assert Client.send is before
