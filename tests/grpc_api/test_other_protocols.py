"""One queue, every protocol: a lease that was taken over one is settled over another."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest_asyncio

from holdfast.grpc_api import GrpcFront
from holdfast.grpc_api.generated import queue_pb2 as pb
from holdfast.http_api import HttpFront
from holdfast.mqtt.net import MqttFront
from tests.grpc_api.rig import Api, drafts
from tests.mqtt.queues.rig import Raw, dial
from tests.waiting import PATIENCE_SECONDS


@pytest_asyncio.fixture(loop_scope="session")
async def http(front: GrpcFront) -> AsyncIterator[httpx.AsyncClient]:
    node = front.node
    other = HttpFront(node.config, node, front.gate)
    await other.start()
    async with httpx.AsyncClient(base_url=other.url, timeout=PATIENCE_SECONDS) as client:
        yield client
    await other.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def mqtt(front: GrpcFront) -> AsyncIterator[Raw]:
    node = front.node
    other = MqttFront(node.config, node, front.gate)
    await other.start()
    connection = await Raw.connect(await dial(other.addresses[0][1]), "worker")
    yield connection
    await connection.end()
    await other.stop()


async def leased(api: Api, queue: str) -> pb.Delivery:
    delivery: pb.Delivery
    (delivery,) = (await api.Lease(pb.LeaseRequest(queue=queue))).deliveries
    return delivery


async def depth(api: Api, queue: str) -> int:
    return int((await api.GetQueue(pb.GetQueueRequest(name=queue))).queue.depth)


async def test_a_lease_over_grpc_is_acked_over_http_and_the_reverse(
    api: Api, http: httpx.AsyncClient, queue: str
) -> None:
    path = f"/api/v1/queues/{queue.replace('/', '%2F')}"
    await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"1")))
    delivery = await leased(api, queue)
    settlement = {"id": str(delivery.message.id), "lease_token": str(delivery.lease_token)}
    done = await http.post(f"{path}/settle", json={"settlements": [settlement]})
    assert done.json()["settled"] == 1
    assert await depth(api, queue) == 0

    await http.post(f"{path}/messages", json={"messages": [{"text": "2"}]})
    (taken,) = (await http.post(f"{path}/leases", json={})).json()["deliveries"]
    back = pb.Settlement(id=int(taken["id"]), lease_token=int(taken["lease_token"]))
    assert (await api.Settle(pb.SettleRequest(queue=queue, settlements=[back]))).settled == 1
    assert await depth(api, queue) == 0


async def test_a_lease_over_grpc_is_acked_over_mqtt_and_the_reverse(api: Api, mqtt: Raw, queue: str) -> None:
    await api.Enqueue(pb.EnqueueRequest(queue=queue, messages=drafts(b"1")))
    delivery = await leased(api, queue)
    user = {
        "message-id": str(delivery.message.id),
        "lease-token": str(delivery.lease_token),
        "consumer-group": "default",
    }
    assert (await mqtt.publish(f"$queue/{queue}/$ack", b"", user=user)).reason_code == 0
    assert await depth(api, queue) == 0

    await mqtt.subscribe(f"$share/default/$queue/{queue}", 1, ack_mode="explicit")
    await mqtt.publish(f"$queue/{queue}", b"2")
    packet = await mqtt.delivery()
    told = dict(packet.properties.user_properties)
    back = pb.Settlement(id=int(told.get("id", told["message-id"])), lease_token=int(told["lease-token"]))
    assert (await api.Settle(pb.SettleRequest(queue=queue, settlements=[back]))).settled == 1
    assert await depth(api, queue) == 0
