"""Consuming: groups, members, prefetch and the window, and what a delivery says of itself."""

from __future__ import annotations

from tests.mqtt.queues.rig import Server


async def test_a_lone_message_reaches_a_consumer_that_waits(server: Server) -> None:
    consumer = await server.client("billing-1")
    await consumer.subscribe("$queue/jobs")
    producer = await server.client("producer")
    await producer.publish("$queue/jobs", b"one")
    assert (await consumer.delivery()).payload == b"one"
