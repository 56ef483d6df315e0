"""The stream of a consumer: deliveries as they become ready, never more unsettled than its credit; settlements come on
the same stream, or by other calls."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Final

from holdfast.auth.fronts.long_requests import expired
from holdfast.auth.principal import Action
from holdfast.broker.dispatch.members import GroupName
from holdfast.broker.parts.subscriptions import Subscription
from holdfast.core.commands import Leased, Verb
from holdfast.errors import HoldfastError, InvalidArgument, StreamEnded
from holdfast.grpc_api.call import GrpcCall, decode
from holdfast.grpc_api.codecs import duration, fill_deliveries, read_consumer
from holdfast.grpc_api.counting import check_settlements
from holdfast.grpc_api.enqueueing import PROTOCOL
from holdfast.grpc_api.generated import queue_pb2 as pb
from holdfast.grpc_api.methods import Methods
from holdfast.grpc_api.settling import settle
from holdfast.grpc_api.status import item_errors

CONSUMING = Methods("holdfast.v1.QueueService")

DEFAULT_GROUP: Final = "default"
DEFAULT_CREDIT: Final = 10
CHUNK_BYTES: Final = 256 << 10  # payloads in one response
LOOK_SECONDS: Final = 15.0
"""How often a stream looks whether it still is a member."""

UNSENT_MAX: Final = 1_000
"""Answers to settlements that a client has not read: past it no further settlements are."""

_ON_DISCONNECT = {
    pb.ON_DISCONNECT_UNSPECIFIED: Verb.RELEASE,
    pb.ON_DISCONNECT_RELEASE: Verb.RELEASE,
    pb.ON_DISCONNECT_FAIL: Verb.DISCONNECT,
    pb.ON_DISCONNECT_KEEP: None,
}
_numbers = count(1)


@CONSUMING.stream("Consume", Action.CONSUME)
async def consume(call: GrpcCall) -> None:
    first = await call.request(pb.ConsumeRequest)
    if first.WhichOneof("request") != "subscribe":
        raise InvalidArgument(field="request", problem="is not `subscribe`, which comes first")
    stream = Consumer(call, first.subscribe)
    with call.lasting() as end:
        try:
            await stream.open(end)
            reader = asyncio.get_running_loop().create_task(stream.read())
            try:
                await stream.write()
            finally:
                reader.cancel()
        finally:
            stream.close()


class Consumer:
    """One stream, a member of its group."""

    def __init__(self, call: GrpcCall, subscribe: pb.Subscribe) -> None:
        self._call = call
        self._subscribe = subscribe
        if subscribe.on_disconnect not in _ON_DISCONNECT:
            raise InvalidArgument(field="on_disconnect", problem=f"is not known: {subscribe.on_disconnect}")
        self._on_disconnect = _ON_DISCONNECT[subscribe.on_disconnect]
        principal = call.principal
        self._member = read_consumer(subscribe.consumer, principal) or principal.consumer(f"grpc-{next(_numbers)}")
        self._queue = call.queue(subscribe.queue, Action.CONSUME)
        self._group: GroupName = (self._queue, subscribe.group or DEFAULT_GROUP)
        self._subscription: Subscription | None = None
        self._arrived: list[Leased] = []
        self._answers: deque[pb.ConsumeResponse] = deque()
        self._unsent = 0  # answers, and errors in them
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self.end: Callable[[HoldfastError], None] = self._refuse

    def _refuse(self, _: HoldfastError) -> None:
        """It has not begun."""

    async def open(self, end: Callable[[HoldfastError], None]) -> None:
        """Join the group."""
        call, subscribe = self._call, self._subscribe
        node, consumers = call.node, call.front.consumers
        self.end = end
        timeout = duration(subscribe.timeout, "timeout") if subscribe.HasField("timeout") else -1
        node.messages.check_lease_timeout(timeout)
        if subscribe.must_exist:
            node.groups.get(*self._group)
        submission = node.subscriptions.join(
            self._queue,
            self._group[1],
            self._member,
            self._take,
            credit=subscribe.credit or DEFAULT_CREDIT,
            lease_timeout=timeout,
            protocol=PROTOCOL,
            max_bytes=call.front.settings.stream_bytes,
            removed=self._check,
            end=lambda reason: self.end(StreamEnded(reason=reason)),
            with_queue=True,
            take_over=self._take_over,
        )
        consumers[self._group, self._member] = self
        self._subscription = submission.result
        await submission
        self._answer(pb.ConsumeResponse(subscribed=pb.Subscribed(consumer=self._member)))

    def _take_over(self) -> None:
        """End the stream that this consumer has. Its leases end with it: nobody works on what it was sent, as far as
        the new one knows."""
        before = self._call.front.consumers.get((self._group, self._member))
        if before is not None:
            before.end(StreamEnded(reason="another stream of the same consumer has taken over"))
            before.leave()

    def close(self) -> None:
        """It has ended."""
        consumers = self._call.front.consumers
        if consumers.get((self._group, self._member)) is self:
            del consumers[self._group, self._member]
        self.leave()

    def leave(self) -> None:
        """Leave the group, which ends the leases."""
        if self._subscription is not None:
            if self._on_disconnect is None:  # kept, but not what was never sent
                self._subscription.release_deliveries(self._arrived)
            self._arrived = []
            self._subscription.leave(self._on_disconnect)

    def _take(self, deliveries: list[Leased]) -> None:
        """From the node, on the loop."""
        self._arrived += deliveries
        self._wake.set()

    def _answer(self, response: pb.ConsumeResponse) -> None:
        self._answers.append(response)
        self._unsent += _weight(response)
        self._wake.set()

    def _check(self) -> None:
        """End it if there is no more reason to go on."""
        try:
            self._call.node.queues.get(self._queue)
        except HoldfastError as error:
            self.end(error)
            return
        if self._subscription is not None and not self._subscription.joined:
            self.end(StreamEnded(reason="its group was deleted, or its membership was ended"))

    # --- what it says -----------------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Take what the client says until it has said its last: it may still be sent deliveries then."""
        try:
            while (raw := await self._call.receive(patient=True)) is not None:
                self._check_count(raw)
                self._receive(decode(pb.ConsumeRequest, raw))
                while self._unsent > UNSENT_MAX:
                    self._room.clear()
                    await self._room.wait()
        except HoldfastError as error:
            self.end(error)

    def _check_count(self, raw: bytes) -> None:
        """A batch with too many settlements ends the stream: there is no error for each of millions."""
        settle, settlements = (
            pb.ConsumeRequest.SETTLE_FIELD_NUMBER,
            pb.SettleBatch.SETTLEMENTS_FIELD_NUMBER,
        )
        check_settlements(raw, settle, settlements, self._call.node.messages.check_settle_count)

    def _receive(self, request: pb.ConsumeRequest) -> None:
        match request.WhichOneof("request"):
            case "settle":
                self._settle(request.settle)
            case "credit":
                most = self._call.node.config.members.max_prefetch
                if request.credit > most:
                    raise InvalidArgument(field="credit", problem=f"is 0 to {most}, not {request.credit}")
                assert self._subscription is not None
                self._subscription.set_credit(request.credit)
            case _:
                raise InvalidArgument(field="request", problem="is neither `settle` nor `credit`")

    def _settle(self, batch: pb.SettleBatch) -> None:
        call = self._call
        number = batch.batch
        call.node.messages.check_settle_count(len(batch.settlements))
        try:
            call.front.take_rate(call.principal)
            done = settle(call, *self._group, batch.settlements)
        except HoldfastError as error:
            errors = item_errors(dict.fromkeys(range(len(batch.settlements)), error))
            self._notify(number, pb.SettleResponse(errors=errors))
            return
        if number or done.errors:
            done.submission.on_done(partial(self._settled, number, done.response()))

    def _settled(self, number: int, response: pb.SettleResponse, error: HoldfastError | None) -> None:
        if error is not None:
            self.end(error)
        else:
            self._notify(number, response)

    def _notify(self, number: int, response: pb.SettleResponse) -> None:
        self._answer(pb.ConsumeResponse(settled=pb.SettledBatch(batch=number, settled=response)))

    # --- what it is sent --------------------------------------------------------------------------------------------

    async def write(self) -> None:
        """Send deliveries and answers until the stream is ended."""
        call = self._call
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                self._check()
                continue
            self._wake.clear()
            while self._answers:
                answer = self._answers.popleft()
                await call.send(answer)
                self._unsent -= _weight(answer)
                self._room.set()
            if self._arrived:
                if not call.front.long_requests.is_valid(call.principal):
                    raise expired()
                await self._deliver()

    async def _deliver(self) -> None:
        arrived, self._arrived = self._arrived, []
        sent = 0
        try:
            for some in _chunks(arrived):
                response = pb.ConsumeResponse()
                fill_deliveries(response.deliveries, some)
                await self._call.send(response)
                sent += len(some)
        finally:
            self._arrived[:0] = arrived[sent:]  # they are released if the stream has ended


def _weight(answer: pb.ConsumeResponse) -> int:
    return 1 + len(answer.settled.settled.errors)


def _chunks(deliveries: list[Leased]) -> Iterator[list[Leased]]:
    """Deliveries a few at a time, so that a response is one that clients take, and large ones are not all in memory
    twice."""
    first = size = 0
    for index, leased in enumerate(deliveries, 1):
        size += len(leased.message.payload)
        if size >= CHUNK_BYTES or index == len(deliveries):
            yield deliveries[first:index]
            first, size = index, 0
