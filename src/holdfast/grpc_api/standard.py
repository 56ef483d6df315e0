"""The services that tools expect of every gRPC server: health (grpc.health.v1) and reflection. They need no credential:
they tell no more than `/readyz` and this package do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from holdfast.errors import ServiceNotFound
from holdfast.grpc_api.call import GrpcCall, decode
from holdfast.grpc_api.generated import queue_pb2 as pb
from holdfast.grpc_api.methods import Methods

HEALTH = Methods("grpc.health.v1.Health")
REFLECTION: Final = (
    Methods("grpc.reflection.v1.ServerReflection"),
    Methods("grpc.reflection.v1alpha.ServerReflection"),
)
"""The messages of both are the same."""

METHODS: Final = (HEALTH, *REFLECTION)

SERVICES: Final = (*pb.DESCRIPTOR.services_by_name,)
NAMES: Final = (*(f"{pb.DESCRIPTOR.package}.{name}" for name in SERVICES), HEALTH.service)

WATCH_SECONDS: Final = 1.0
OPEN_SECONDS: Final = 300.0
"""How long a stranger may hold a stream."""


async def _state(call: GrpcCall) -> int:
    """Whether the node can take work now."""
    parts = await call.node.health.components()
    ready = not call.front.closing and all(part.ready for part in parts)
    state = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
    return int(state)


async def _asked(call: GrpcCall) -> health_pb2.HealthCheckRequest:
    return await call.request(health_pb2.HealthCheckRequest)


@HEALTH.stream("Check", None, is_open=True)
async def check(call: GrpcCall) -> None:
    request = await _asked(call)
    if request.service and request.service not in NAMES:
        raise ServiceNotFound(service=request.service[:255], known=", ".join(NAMES))
    await call.send(health_pb2.HealthCheckResponse(status=await _state(call)))


@HEALTH.stream("Watch", None, is_open=True)
async def watch(call: GrpcCall) -> None:
    request = await _asked(call)
    known = not request.service or request.service in NAMES
    before: int | None = None
    loop = asyncio.get_running_loop()
    until = loop.time() + OPEN_SECONDS
    while loop.time() < until:
        state = await _state(call) if known else int(health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        if state != before:
            await call.send(health_pb2.HealthCheckResponse(status=state))
            before = state
        if call.front.closing:
            return
        await asyncio.sleep(WATCH_SECONDS)


_servicer = reflection.aio.ReflectionServicer(service_names=(*NAMES, *(part.service for part in REFLECTION)))


async def reflect(call: GrpcCall) -> None:
    """Say which services there are, and what they take and give: for grpcurl and the like."""
    async with asyncio.timeout(OPEN_SECONDS):
        async for response in _servicer.ServerReflectionInfo(_questions(call), None):
            await call.send(response)


async def _questions(call: GrpcCall) -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
    while (raw := await call.receive()) is not None:
        yield decode(reflection_pb2.ServerReflectionRequest, raw)


for _service in REFLECTION:
    _service.stream("ServerReflectionInfo", None, is_open=True)(reflect)
