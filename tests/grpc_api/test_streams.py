"""Produce and Consume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from holdfast.grpc_api import GrpcFront
from holdfast.grpc_api.generated import queue_pb2 as pb
from tests.grpc_api.rig import Api, details_of, drafts, refused
from tests.waiting import until


async def test_every_batch_is_confirmed_by_its_number(api: Api, queue: str) -> None:
    call = api.Produce()
    for number in range(1, 51):
        await call.write(
            pb.ProduceRequest(batch=number, queue=queue if number == 1 else "", messages=drafts(b"a", b"b"))
        )
    await call.done_writing()
    confirmed = [response async for response in call]
    assert [response.batch for response in confirmed] == list(range(1, 51))
    ids = [message_id for response in confirmed for message_id in response.stored.ids]
    assert len(set(ids)) == 100
    assert ids == sorted(ids)
    assert (await api.GetQueue(pb.GetQueueRequest(name=queue))).queue.depth == 100


async def test_a_batch_that_is_refused_does_not_end_the_stream(api: Api, queue: str) -> None:
    await api.CreateQueue(pb.CreateQueueRequest(name=queue, config=pb.QueueConfig(max_message_size=10, partitions=1)))
    call = api.Produce()
    batches = [
        pb.ProduceRequest(batch=1, messages=drafts(b"1")),
        pb.ProduceRequest(batch=2, queue=queue, messages=drafts(b"2")),
        pb.ProduceRequest(batch=3),
        pb.ProduceRequest(batch=4, messages=drafts(b"x" * 11)),
        pb.ProduceRequest(batch=5, messages=drafts(b"x" * 11, b"5"), atomic=True),
        pb.ProduceRequest(batch=6, queue="a/+/b", messages=drafts(b"6")),
        pb.ProduceRequest(batch=7, queue=queue, messages=drafts(b"7", b"x" * 11)),
    ]
    outcomes: dict[int, pb.ProduceResponse] = {}
    for batch in batches:
        await call.write(batch)
        response = await call.read()
        outcomes[response.batch] = response
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert [outcomes[number].refused.code for number in (1, 3, 4, 5, 6)] == [
        "invalid_argument",
        "invalid_argument",
        "message_too_large",
        "message_too_large",
        "invalid_name",
    ]
    assert len(outcomes[2].stored.ids) == 1
    assert [error.index for error in outcomes[7].stored.errors] == [1]
    assert outcomes[7].stored.ids[1] == 0


async def test_a_producer_that_goes_leaves_nothing_behind(api: Api, front: GrpcFront, queue: str) -> None:
    call = api.Produce()
    await call.write(pb.ProduceRequest(queue=queue, messages=drafts(b"1")))
    await call.read()
    assert front.streams == 1
    call.cancel()
    await until(lambda: (front.streams, front.calls, front.buffered_bytes) == (0, 0, 0))


# --- consuming ------------------------------------------------------------------------------------------------------


class Consumer:
    """A stream that has joined its group."""

    def __init__(self, api: Api, subscribe: pb.Subscribe) -> None:
        self._call = api.Consume()
        self._subscribe = subscribe
        self._seen: list[pb.Delivery] = []

    async def __aenter__(self) -> Consumer:
        await self.say(subscribe=self._subscribe)
        assert (await self.receive()).WhichOneof("response") == "subscribed"
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._call.cancel()

    async def say(self, **request: object) -> None:
        await self._call.write(pb.ConsumeRequest(**request))  # type: ignore[arg-type]

    async def receive(self) -> pb.ConsumeResponse:
        response: pb.ConsumeResponse = await self._call.read()
        return response

    async def deliveries(self, number: int) -> list[pb.Delivery]:
        """So many, however they are divided."""
        while len(self._seen) < number:
            self._seen += (await self.receive()).deliveries.deliveries
        found, self._seen = self._seen[:number], self._seen[number:]
        return found

    async def done(self) -> None:
        await self._call.done_writing()


async def test_a_consumer_is_sent_no_more_than_its_credit(api: Api, queue: str) -> None:
    await api.CreateQueue(pb.CreateQueueRequest(name=queue, config=pb.QueueConfig(ordering=pb.ORDERING_NONE)))
    await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"1", b"2", b"3", b"4")))
    async with Consumer(api, pb.Subscribe(queue=queue, credit=2)) as consumer:
        first = await consumer.deliveries(2)
        settlements = [pb.Settlement(id=one.message.id, lease_token=one.lease_token) for one in first[:1]]
        wrong = pb.Settlement(id=first[1].message.id, lease_token=1)
        await consumer.say(settle=pb.SettleBatch(batch=5, settlements=[*settlements, wrong]))
        seen: list[pb.ConsumeResponse] = [await consumer.receive(), await consumer.receive()]  # in either order
        (settled,) = [one.settled for one in seen if one.HasField("settled")]
        assert (settled.batch, settled.settled.settled) == (5, 1)
        assert [error.problem.code for error in settled.settled.errors] == ["lease_lost"]
        (third,) = [one for response in seen for one in response.deliveries.deliveries]
        await consumer.say(credit=3)
        (fourth,) = await consumer.deliveries(1)
        payloads = [one.message.payload for one in (*first, third, fourth)]
        assert sorted(payloads) == [b"1", b"2", b"3", b"4"]


async def test_what_a_consumer_has_not_settled_is_released_when_it_goes(api: Api, front: GrpcFront, queue: str) -> None:
    await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"1")))
    async with Consumer(api, pb.Subscribe(queue=queue)) as consumer:
        await consumer.deliveries(1)
    async with Consumer(api, pb.Subscribe(queue=queue, on_disconnect=pb.ON_DISCONNECT_KEEP)) as consumer:
        (delivery,) = await consumer.deliveries(1)
        assert delivery.attempt == 1  # it was released, and not failed
    await until(lambda: not front.node.inspection.consumers(("default", queue)))
    settlement = pb.Settlement(id=delivery.message.id, lease_token=delivery.lease_token)
    assert (await api.Settle(pb.SettleRequest(queue=queue, settlements=[settlement]))).settled == 1


async def test_a_consumer_that_has_said_its_last_is_still_sent_deliveries(api: Api, queue: str) -> None:
    async with Consumer(api, pb.Subscribe(queue=queue)) as consumer:
        await consumer.done()
        await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"1")))
        assert len(await consumer.deliveries(1)) == 1


async def test_large_deliveries_come_in_parts_that_clients_take(api: Api, queue: str) -> None:
    """By default a client refuses more than 4 MiB."""
    payloads = [bytes([number]) * 900_000 for number in range(6)]
    await api.CreateQueue(pb.CreateQueueRequest(name=queue, config=pb.QueueConfig(partitions=1)))
    for payload in payloads:
        await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(payload)))
    async with Consumer(api, pb.Subscribe(queue=queue)) as consumer:
        found = [(await consumer.deliveries(1))[0] for _ in range(4)]
        assert [one.message.payload for one in found] == payloads[:4]
    leased = await api.Lease(pb.LeaseRequest(queue=queue, limit=10, group="other"))
    assert leased.ByteSize() < 4 << 20


async def test_a_stream_begins_with_a_subscription(api: Api, queue: str) -> None:
    for first in (pb.ConsumeRequest(credit=1), pb.ConsumeRequest()):
        call = api.Consume()
        await call.write(first)
        async with refused("invalid_argument", grpc.StatusCode.INVALID_ARGUMENT):
            await call.read()


@pytest.mark.parametrize(
    "fields", [{"credit": 1 << 30}, {"queue": "$x"}, {"on_disconnect": 99}, {"consumer": "x" * 300}]
)
async def test_a_subscription_that_is_wrong_is_refused(
    api: Api, queue: str, front: GrpcFront, fields: dict[str, object]
) -> None:
    call = api.Consume()
    await call.write(pb.ConsumeRequest(subscribe=pb.Subscribe(**{"queue": queue, **fields})))  # type: ignore[arg-type]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await until(lambda: front.streams == 0)


async def test_a_second_stream_of_a_consumer_takes_over(api: Api, queue: str) -> None:
    subscribe = pb.Subscribe(queue=queue, consumer="one")
    async with Consumer(api, subscribe) as first, Consumer(api, subscribe) as second:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await first.receive()
        assert details_of(caught.value)[0] == "stream_ended"
        await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"1")))
        assert len(await second.deliveries(1)) == 1


async def test_a_stream_that_is_taken_over_leaves_no_leases(api: Api, queue: str) -> None:
    """The new one is sent what the old one had not settled, although it has credit for nothing else."""
    await api.CreateQueue(pb.CreateQueueRequest(name=queue, config=pb.QueueConfig(partitions=1)))
    await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"1", b"2")))
    subscribe = pb.Subscribe(queue=queue, consumer="one", credit=2)
    async with Consumer(api, subscribe) as first:
        before = await first.deliveries(2)
        async with Consumer(api, subscribe) as second:
            after = await second.deliveries(2)
            assert [(one.message.id, one.attempt) for one in after] == [(one.message.id, 1) for one in before]
            wrong = pb.Subscribe(queue=queue, consumer="one", credit=1 << 30)
            with pytest.raises(grpc.aio.AioRpcError):
                await Consumer(api, wrong).__aenter__()
            settlements = [pb.Settlement(id=one.message.id, lease_token=one.lease_token) for one in after]
            await second.say(settle=pb.SettleBatch(batch=1, settlements=settlements))
            assert (await second.receive()).settled.settled.settled == 2


async def test_a_stream_ends_with_the_deadline_of_its_call(api: Api, front: GrpcFront, queue: str) -> None:
    """On the server too: what it held is released."""
    await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"1")))

    async def requests() -> AsyncIterator[pb.ConsumeRequest]:
        yield pb.ConsumeRequest(subscribe=pb.Subscribe(queue=queue))
        await asyncio.Event().wait()

    async def responses() -> list[pb.ConsumeResponse]:
        return [response async for response in api.Consume(requests(), timeout=1)]

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await responses()
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: (front.streams, front.calls, front.buffered_bytes) == (0, 0, 0))
    (delivery,) = (await api.Lease(pb.LeaseRequest(queue=queue))).deliveries
    assert delivery.attempt == 1


async def test_a_stream_ends_with_its_queue(api: Api, queue: str) -> None:
    async with Consumer(api, pb.Subscribe(queue=queue)) as consumer:
        await api.DeleteQueue(pb.DeleteQueueRequest(name=queue))
        async with refused("queue_not_found", grpc.StatusCode.NOT_FOUND):
            await consumer.receive()


async def test_consumers_share_a_queue(api: Api, queue: str) -> None:
    await api.CreateQueue(pb.CreateQueueRequest(name=queue, config=pb.QueueConfig(partitions=2)))
    async with (
        Consumer(api, pb.Subscribe(queue=queue, credit=1)) as one,
        Consumer(api, pb.Subscribe(queue=queue, credit=1)) as two,
    ):
        await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"1")))
        await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"2")))
        found = await asyncio.gather(one.deliveries(1), two.deliveries(1))
        assert {delivery.message.payload for (delivery,) in found} == {b"1", b"2"}
        stats = (await api.GetQueueStats(pb.GetQueueStatsRequest(name=queue))).stats
        assert sorted(stats.partitions_assigned.values()) == [1, 1]
        assert (stats.active_consumers, stats.inflight_messages, stats.total_messages) == (2, 2, 2)
