"""Health and reflection, asked for as tools do it."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from holdfast.grpc_api import GrpcFront
from holdfast.grpc_api.generated import queue_pb2 as pb
from tests.grpc_api.rig import refused

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def channel(front: GrpcFront) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{front.address[1]}")


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_describes_every_service(front: GrpcFront, version: str) -> None:
    """As grpcurl does it: the names of services, then the files that describe them."""
    async with channel(front) as opened:
        call = opened.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )()

        async def ask(**question: Any) -> Any:
            await call.write(reflection_pb2.ServerReflectionRequest(**question))
            return await call.read()

        services = (await ask(list_services="")).list_services_response.service
        names = {service.name for service in services}
        assert {"holdfast.v1.QueueService", "holdfast.v1.QueueAdmin", "grpc.health.v1.Health"} <= names
        found = (await ask(file_containing_symbol="holdfast.v1.QueueService")).file_descriptor_response
        files = [descriptor_pb2.FileDescriptorProto.FromString(raw) for raw in found.file_descriptor_proto]
        (ours,) = [file for file in files if file.package == "holdfast.v1"]
        expected = descriptor_pb2.FileDescriptorProto()
        pb.DESCRIPTOR.CopyToProto(expected)
        assert ours == expected
        for dependency in ours.dependency:
            assert (await ask(file_by_filename=dependency)).file_descriptor_response.file_descriptor_proto
        unknown = await ask(file_containing_symbol="holdfast.v1.Nothing")
        assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_health_says_whether_the_node_takes_work(front: GrpcFront, monkeypatch: pytest.MonkeyPatch) -> None:
    async with channel(front) as opened:
        kinds: Any = {
            "request_serializer": health_pb2.HealthCheckRequest.SerializeToString,
            "response_deserializer": health_pb2.HealthCheckResponse.FromString,
        }
        check: Any = opened.unary_unary("/grpc.health.v1.Health/Check", **kinds)
        for service in ("", "holdfast.v1.QueueService", "holdfast.v1.QueueAdmin"):
            assert (await check(health_pb2.HealthCheckRequest(service=service))).status == SERVING
        async with refused("service_not_found", grpc.StatusCode.NOT_FOUND):
            await check(health_pb2.HealthCheckRequest(service="other"))
        watching: Any = opened.unary_stream("/grpc.health.v1.Health/Watch", **kinds)
        watch = watching(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        monkeypatch.setattr(front, "closing", True)
        assert (await check(health_pb2.HealthCheckRequest())).status == NOT_SERVING
        assert (await watch.read()).status == NOT_SERVING
        monkeypatch.undo()
        call = watching(health_pb2.HealthCheckRequest(service="other"))
        assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        call.cancel()
