"""A node with the gRPC front, and a client made from the contract."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2, message_factory
from google.rpc import error_details_pb2, status_pb2
from msgspec.structs import replace

from holdfast.auth import keys, tokens
from holdfast.auth.gate import Gate
from holdfast.broker.node import Node
from holdfast.config import Config
from holdfast.config.grpc_settings import GrpcSettings
from holdfast.config.secret import SecretText
from holdfast.config.settings import HttpSettings, JournalSettings, MqttSettings, NodeSettings
from holdfast.grpc_api import GrpcFront
from holdfast.grpc_api.generated import queue_pb2 as pb
from holdfast.store.memory import MemoryStore
from holdfast.units import MINUTE
from tests.waiting import PATIENCE_SECONDS

SECRET = SecretText("x" * 40)


def config_for(path: Path, **changes: Any) -> Config:
    return replace(
        Config(
            node=NodeSettings(data_dir=path, max_loop_lag=10 * MINUTE),  # late on a busy machine, and not unready
            journal=JournalSettings(enabled=False),
            http=HttpSettings(listen="127.0.0.1:0"),
            mqtt=MqttSettings(listen="127.0.0.1:0"),
            grpc=GrpcSettings(listen="127.0.0.1:0"),
        ),
        **changes,
    )


def token(*scopes: str, namespace: str = "default", subject: str = "somebody") -> str:
    claims = tokens.Claims(sub=subject, ns=namespace, scope=list(scopes), exp=int(time.time()) + 36_000)
    return tokens.sign(claims, keys.from_secret(SECRET))


def bearer(*scopes: str, **who: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token(*scopes, **who)}"),)


class Api:
    """The methods of both services by name: `await api.Enqueue(request)`, `call = api.Produce()`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        for service in pb.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                kinds = (
                    "stream" if method.client_streaming else "unary",
                    "stream" if method.server_streaming else "unary",
                )
                call = getattr(channel, "_".join(kinds))(
                    f"/{service.full_name}/{method.name}",
                    request_serializer=message_factory.GetMessageClass(method.input_type).SerializeToString,
                    response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
                )
                setattr(self, method.name, partial(call, timeout=PATIENCE_SECONDS))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@asynccontextmanager
async def serving(config: Config, gate: Gate | None = None) -> AsyncIterator[GrpcFront]:
    node = Node(config, MemoryStore())
    await node.start()
    gate = gate or Gate(config, node.clock)
    front = GrpcFront(config, node, gate)
    await front.start()
    try:
        yield front
    finally:
        await front.stop()
        await node.stop()
        await gate.close()


@asynccontextmanager
async def calling(front: GrpcFront, *, own: bool = False) -> AsyncIterator[Api]:
    """`own`: by a connection that no other client has. Those of one process share theirs."""
    options = [("grpc.use_local_subchannel_pool", int(own))]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{front.address[1]}", options=options) as channel:
        yield Api(channel)


def drafts(*payloads: bytes) -> list[pb.Draft]:
    return [pb.Draft(payload=payload) for payload in payloads]


def details_of(error: grpc.aio.AioRpcError) -> tuple[str, error_details_pb2.RetryInfo | None]:
    """The code of an error, and when to try again, as `google.rpc.Status` says it."""
    trailers = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    packed: list[any_pb2.Any] = list(status.details)
    assert packed[0].Unpack(info)
    assert info.domain == "holdfast"
    return info.reason, retry if len(packed) > 1 and packed[1].Unpack(retry) else None


@asynccontextmanager
async def refused(code: str, status: grpc.StatusCode) -> AsyncIterator[None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield
    assert (caught.value.code(), details_of(caught.value)[0]) == (status, code)
