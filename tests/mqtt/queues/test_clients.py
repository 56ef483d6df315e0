"""Clients that people use: paho-mqtt in both versions, aiomqtt, and MQTT.js where Node has it."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiomqtt
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from tests.mqtt.queues.rig import Server, until
from tests.waiting import PATIENCE_SECONDS


def properties(kind: int, **user: str) -> Properties:
    made = Properties(kind)  # type: ignore[no-untyped-call]
    if user:
        made.UserProperty = [(name.replace("_", "-"), value) for name, value in user.items()]
    return made


class Paho:
    """A paho client in its own thread, as most programs have it; what comes waits in `messages`."""

    def __init__(self, port: int, client_id: str, version: int) -> None:
        self.version = version
        self.messages: queue.Queue[mqtt.MQTTMessage] = queue.Queue()
        self.answers: dict[int, ReasonCode] = {}
        self.granted: queue.Queue[list[ReasonCode]] = queue.Queue()
        self.gone = threading.Event()
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=version,  # type: ignore[arg-type]
            manual_ack=True,
            reconnect_on_failure=False,
        )
        client.on_message = lambda _client, _data, message: self.messages.put(message)
        client.on_publish = lambda _client, _data, mid, code, _told: self.answers.update({mid: code})
        client.on_subscribe = lambda _client, _data, _mid, codes, _told: self.granted.put(codes)
        client.on_disconnect = lambda *_: self.gone.set()
        client.connect_timeout = PATIENCE_SECONDS
        client.connect("127.0.0.1", port)
        client.loop_start()
        self.client = client

    def subscribe(self, topic: str, **user: str) -> ReasonCode:
        told = properties(PacketTypes.SUBSCRIBE, **user) if self.version == mqtt.MQTTv5 else None
        self.client.subscribe(topic, 1, properties=told)
        return self.granted.get(timeout=PATIENCE_SECONDS)[0]

    def publish(self, topic: str, payload: bytes = b"", **user: str) -> ReasonCode | None:
        told = properties(PacketTypes.PUBLISH, **user) if self.version == mqtt.MQTTv5 else None
        sent = self.client.publish(topic, payload, 1, properties=told)
        sent.wait_for_publish(PATIENCE_SECONDS)
        return self.answers.get(sent.mid)

    def take(self) -> mqtt.MQTTMessage:
        return self.messages.get(timeout=PATIENCE_SECONDS)

    def accept(self, message: mqtt.MQTTMessage) -> None:
        self.client.ack(message.mid, message.qos)


@contextmanager
def paho(server: Server, client_id: str, version: int) -> Iterator[Paho]:
    one = Paho(server.port, client_id, version)
    try:
        yield one
    finally:
        one.client.disconnect()
        one.client.loop_stop()


def five(server: Server) -> None:
    with paho(server, "billing-1", mqtt.MQTTv5) as worker, paho(server, "audit-1", mqtt.MQTTv5) as auditor:
        assert worker.subscribe("$queue/bills", prefetch="2") == "Granted QoS 1"
        assert auditor.subscribe("$share/audit/$queue/bills", ack_mode="puback") == "Granted QoS 1"
        for number in range(3):
            answer = worker.publish("$queue/bills", b"%d" % number, message_id=f"bill-{number}")
            assert answer is not None
            assert not answer.is_failure
        refused = worker.publish("$queue/bills", b"x", priority="high")
        assert refused is not None
        assert refused.value == 0x83
        for number in range(3):
            bill = worker.take()
            told = dict(bill.properties.UserProperty)  # type: ignore[union-attr]
            assert (bill.payload, told["message-id"], told["consumer-group"]) == (
                b"%d" % number,
                f"bill-{number}",
                "billing",
            )
            worker.accept(bill)
            settled = worker.publish("$queue/bills/$ack", message_id=told["message-id"])
            assert settled is not None
            assert not settled.is_failure
            copy = auditor.take()
            assert copy.payload == bill.payload
            auditor.accept(copy)


def three(server: Server) -> None:
    with paho(server, "billing-1", mqtt.MQTTv311) as worker:
        worker.subscribe("$queue/bills")
        worker.publish("$queue/bills", b"good")
        worker.accept(worker.take())
        worker.publish("$queue/bills", b"bad")
        bad = worker.take()
        worker.publish("$queue/bills/$reject", b'{"error": "unreadable"}')
        worker.accept(bad)
        worker.client.publish("$queue/bills/$ack", b'{"message-id": "1"}', 1)  # no such delivery: it gets no answer
        assert worker.gone.wait(PATIENCE_SECONDS)


async def test_paho_in_version_5(server: Server) -> None:
    await asyncio.to_thread(five, server)
    await until(lambda: server.depth("bills") == 0)


async def test_paho_in_version_3_1_1(server: Server) -> None:
    await asyncio.to_thread(three, server)
    await until(lambda: server.depth("bills") == 0)
    assert await server.payloads("dlq/bills") == [b"bad"]


async def test_aiomqtt(server: Server) -> None:
    async with aiomqtt.Client(
        "127.0.0.1", server.port, identifier="billing-1", protocol=aiomqtt.ProtocolVersion.V5, timeout=PATIENCE_SECONDS
    ) as client:
        await client.subscribe("$queue/bills", qos=1)
        await client.publish("$queue/bills", b"1", qos=1, properties=properties(PacketTypes.PUBLISH, colour="red"))
        async for message in client.messages:
            told = dict(message.properties.UserProperty)  # type: ignore[union-attr]
            assert (message.payload, told["colour"], told["attempt"]) == (b"1", "red", "1")
            settled = properties(PacketTypes.PUBLISH, message_id=told["message-id"], lease_token=told["lease-token"])
            await client.publish("$queue/bills/$ack", qos=1, properties=settled)
            break
    await until(lambda: server.depth("bills") == 0)


MQTT_JS = """
const mqtt = require('mqtt')
const client = mqtt.connect({host: '127.0.0.1', port: PORT, clientId: 'billing-1', protocolVersion: 5})
client.on('message', (topic, payload, packet) => {
  const told = packet.properties.userProperties
  client.publish(topic + '/$ack', '', {qos: 1, properties: {userProperties: {
    'message-id': told['message-id'], 'lease-token': told['lease-token']}}}, error => {
    console.log(error ? error.message : `${payload} ${told.colour} ${told.attempt}`)
    client.end()
  })
})
client.subscribe('$queue/bills', {qos: 1}, () => {
  client.publish('$queue/bills', '1', {qos: 1, properties: {userProperties: {colour: 'red'}}})
})
"""


async def test_mqtt_js(server: Server, mqtt_js: Path) -> None:
    program = MQTT_JS.replace("PORT", str(server.port))
    environment = {**os.environ, "NODE_PATH": str(mqtt_js)}
    process = await asyncio.create_subprocess_exec(
        "node", "-e", program, env=environment, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    assert out.decode() == "1 red 1\n"
    await until(lambda: server.depth("bills") == 0)
