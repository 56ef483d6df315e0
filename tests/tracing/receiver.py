"""A collector that spans are sent to: it speaks OTLP over HTTP, as OpenTelemetry's own does, and keeps what it gets."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.waiting import PATIENCE_SECONDS


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A span as it arrived."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    links: list[str]
    """Ids of the spans that it is linked to."""
    attributes: dict[str, object]
    failed: bool
    start_ns: int
    end_ns: int

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"


class Collector:
    """See the module."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}/v1/traces"
        self._spans: list[Received] = []
        self._arrived = threading.Condition()

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._arrived:
            for of_resource in request.resource_spans:
                resource = {one.key: one.value.string_value for one in of_resource.resource.attributes}
                for scope in of_resource.scope_spans:
                    self._spans += [_read(resource["service.name"], span) for span in scope.spans]
            self._arrived.notify_all()

    def named(self, *names: str, trace_id: str = "") -> list[Received]:
        """The first span of each name, in this order; waits until all have arrived."""
        found: list[Received] = []

        def complete() -> bool:
            mine = {one.name: one for one in reversed(self._spans) if trace_id in ("", one.trace_id)}
            found[:] = [mine[name] for name in names if name in mine]
            return len(found) == len(names)

        with self._arrived:
            assert self._arrived.wait_for(complete, PATIENCE_SECONDS), (names, [one.name for one in self._spans])
        return found

    def all_named(self, name: str) -> list[Received]:
        with self._arrived:
            return [one for one in self._spans if one.name == name]


def _read(service: str, span: Span) -> Received:
    return Received(
        service=service,
        name=span.name,
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        links=[link.span_id.hex() for link in span.links],
        attributes={one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in span.attributes},
        failed=span.status.code == span.status.STATUS_CODE_ERROR,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
    )


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            assert self.headers["content-type"] == "application/x-protobuf"
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name that the base class has
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        collector = Collector(server.server_port)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
