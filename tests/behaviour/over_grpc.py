"""A client that enqueues, leases and settles over gRPC, and makes, changes and removes queues and groups.

It is the ordinary client, whose requests are translated where it would send them. What the gRPC services do not have
(browsing, single messages, transactions), and what cannot be said in their types (a setting that does not exist, a
negative priority), goes the way of any other client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from msgspec import Raw, json
from msgspec.structs import replace

from holdfast import wire
from holdfast.auth.gate import Gate
from holdfast.client import Client, Retries
from holdfast.client.calls import Answer, Call
from holdfast.client.problems import error_of
from holdfast.config.grpc_settings import GrpcSettings
from holdfast.errors import HoldfastError, LimitExceeded
from holdfast.grpc_api import GrpcFront
from holdfast.grpc_api.generated import queue_pb2 as pb
from holdfast.testing import Broker
from holdfast.units import format_instant, parse_duration, parse_instant, parse_size
from tests.grpc_api.rig import Api, details_of

ENUMS = ("ordering", "journal", "durability")


class GrpcClient(Client):
    """See the module."""

    def __init__(self, api: Api, broker: Broker) -> None:
        super().__init__("http://localhost", retries=Retries(attempts=1), transport=broker.transport())
        self._api = api

    async def call(self, call: Call[Answer]) -> Answer:
        parts = [unquote(part) for part in call.path.partition("?")[0].split("/")][3:]  # behind /api/v1
        known: Callable[[str, bytes], Awaitable[object]] | None = None
        match (call.method, *parts):
            case ("POST", "queues"):
                queue, known = "", self._create
            case ("POST", "queues", queue, "messages") if "?" not in call.path:
                known = self._enqueue
            case ("POST", "queues", queue, "leases"):
                known = self._lease
            case ("POST", "queues", queue, "settle"):
                known = self._settle
            case ("PUT", "queues", queue, "config"):
                known = self._update
            case ("POST", "queues", queue, "purge"):
                known = self._purge
            case _:
                return await super().call(call)
        try:
            return call.read(json.encode(await known(queue, call.body)))
        except _Unsayable:
            return await super().call(call)
        except _AllRefused as all_refused:
            if call.refused is None:
                raise all_refused.error from None
            return call.refused(all_refused.errors)

    async def _create(self, _: str, body: bytes) -> object:
        asked = json.decode(body, type=wire.QueueCreate)
        await self._do(self._api.CreateQueue, pb.CreateQueueRequest(name=asked.name, config=_config(asked.config)))
        return await self.queue(asked.name)

    async def _update(self, queue: str, body: bytes) -> object:
        await self._do(self._api.UpdateQueue, pb.UpdateQueueRequest(name=queue, config=_config(json.decode(body))))
        return await self.queue(queue)

    async def _purge(self, queue: str, _: bytes) -> object:
        return wire.Purged((await self._do(self._api.PurgeQueue, pb.PurgeQueueRequest(name=queue))).messages)

    async def _enqueue(self, queue: str, body: bytes) -> object:
        asked = json.decode(body, type=wire.Enqueue)
        request = pb.EnqueueRequest(queue=queue, messages=[_draft(one) for one in asked.messages], atomic=asked.atomic)
        stored = await self._do(self._api.Enqueue, request, len(asked.messages))
        return wire.Receipt(
            ids=[str(one) if one else None for one in stored.ids],
            duplicates=list(stored.duplicates),
            errors=[_item_error(one.index, one.problem) for one in stored.errors],
        )

    async def _lease(self, queue: str, body: bytes) -> object:
        asked = json.decode(body, type=wire.Lease)
        if asked.limit < 1:
            raise _Unsayable
        request = pb.LeaseRequest(
            queue=queue,
            group=asked.group,
            limit=asked.limit,
            wait=_duration(asked.wait),
            timeout=_duration(asked.timeout),
            consumer=asked.consumer,
            max_bytes=asked.max_bytes,
            must_exist=not asked.create,
        )
        leased = await self._do(self._api.Lease, request)
        return wire.Leased([_delivery(one, queue, asked.group) for one in leased.deliveries])

    async def _settle(self, queue: str, body: bytes) -> object:
        asked = json.decode(body, type=wire.Settle)
        settlements = [
            pb.Settlement(
                id=int(one.id),
                lease_token=int(one.lease_token or 0),
                action=f"SETTLE_ACTION_{one.action.upper()}",
                delay=_duration(one.delay),
                error=one.error,
                timeout=_duration(one.timeout),
            )
            for one in asked.settlements
        ]
        request = pb.SettleRequest(queue=queue, group=asked.group, settlements=settlements)
        done = await self._do(self._api.Settle, request, len(settlements))
        return wire.Settled(
            settled=done.settled,
            errors=[_item_error(one.index, one.problem) for one in done.errors],
            deadlines={str(one): format_instant(at.ToMicroseconds()) for one, at in done.deadlines.items()},
        )

    async def _do(self, method: Callable[[Any], Awaitable[Any]], request: object, items: int = 0) -> Any:
        """`items`: of a batch, each of which is refused if the call fails."""
        try:
            return await method(request)
        except grpc.aio.AioRpcError as error:
            found = wire.ItemError(index=0, code=details_of(error)[0], detail=error.details() or "")
            if items and found.code != LimitExceeded.code:  # which is said of the batch, and not of its items
                raise _AllRefused([replace(found, index=index) for index in range(items)]) from None
            raise error_of(found) from None


class _Unsayable(Exception):
    """Protobuf's types have no such value."""


class _AllRefused(Exception):
    def __init__(self, errors: list[wire.ItemError]) -> None:
        super().__init__(errors)
        self.errors = errors
        self.error: HoldfastError = error_of(errors[0])


def _item_error(index: int, problem: pb.Problem) -> wire.ItemError:
    return wire.ItemError(
        index=index,
        code=problem.code,
        detail=problem.message,
        retryable=problem.retryable,
        details=dict(problem.details),
    )


def _duration(value: object) -> Duration | None:
    if value is None:
        return None
    made = Duration()
    made.FromMicroseconds(parse_duration(value))
    return made


def _instant(value: object) -> Timestamp | None:
    if value is None:
        return None
    made = Timestamp()
    made.FromMicroseconds(parse_instant(value))
    return made


def _draft(item: wire.Draft) -> pb.Draft:
    if item.priority < 0:
        raise _Unsayable
    payload, content_type = b"", item.content_type
    if isinstance(item.payload, Raw):
        payload = bytes(item.payload)
    elif isinstance(item.text, str):
        payload, content_type = item.text.encode(), content_type or "text/plain; charset=utf-8"
    elif isinstance(item.base64, bytes):
        payload = item.base64
    pairs = [
        pb.Property(name=name, value=each)
        for name, value in item.properties.items()
        for each in ([value] if isinstance(value, str) else value)
    ]
    return pb.Draft(
        payload=payload,
        key=item.key,
        message_id=item.message_id,
        properties=pairs,
        priority=item.priority,
        delay=_duration(item.delay),
        deliver_at=_instant(item.deliver_at),
        ttl=_duration(item.ttl),
        correlation_id=item.correlation_id,
        content_type=content_type,
        reply_to=item.reply_to,
    )


def _delivery(item: pb.Delivery, queue: str, group: str) -> wire.Delivery:
    message = item.message
    properties: dict[str, str | list[str]] = {}
    for pair in message.properties:
        before = properties.get(pair.name)
        if before is None:
            properties[pair.name] = pair.value
        else:
            properties[pair.name] = [*([before] if isinstance(before, str) else before), pair.value]
    optional: dict[str, Any] = {
        name: getattr(message, name) if message.HasField(name) else None
        for name in ("key", "message_id", "correlation_id", "content_type", "reply_to")
    }
    return wire.Delivery(
        id=str(message.id),
        sequence=message.sequence,
        partition=message.partition,
        enqueued_at=format_instant(message.enqueued_at.ToMicroseconds()),
        expires_at=format_instant(message.expires_at.ToMicroseconds()) if message.HasField("expires_at") else None,
        base64=message.payload,
        priority=message.priority,
        properties=properties,
        origin=_origin(message.origin) if message.HasField("origin") else None,
        queue=queue,
        group=group,
        attempt=item.attempt,
        lease_token=str(item.lease_token),
        lease_deadline=format_instant(item.lease_deadline.ToMicroseconds()),
        **optional,
    )


def _origin(origin: pb.Origin) -> wire.Origin:
    first, last = origin.first_attempt_at.ToMicroseconds(), origin.last_attempt_at.ToMicroseconds()
    return wire.Origin(
        source_id=str(origin.source_id),
        source_queue=origin.source_queue,
        source_group=origin.source_group,
        reason=origin.reason,
        error=origin.error,
        attempts=origin.attempts,
        first_attempt_at=format_instant(first) if first else None,
        last_attempt_at=format_instant(last) if last else None,
    )


def _config(fields: Mapping[str, Any]) -> pb.QueueConfig:
    config = pb.QueueConfig()
    try:
        for name, value in fields.items():
            _set(config, name, value)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _Unsayable from error
    return config


def _set(config: Any, name: str, value: Any) -> None:
    """Nested settings are mappings, or have dotted names."""
    section, dot, rest = name.partition(".")
    if dot:
        _set(getattr(config, section), rest, value)
    elif isinstance(value, Mapping):
        for inner, one in value.items():
            _set(getattr(config, name), inner, one)
    elif name in ENUMS:
        setattr(config, name, f"{name}_{value}".upper())
    elif name == "topics":
        config.topics.filters.extend(value)
        config.topics.SetInParent()
    elif config.DESCRIPTOR.fields_by_name[name].message_type is not None:
        getattr(config, name).CopyFrom(_duration(value))
    elif name == "max_message_size":
        config.max_message_size = parse_size(value)
    else:
        setattr(config, name, value)


@asynccontextmanager
async def grpc_client(broker: Broker) -> AsyncIterator[GrpcClient]:
    config = replace(broker.node.config, grpc=GrpcSettings(listen="127.0.0.1:0"))
    gate = Gate(config, broker.node.clock)
    front = GrpcFront(config, broker.node, gate)
    await front.start()
    try:
        address = f"127.0.0.1:{front.address[1]}"
        async with grpc.aio.insecure_channel(address) as channel, GrpcClient(Api(channel), broker) as client:
            yield client
    finally:
        await front.stop()
        await gate.close()
