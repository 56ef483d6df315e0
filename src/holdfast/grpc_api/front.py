"""The gRPC server: listens, serves every call, and stops in order."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
import structlog
from structlog.contextvars import bound_contextvars

from holdfast.auth import exposure
from holdfast.auth.fronts.long_requests import LongRequests
from holdfast.auth.gate import Gate
from holdfast.auth.principal import Action, Principal
from holdfast.broker.dispatch.members import GroupName
from holdfast.broker.enqueue_batcher import EnqueueBatcher
from holdfast.broker.front_metrics import MetricSample, MetricSpec
from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.kinds import split_address
from holdfast.errors import AddressUnavailable, Forbidden, HoldfastError, Overloaded, RateLimited, ShuttingDown
from holdfast.grpc_api import admin, dead_letters, messages, standard
from holdfast.grpc_api.arrivals import STRANGERS_MAX, Connections, SlowArrivals
from holdfast.grpc_api.call import Context, GrpcCall
from holdfast.grpc_api.consuming import CONSUMING, Consumer
from holdfast.grpc_api.credentials import server_credentials
from holdfast.grpc_api.methods import Method, Methods
from holdfast.grpc_api.producing import PRODUCING
from holdfast.trace_context import log_fields

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

PROTOCOL: Final = "grpc"
DRAIN_SECONDS: Final = 5.0
"""How long calls may take to end at a stop before they are cut off."""

OPEN_CALLS_MAX: Final = 100
"""Calls at the same time that need no credential (health, reflection): strangers get no more."""

HANDSHAKE_MS: Final = 10_000
IDLE_MS: Final = 60_000
"""Connections without calls are closed; clients open another when they need one."""

KEEPALIVE_MS: Final = 60_000
KEEPALIVE_TIMEOUT_MS: Final = 20_000
CONNECTION_STREAMS_MAX: Final = 1_000
IDENTITY_ONLY: Final = 1
"""Of the compression algorithms: a small request could become a large one."""

METHODS: Final[tuple[Methods, ...]] = (
    messages.METHODS,
    PRODUCING,
    CONSUMING,
    admin.METHODS,
    dead_letters.METHODS,
    *standard.METHODS,
)

CALLS: Final = MetricSpec("grpc_calls", "counter", "gRPC calls that have ended, by their status.", "status")
STREAMS: Final = MetricSpec("grpc_streams", "gauge", "gRPC calls that stream or wait for a delivery.")


class GrpcFront:
    """See the module."""

    def __init__(self, config: Config, node: Node, gate: Gate) -> None:
        self.node = node
        self.gate = gate
        self.settings = config.grpc
        self.calls = 0  # that are being worked on
        self.streams = 0
        self.open_calls = 0
        self.buffered_bytes = 0
        self.closing = False
        self.consumers: dict[tuple[GroupName, str], Consumer] = {}
        self.long_requests = LongRequests(gate, node.cell.quotas)
        self.slow_arrivals = SlowArrivals(max(self.settings.max_buffered_bytes // self.settings.max_request_bytes, 1))
        self.slow_strangers = SlowArrivals(STRANGERS_MAX)
        self._connections = Connections(node.cell.quotas)
        self.batcher = EnqueueBatcher(node, PROTOCOL)
        self._rates = gate.request_rates(node.cell.quotas)
        self._config = config
        self._methods = {method.path: method for methods in METHODS for method in methods.found}
        self._ended: dict[str, float] = {}
        self._acts: set[asyncio.Task[Any]] = set()
        self._server: grpc.aio.Server | None = None
        self._port = 0

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return split_address(self.settings.listen)[0], self._port

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen and serve."""
        settings, secure = self.settings, self._config.tls.certificate_file is not None
        host, port = split_address(settings.listen)
        exposure.check(self._config.auth, host, front="gRPC", tls=secure)
        server = grpc.aio.server(
            handlers=[_Handlers(self)],
            options=[
                ("grpc.so_reuseport", 0),  # a second server on the same port is a mistake
                ("grpc.max_receive_message_length", settings.max_request_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.compression_enabled_algorithms_bitset", IDENTITY_ONLY),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
                ("grpc.max_concurrent_streams", CONNECTION_STREAMS_MAX),
                ("grpc.max_allowed_incoming_connections", settings.max_connections),
                ("grpc.max_connection_idle_ms", IDLE_MS),
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
            ],
            maximum_concurrent_rpcs=settings.max_calls + settings.max_streams + OPEN_CALLS_MAX,
        )
        address = f"{f'[{host}]' if ':' in host else host or '[::]'}:{port}"
        try:
            if secure:
                self._port = server.add_secure_port(address, server_credentials(self._config.tls))
            else:
                self._port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise AddressUnavailable(
                address=settings.listen, setting="grpc.listen", problem=str(error)[:200]
            ) from error
        self.node.cell.participants.append(self.batcher)
        self.node.metric_sources.append(self._readings)
        await server.start()
        self._server = server
        log.info("gRPC is listening", address=f"{host}:{self._port}", tls=secure)

    async def stop(self) -> None:
        """Refuse new calls, end those that wait and stream, let the others finish, close."""
        self.closing = True
        self.long_requests.close()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(DRAIN_SECONDS)
            if self._acts:
                await asyncio.wait(self._acts, timeout=DRAIN_SECONDS)
            self.node.cell.participants.remove(self.batcher)
            self.node.metric_sources.remove(self._readings)

    def _readings(self) -> list[MetricSample]:
        return [MetricSample(CALLS, dict(self._ended)), MetricSample(STREAMS, {"": float(self.streams)})]

    # --- limits -----------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises ShuttingDown if the server stops."""
        if self.closing:
            raise ShuttingDown

    @property
    def is_full(self) -> bool:
        """Whether requests fill the memory that they may have."""
        return self.buffered_bytes >= self.settings.max_buffered_bytes

    def enter(self) -> None:
        """A call is being worked on, until it leaves."""
        self.calls += 1

    def leave(self) -> None:
        self.calls -= 1

    def _is_limited(self, principal: Principal) -> bool:
        return not principal.unlimited or self.node.cell.quotas.any_own

    def take_rate(self, principal: Principal) -> None:
        """Count a request, or a batch of a stream. Raises RateLimited."""
        if self._is_limited(principal):
            try:
                self._rates.take(principal.namespace, principal.owner, self.node.clock())
            except RateLimited:
                self.gate.counts.rate_limited += 1
                raise

    def count_bytes(self, principal: Principal, size_bytes: int) -> None:
        """Count bytes that have arrived: the next request of the namespace may have to wait for them."""
        if self._is_limited(principal):
            self._rates.add_bytes(principal.namespace, principal.owner, size_bytes, self.node.clock())

    # --- a call -----------------------------------------------------------------------------------------------------

    def find(self, path: str) -> Method | None:
        return self._methods.get(path)

    async def serve(self, method: Method, context: Context) -> None:
        """Serve one call to its end."""
        call = GrpcCall(self, method, context)
        status = "OK"
        self.enter()
        try:
            with bound_contextvars(**log_fields(call.trace_context)):
                await self._serve(call)
        except HoldfastError as error:
            status = error.grpc
            await call.abort(error)
        except asyncio.CancelledError:
            status = "CANCELLED"  # the client has gone, or its deadline has passed
            raise
        except Exception as error:
            if call.gone:
                status = "CANCELLED"
                return
            status = HoldfastError.grpc
            log.error("a call failed", method=method.path, exc_info=error, **log_fields(call.trace_context))
            await call.abort(HoldfastError())
        finally:
            self.leave()
            call.end()
            self._ended[status] = self._ended.get(status, 0) + 1

    async def _serve(self, call: GrpcCall) -> None:
        method = call.method
        if method.open:
            await self._serve_stranger(call)
            return
        await call.identify()
        self.check_open()
        self.take_rate(call.principal)
        with self._connections.used(call.connection, call.principal):
            await self._serve_caller(call)

    async def _serve_caller(self, call: GrpcCall) -> None:
        method = call.method
        if self.calls > self.settings.max_calls:
            raise Overloaded(waiting=self.calls)
        if method.right is not None:
            await self._require_somewhere(call, method.right)
        if method.stream is not None:
            await method.stream(call)
            return
        assert method.request is not None
        assert method.unary is not None
        request = await call.request(method.request)
        response = await (self._administer(call, request) if method.act else method.unary(call, request))
        try:
            await call.send(response)
        except BaseException:
            if call.undo is not None:
                call.undo()
            raise

    async def _require_somewhere(self, call: GrpcCall, right: Action) -> None:
        """Raises Forbidden if the caller has the right nowhere, before anything of its request is read. The audit log
        has that too if it is an act."""
        try:
            call.principal.require_somewhere(right)
        except Forbidden as error:
            if act := call.method.act:
                self.gate.audit.record(call.principal, act, "", error.code, front=PROTOCOL, peer=call.peer)
                await self.gate.audit.synced()
            raise

    async def _serve_stranger(self, call: GrpcCall) -> None:
        """A call that needs no credential: few at a time."""
        if self.open_calls >= OPEN_CALLS_MAX:
            raise Overloaded(waiting=self.open_calls)
        assert call.method.stream is not None
        self.open_calls += 1
        self.leave()
        try:
            await call.method.stream(call)
        finally:
            self.enter()
            self.open_calls -= 1

    async def _administer(self, call: GrpcCall, request: Any) -> Any:
        """Do an act of administration: the audit log has it before it is answered, also if it is refused. Once it has
        begun it goes on to its end, also if the client does not wait for it."""
        task = asyncio.get_running_loop().create_task(self._act(call, request))
        self._acts.add(task)
        task.add_done_callback(self._acted)
        return await asyncio.shield(task)

    def _acted(self, task: asyncio.Task[Any]) -> None:
        self._acts.discard(task)
        if not task.cancelled():
            task.exception()  # the audit log has it; the caller, if it still waits, is told

    async def _act(self, call: GrpcCall, request: Any) -> Any:
        method = call.method
        assert method.unary is not None
        name = getattr(request, method.resource)
        try:
            with self.gate.audit.act(call.principal, method.act, name, front=PROTOCOL, peer=call.peer) as details:
                call.audit_details = details
                return await method.unary(call, request)
        finally:
            await self.gate.audit.synced()


class _Handlers(grpc.GenericRpcHandler):
    """Every method, as a stream of bytes in both directions: see `call`."""

    def __init__(self, front: GrpcFront) -> None:
        self._front = front

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        method = self._front.find(handler_call_details.method)
        if method is None:
            return None

        async def serve(_: object, context: Any) -> None:
            await self._front.serve(method, context)

        return grpc.stream_stream_rpc_method_handler(serve)
