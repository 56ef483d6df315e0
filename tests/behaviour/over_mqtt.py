"""A client that sends and settles over MQTT. It leases and administers as any other does: a lease is the same on all
fronts.

Consuming over MQTT is pushed, not asked for, and has tests of its own in `tests/mqtt/queues`.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Raw as RawJson
from msgspec.structs import replace

from holdfast import wire
from holdfast.auth.gate import Gate
from holdfast.client import Client, Message, Retries, Sent, SentMany, draft
from holdfast.client.drafts import as_draft
from holdfast.config.settings import MqttSettings
from holdfast.errors import HoldfastError, LeaseLost, all_errors
from holdfast.mqtt.codec import PubAck
from holdfast.mqtt.net import MqttFront
from holdfast.testing import Broker
from tests.mqtt.queues.rig import Raw

FIRST_ERROR = 0x80


class MqttClient(Client):
    """See the module."""

    def __init__(self, connection: Raw, broker: Broker) -> None:
        super().__init__("http://localhost", retries=Retries(attempts=1), transport=broker.transport())
        self._connection = connection
        self._turn = asyncio.Lock()  # one packet and its answer at a time

    async def _publish(self, topic: str, payload: bytes, user: dict[str, str], **fields: Any) -> None:
        async with self._turn:
            answer = await self._connection.publish(topic, payload, user=user, **fields)
        if answer.reason_code >= FIRST_ERROR:
            raise error_of(answer)

    async def send(self, queue: str, payload: object = b"", **said: Any) -> Sent:
        return Sent(await self._enqueue(queue, draft(payload, **said)))

    async def send_many(self, queue: str, messages: Any, **_: Any) -> SentMany:
        result = SentMany(ids=[], duplicates=[], errors={})
        for item in messages:
            try:
                result.ids.append(await self._enqueue(queue, as_draft(item)))
            except HoldfastError as error:
                result.errors[len(result.ids)] = error
                result.ids.append(None)
        return result

    async def _enqueue(self, queue: str, item: wire.Draft) -> str:
        """A PUBACK names no id: it is looked up by the producer's own."""
        told = {
            "message-id": item.message_id,
            "partition-key": item.key,
            "correlation-id": item.correlation_id,
            "priority": None if item.priority == 128 else str(item.priority),
            "delay": _text(item.delay),
            "deliver-at": _text(item.deliver_at),
            "ttl": _text(item.ttl),
        }
        pairs = [(name, value) for name, value in told.items() if value is not None]
        for name, value in item.properties.items():
            pairs += [(name, each) for each in ([value] if isinstance(value, str) else value)]
        packet = self._connection.packet(
            f"$queue/{queue}", _body(item), content_type=item.content_type, response_topic=item.reply_to
        )
        async with self._turn:
            self._connection.send(replace(packet, properties=replace(packet.properties, user_properties=tuple(pairs))))
            answer = await self._connection.expect(PubAck, lambda ack: ack.packet_id == packet.packet_id)
        if answer.reason_code >= FIRST_ERROR:
            raise error_of(answer)
        return next(iter([view.id async for view in self.browse(queue) if view.message_id == item.message_id]), "")

    async def settle_one(self, message: Message, settlement: wire.Settlement) -> str | None:
        user = {
            "message-id": settlement.id,
            "lease-token": settlement.lease_token,
            "consumer-group": message.group,
            "delay": _text(settlement.delay),
            "error": settlement.error or None,
            "timeout": _text(settlement.timeout),
        }
        given = {name: value for name, value in user.items() if value is not None}
        try:
            await self._publish(f"$queue/{message.queue}/${settlement.action}", b"", given)
        except LeaseLost:
            self.abandon(message)
            raise
        if settlement.action != "extend":
            self.abandon(message)
            return None
        view = await self.message(message.queue, message.id)
        return next(each.lease_deadline for each in view.standings if each.group == message.group)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _body(item: wire.Draft) -> bytes:
    if isinstance(item.payload, RawJson):
        return bytes(item.payload)
    if isinstance(item.text, str):
        return item.text.encode()
    return item.base64 if isinstance(item.base64, bytes) else b""


def error_of(answer: Any) -> HoldfastError:
    """The error whose words these are; a PUBACK says no more of it, and has fewer codes than there are errors."""
    text = answer.properties.reason_string or ""
    matching = [(len(words), kind) for kind in all_errors() if re.fullmatch(words := _words(kind), text)]
    _, kind = max(matching, key=lambda pair: pair[0])
    error = kind()
    error.args = (text,)
    return error


def _words(kind: type[HoldfastError]) -> str:
    """An error's message as a pattern."""
    return re.sub(r"\\\{.*?\\\}", ".*", re.escape(" ".join((inspect.getdoc(kind) or "").split())))


@asynccontextmanager
async def mqtt_client(broker: Broker) -> AsyncIterator[MqttClient]:
    config = replace(broker.node.config, mqtt=MqttSettings(listen="127.0.0.1:0"))
    gate = Gate(config, broker.node.clock)
    front = MqttFront(config, broker.node, gate)
    await front.start()
    connection = await Raw.connect(front.addresses[0][1], "behaviour")
    try:
        async with MqttClient(connection, broker) as client:
            yield client
    finally:
        await connection.end()
        await front.stop()
        await gate.close()
