"""The stream of a producer: batch after batch, each confirmed when it is durable."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

from holdfast.auth.fronts.long_requests import End
from holdfast.auth.principal import Action
from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.grpc_api.call import GrpcCall, decode
from holdfast.grpc_api.counting import check_messages
from holdfast.grpc_api.enqueueing import enqueue
from holdfast.grpc_api.generated import queue_pb2 as pb
from holdfast.grpc_api.methods import Methods
from holdfast.grpc_api.status import problem_of

UNSENT_MAX = 1_000
"""Confirmations that a client has not read: past it no further batches are."""

PRODUCING = Methods("holdfast.v1.QueueService")


@PRODUCING.stream("Produce", Action.PRODUCE)
async def produce(call: GrpcCall) -> None:
    stream = _Producer(call)
    writer = asyncio.get_running_loop().create_task(stream.write())
    reason: HoldfastError | None = None
    try:
        try:
            with call.lasting() as end:
                writer.add_done_callback(partial(_written, end))
                await stream.read()
        except HoldfastError as error:
            reason = error  # what was taken is confirmed before it is told
        stream.finish()
        await writer
    finally:
        writer.cancel()
    if reason is not None:
        raise reason


def _written(end: End, writer: asyncio.Task[None]) -> None:
    """The writer ends before the reader if it fails."""
    if not writer.cancelled() and isinstance(error := writer.exception(), HoldfastError):
        end(error)


class _Producer:
    """One stream: how much of it is not confirmed yet, and the confirmations to be sent."""

    def __init__(self, call: GrpcCall) -> None:
        self._call = call
        self._queue = ""
        self._unconfirmed = 0  # batches
        self._unconfirmed_bytes = 0
        self._responses: deque[pb.ProduceResponse] = deque()
        self._wake = asyncio.Event()  # there is something to send, or all was confirmed
        self._room = asyncio.Event()
        self._finished = False

    async def read(self) -> None:
        """Take batches until the client has sent its last."""
        limit = self._call.front.settings.stream_bytes
        while (raw := await self._call.receive(patient=True)) is not None:
            self._take(raw)
            while self._unconfirmed_bytes > limit or len(self._responses) > UNSENT_MAX or self._call.front.is_full:
                if not self._unconfirmed and not self._responses:
                    break  # others fill the memory; one batch at a time goes on
                self._room.clear()
                await self._room.wait()

    def _take(self, raw: bytes) -> None:
        call = self._call
        check_messages(raw, pb.ProduceRequest.MESSAGES_FIELD_NUMBER, call.node.messages.check_enqueue_count)
        request = decode(pb.ProduceRequest, raw)
        size_bytes = len(raw)
        done = partial(self._done, request.batch, size_bytes)
        call.hold(size_bytes)
        self._unconfirmed += 1
        self._unconfirmed_bytes += size_bytes
        try:
            self._queue = request.queue or self._queue
            if not self._queue:
                raise InvalidArgument(field="queue", problem="is empty; the first batch names one")
            call.front.take_rate(call.principal)
            enqueue(call, call.queue(self._queue, Action.PRODUCE), request.messages, request.atomic, done)
        except HoldfastError as error:
            done(error)

    def _done(self, batch: int, size_bytes: int, outcome: pb.EnqueueResponse | HoldfastError) -> None:
        """A batch is durable, or refused."""
        self._call.free(size_bytes)
        self._unconfirmed -= 1
        self._unconfirmed_bytes -= size_bytes
        if isinstance(outcome, HoldfastError):
            self._responses.append(pb.ProduceResponse(batch=batch, refused=problem_of(outcome)))
        else:
            self._responses.append(pb.ProduceResponse(batch=batch, stored=outcome))
        self._wake.set()
        self._room.set()

    def finish(self) -> None:
        """There will be no further batch."""
        self._finished = True
        self._wake.set()

    async def write(self) -> None:
        """Send confirmations until the last."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._responses:
                await self._call.send(self._responses.popleft())
                self._room.set()
            if self._finished and not self._unconfirmed and not self._responses:
                return
