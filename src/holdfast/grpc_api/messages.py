"""QueueService but for its two-way streams: enqueue, lease, settle, extend, and reading a queue as a log."""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.auth.fronts.long_requests import expired
from holdfast.auth.principal import Action
from holdfast.broker.dispatch.dispatcher import releases
from holdfast.core.commands import Leased
from holdfast.core.queue import check_name
from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.grpc_api.call import GrpcCall
from holdfast.grpc_api.codecs import duration, fill_deliveries, fill_message, read_consumer
from holdfast.grpc_api.counting import check_items, check_messages
from holdfast.grpc_api.enqueueing import PROTOCOL, enqueue
from holdfast.grpc_api.generated import queue_pb2 as pb
from holdfast.grpc_api.methods import Methods
from holdfast.grpc_api.settling import Settled, settle
from holdfast.units import MIB

METHODS = Methods("holdfast.v1.QueueService")

DEFAULT_GROUP: Final = "default"
RESPONSE_BYTES: Final = 3 * MIB
"""Payloads in a response, unless the caller asks for more: by default clients of gRPC refuse more than 4 MiB."""

PART_MESSAGES: Final = 1_000
"""In one part of a read."""


def _check_messages(call: GrpcCall, raw: bytes) -> None:
    check_messages(raw, pb.EnqueueRequest.MESSAGES_FIELD_NUMBER, call.node.messages.check_enqueue_count)


def _check_settlements(call: GrpcCall, raw: bytes) -> None:
    check_items(raw, pb.SettleRequest.SETTLEMENTS_FIELD_NUMBER, call.node.messages.check_settle_count)


def _check_leases(call: GrpcCall, raw: bytes) -> None:
    check_items(raw, pb.ExtendRequest.LEASES_FIELD_NUMBER, call.node.messages.check_settle_count)


@METHODS.unary("Enqueue", pb.EnqueueRequest, Action.PRODUCE, check=_check_messages)
async def enqueue_messages(call: GrpcCall, request: pb.EnqueueRequest) -> pb.EnqueueResponse:
    done: asyncio.Future[pb.EnqueueResponse] = asyncio.get_running_loop().create_future()

    def resolve(outcome: pb.EnqueueResponse | HoldfastError) -> None:
        if done.done():
            return  # the client has gone
        if isinstance(outcome, HoldfastError):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)

    enqueue(call, call.queue(request.queue, Action.PRODUCE), request.messages, request.atomic, resolve)
    return await done


@METHODS.unary("Lease", pb.LeaseRequest, Action.CONSUME)
async def lease(call: GrpcCall, request: pb.LeaseRequest) -> pb.LeaseResponse:
    name, group = call.queue(request.queue, Action.CONSUME), request.group or DEFAULT_GROUP
    wait, left = duration(request.wait, "wait"), call.time_left()
    messages = call.node.messages
    limit, timeout = request.limit or 1, duration(request.timeout, "timeout") if request.HasField("timeout") else -1
    consumer, create = read_consumer(request.consumer, call.principal), not request.must_exist
    max_bytes = request.max_bytes or RESPONSE_BYTES

    def release(found: list[Leased]) -> None:
        if found:
            call.node.cell.settle_unattended(name, group, releases(found))

    submission = messages.lease_ready(
        name,
        group,
        limit,
        timeout=timeout,
        wait=wait,
        consumer=consumer,
        protocol=PROTOCOL,
        max_bytes=max_bytes,
        create=create,
    )
    if submission is not None:
        call.undo = submission.release
        try:
            found = await submission
        except asyncio.CancelledError:
            submission.release()
            raise
    else:
        if left is not None:
            wait = min(wait, left)  # what is leased for a client that no longer waits is delivered to nobody
        with call.lasting():
            found = await messages.lease(
                name,
                group,
                limit,
                timeout=timeout,
                wait=wait,
                consumer=consumer,
                protocol=PROTOCOL,
                max_bytes=max_bytes,
                create=create,
            )
        call.undo = lambda: release(found)
        if found and not call.front.long_requests.is_valid(call.principal):
            release(found)
            raise expired()
    response = pb.LeaseResponse()
    fill_deliveries(response, found)
    return response


async def _settled(settled: Settled) -> pb.SettleResponse:
    if (refusal := settled.refusal) is not None:
        raise refusal
    await settled.submission
    return settled.response()


@METHODS.unary("Settle", pb.SettleRequest, Action.CONSUME, check=_check_settlements)
async def settle_deliveries(call: GrpcCall, request: pb.SettleRequest) -> pb.SettleResponse:
    name = call.queue(request.queue, Action.CONSUME)
    return await _settled(settle(call, name, request.group or DEFAULT_GROUP, request.settlements))


@METHODS.unary("Extend", pb.ExtendRequest, Action.CONSUME, check=_check_leases)
async def extend(call: GrpcCall, request: pb.ExtendRequest) -> pb.ExtendResponse:
    name = call.queue(request.queue, Action.CONSUME)
    timeout = request.timeout if request.HasField("timeout") else None
    call.node.messages.check_settle_count(len(request.leases))
    items = [
        pb.Settlement(id=key.id, lease_token=key.lease_token, action=pb.SETTLE_ACTION_EXTEND, timeout=timeout)
        for key in request.leases
    ]
    done = await _settled(settle(call, name, request.group or DEFAULT_GROUP, items))
    return pb.ExtendResponse(extended=done.settled, errors=done.errors, deadlines=dict(done.deadlines))


# --- a queue as a log -----------------------------------------------------------------------------------------------


@METHODS.stream("Read", Action.CONSUME)
async def read(call: GrpcCall) -> None:
    request = await call.request(pb.ReadRequest)
    name, group = call.queue(request.queue, Action.CONSUME), check_name(request.group, "group")
    for field, sequence in (("first", request.first), ("until", request.until)):
        if sequence < 0:
            raise InvalidArgument(field=field, problem="is a sequence, or 0")
    reader = _Reader(call, request)
    with call.lasting():
        await reader.to_end(name, group)
        if not request.follow:
            return
        with call.node.inspection.watch(name) as changed:
            while not reader.is_over:
                changed.clear()
                if not await reader.to_end(name, group):
                    await changed.wait()


class _Reader:
    """How far a read has come."""

    def __init__(self, call: GrpcCall, request: pb.ReadRequest) -> None:
        self._call = call
        self._partition = request.partition
        self._first = request.first
        self._until = request.until
        self._left = request.limit or None
        self._began = False

    @property
    def is_over(self) -> bool:
        return self._left == 0 or 0 < self._until <= self._first

    async def to_end(self, name: tuple[str, str], group: str) -> bool:
        """Send what there is. Returns whether there was something."""
        some = False
        while not self.is_over:
            limit = PART_MESSAGES if self._left is None else min(PART_MESSAGES, self._left)
            found = await self._call.node.cursors.read(
                name, group, self._partition, self._first, limit, RESPONSE_BYTES, self._until
            )
            moved = found.next_seq != self._first
            self._first = found.next_seq
            if self._left is not None:
                self._left -= len(found.messages)
            if found.messages or not self._began:
                part = pb.ReadResponse(
                    next=found.next_seq,
                    committed=found.committed,
                    high=found.high,
                    lost_from=found.lost_from,
                    lost_to=found.lost_to,
                )
                for message in found.messages:
                    fill_message(part.messages.add(), message, self._partition)
                self._began = True
                await self._call.send(part)
            if not found.messages or not moved:
                break
            some = True
        return some


@METHODS.unary("Commit", pb.CommitRequest, Action.CONSUME)
async def commit(call: GrpcCall, request: pb.CommitRequest) -> pb.CommitResponse:
    name, group = call.queue(request.queue, Action.CONSUME), check_name(request.group, "group")
    if any(sequence < 0 for sequence in request.sequences.values()):
        raise InvalidArgument(field="sequences", problem="are sequences that were read")
    return pb.CommitResponse(messages=await call.node.cursors.commit_many(name, group, dict(request.sequences)))
