"""Enqueue, lease, settle, extend; reading a queue as a log."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from holdfast.grpc_api import GrpcFront
from holdfast.grpc_api import call as grpc_call
from holdfast.grpc_api.generated import queue_pb2 as pb
from holdfast.units import SECOND
from tests.grpc_api.rig import Api, details_of, drafts, refused
from tests.waiting import PATIENCE_SECONDS, until

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def leased(api: Api, queue: str, **fields: object) -> list[pb.Delivery]:
    return list((await api.Lease(pb.LeaseRequest(queue=queue, limit=100, **fields))).deliveries)  # type: ignore[arg-type]


def ack(delivery: pb.Delivery) -> pb.Settlement:
    return pb.Settlement(id=delivery.message.id, lease_token=delivery.lease_token)


async def test_a_message_arrives_with_all_it_was_sent_with(api: Api, queue: str) -> None:
    sent = pb.Draft(
        payload=b"\0\xff",
        key="customer-1",
        message_id="m-1",
        properties=[pb.Property(name="a", value="1"), pb.Property(name="a", value="2")],
        priority=7,
        ttl=Duration(seconds=3600),
        correlation_id="c-1",
        content_type="image/png",
        reply_to="answers",
    )
    stored = await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=[sent]))
    assert stored.durability == pb.DURABILITY_FSYNC
    (delivery,) = await leased(api, queue)
    message = delivery.message
    assert [message.id] == list(stored.ids)
    for field in ("payload", "key", "message_id", "priority", "correlation_id", "content_type", "reply_to"):
        assert getattr(message, field) == getattr(sent, field)
    assert list(message.properties) == list(sent.properties)
    assert message.expires_at.ToMicroseconds() - message.enqueued_at.ToMicroseconds() == 3_600_000_000
    assert delivery.attempt == 1
    assert not message.HasField("origin")


@pytest.mark.parametrize("size", [0, 1, 127, 128, 20_000])
async def test_a_bare_payload_of_any_size_is_what_it_was(api: Api, queue: str, size: int) -> None:
    await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"x" * size)))
    (delivery,) = await leased(api, queue)
    assert delivery.message.payload == b"x" * size
    assert (delivery.message.priority, delivery.message.HasField("key")) == (128, False)


async def test_a_message_that_is_wrong_does_not_stop_the_others(api: Api, queue: str) -> None:
    wrong = pb.Draft(payload=b"b", delay=Duration(seconds=1), deliver_at=Timestamp(seconds=1))
    one = pb.Draft(payload=b"a", message_id="same")
    first = await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=[one]))
    stored = await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=[wrong, one, pb.Draft(payload=b"c")]))
    assert stored.ids[0] == 0
    assert stored.ids[1] == first.ids[0]
    assert list(stored.duplicates) == [1]
    (error,) = stored.errors
    assert (error.index, error.problem.code) == (0, "invalid_argument")
    assert "deliver_at" in error.problem.message
    async with refused("invalid_argument", grpc.StatusCode.INVALID_ARGUMENT):
        await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=[wrong, *drafts(b"d")], atomic=True))
    assert {delivery.message.payload for delivery in await leased(api, queue)} == {b"a", b"c"}


async def test_a_full_queue_says_when_to_try_again(api: Api, queue: str) -> None:
    await api.CreateQueue(pb.CreateQueueRequest(name=queue, config=pb.QueueConfig(max_depth=1)))
    await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"1")))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"2")))
    reason, retry = details_of(caught.value)
    assert (caught.value.code(), reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "queue_full")
    assert retry is not None
    assert retry.retry_delay.ToMilliseconds() > 0


async def test_settling_reports_each_refusal_and_repeats_answers(api: Api, queue: str) -> None:
    await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"1", b"2", b"3")))
    one, two, three = await leased(api, queue)
    done = await api.Settle(
        pb.SettleRequest(
            queue=queue,
            settlements=[
                ack(one),
                pb.Settlement(id=two.message.id, lease_token=one.lease_token, action=pb.SETTLE_ACTION_NACK),
                pb.Settlement(id=three.message.id, lease_token=three.lease_token, action=pb.SETTLE_ACTION_RELEASE),
                pb.Settlement(action=pb.SETTLE_ACTION_REJECT),
            ],
        )
    )
    assert done.settled == 2
    assert [(error.index, error.problem.code) for error in done.errors] == [(1, "lease_lost"), (3, "invalid_argument")]
    again = await api.Settle(pb.SettleRequest(queue=queue, settlements=[ack(one), ack(two)]))
    assert (again.settled, list(again.errors)) == (2, [])
    async with refused("lease_lost", grpc.StatusCode.FAILED_PRECONDITION):
        await api.Settle(pb.SettleRequest(queue=queue, settlements=[ack(three)]))
    (back,) = await leased(api, queue)
    assert (back.message.payload, back.attempt) == (b"3", 1)


async def test_leases_are_extended(api: Api, queue: str) -> None:
    await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"1")))
    (one,) = await leased(api, queue)
    key = pb.LeaseKey(id=one.message.id, lease_token=one.lease_token)
    done = await api.Extend(pb.ExtendRequest(queue=queue, leases=[key], timeout=Duration(seconds=3600)))
    assert done.extended == 1
    longer = done.deadlines[one.message.id].ToMicroseconds() - one.lease_deadline.ToMicroseconds()
    assert longer > 3_000_000_000


async def test_a_lease_waits_for_a_message(api: Api, front: GrpcFront, queue: str) -> None:
    waiting = asyncio.ensure_future(leased(api, queue, wait=Duration(seconds=100)))
    await until(lambda: front.node.inspection.waiting(("default", queue)))
    assert front.calls == 0  # it does not count as being worked on
    await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"1")))
    assert [delivery.message.payload for delivery in await waiting] == [b"1"]


async def test_a_lease_that_waits_ends_before_the_deadline_of_its_call(
    api: Api, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_call, "MARGIN", PATIENCE_SECONDS * SECOND)  # however busy the machine is
    request = pb.LeaseRequest(queue=queue, wait=Duration(seconds=800))
    assert not (await api.Lease(request, timeout=PATIENCE_SECONDS + 1)).deliveries


async def test_a_client_that_goes_while_it_waits_holds_nothing(api: Api, front: GrpcFront, queue: str) -> None:
    call = api.Lease(pb.LeaseRequest(queue=queue, wait=Duration(seconds=100)))
    await until(lambda: front.node.inspection.waiting(("default", queue)))
    call.cancel()
    await until(lambda: not front.node.inspection.waiting(("default", queue)))
    await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"1")))
    (delivery,) = await leased(api, queue)
    assert delivery.attempt == 1


async def test_a_group_is_not_created_if_it_must_exist(api: Api, queue: str) -> None:
    async with refused("queue_not_found", grpc.StatusCode.NOT_FOUND):
        await leased(api, queue, must_exist=True)


async def test_the_context_of_a_trace_and_a_correlation_id_go_with_messages(api: Api, queue: str) -> None:
    metadata = (("traceparent", TRACEPARENT), ("x-correlation-id", "c-9"))
    own = pb.Draft(payload=b"2", correlation_id="own", properties=[pb.Property(name="traceparent", value="mine")])
    await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=[*drafts(b"1"), own]), metadata=metadata)
    found = {one.message.payload: one.message for one in await leased(api, queue)}
    assert [(pair.name, pair.value) for pair in found[b"1"].properties] == [("traceparent", TRACEPARENT)]
    assert found[b"1"].correlation_id == "c-9"
    assert (found[b"2"].correlation_id, found[b"2"].properties[0].value) == ("own", "mine")


@pytest.mark.parametrize(
    "draft",
    [
        pb.Draft(delay=Duration(seconds=-1)),
        pb.Draft(delay=Duration(seconds=1 << 62)),
        pb.Draft(ttl=Duration(seconds=-(1 << 63))),
        pb.Draft(deliver_at=Timestamp(seconds=1 << 62)),
        pb.Draft(deliver_at=Timestamp(seconds=-5)),
        pb.Draft(message_id=""),
        pb.Draft(priority=1 << 31),
    ],
    ids=str,
)
async def test_wild_values_are_refused(api: Api, queue: str, draft: pb.Draft) -> None:
    async with refused("invalid_argument", grpc.StatusCode.INVALID_ARGUMENT):
        await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=[draft]))


def raw(channel: grpc.aio.Channel, method: str) -> Any:
    """A method that takes and gives bytes."""
    return channel.unary_unary(f"/holdfast.v1.QueueService/{method}")


async def test_bytes_that_are_no_request_are_refused(front: GrpcFront, queue: str) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{front.address[1]}") as channel:
        async with refused("malformed_request", grpc.StatusCode.INVALID_ARGUMENT):
            await raw(channel, "Enqueue")(b"\xff" * 10)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw(channel, "Dequeue")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_compressed_requests_are_refused(front: GrpcFront, queue: str) -> None:
    """A small one could become a large one."""
    address = f"127.0.0.1:{front.address[1]}"
    async with grpc.aio.insecure_channel(address, compression=grpc.Compression.Gzip) as channel:
        large = pb.EnqueueRequest(queue=queue, messages=drafts(b"x" * (1 << 20)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw(channel, "Enqueue")(large.SerializeToString())
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


# --- a queue as a log -----------------------------------------------------------------------------------------------


async def test_a_partition_is_read_again_until_it_is_committed(api: Api, queue: str) -> None:
    await api.CreateQueue(pb.CreateQueueRequest(name=queue, config=pb.QueueConfig(partitions=1)))
    await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"1", b"2", b"3")))
    request = pb.ReadRequest(queue=queue, group="log")

    async def payloads(request: pb.ReadRequest) -> list[bytes]:
        return [message.payload async for part in api.Read(request) for message in part.messages]

    assert await payloads(request) == [b"1", b"2", b"3"]
    assert await payloads(pb.ReadRequest(queue=queue, group="log", limit=2)) == [b"1", b"2"]
    assert await payloads(pb.ReadRequest(queue=queue, group="log", first=2, until=3)) == [b"2"]
    assert (await api.Commit(pb.CommitRequest(queue=queue, group="log", sequences={0: 2}))).messages == 2
    assert await payloads(request) == [b"3"]
    async with refused("cursor_out_of_range", grpc.StatusCode.OUT_OF_RANGE):
        await api.Commit(pb.CommitRequest(queue=queue, group="log", sequences={0: 99}))


async def test_a_read_follows_what_arrives(api: Api, queue: str) -> None:
    await api.CreateQueue(pb.CreateQueueRequest(name=queue, config=pb.QueueConfig(partitions=1)))
    call = api.Read(pb.ReadRequest(queue=queue, group="log", follow=True, limit=3))
    empty = await call.read()
    assert not empty.messages
    found: list[bytes] = []
    for batch in ((b"1", b"2"), (b"3", b"4")):
        await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(*batch)))
        while len(found) < min(3, int(batch[-1])):
            found += [message.payload for message in (await call.read()).messages]
    assert found == [b"1", b"2", b"3"]
    assert await call.read() is grpc.aio.EOF
