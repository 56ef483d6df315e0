"""A client that does over MQTT all that MQTT has words for: it sends, consumes, settles, creates and changes queues.

Who asks for messages (`receive`) is a consumer that comes, takes as many as it wants and goes: it subscribes to
`$share/<group>/$queue/<queue>` with that prefetch, takes what it is sent, and vanishes without a word. Its session
lives on, and so do its leases; they are settled by their tokens, on `$queue/<queue>/$ack` and its sisters, from the
connection that sends. (To unsubscribe, or to say goodbye, would release them.)

What MQTT has no words for goes the way of any other client: looking (browse, stats), groups made or deleted by hand,
cursor groups, pause, purge and delete, edits, redriven dead letters.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from msgspec import Raw as RawJson
from msgspec import json
from msgspec.structs import replace

from holdfast import wire
from holdfast.auth.gate import Gate
from holdfast.client import Client, Message, Retries, Sent, SentMany, draft
from holdfast.client.drafts import as_draft
from holdfast.client.times import Duration, seconds
from holdfast.config.settings import MqttSettings
from holdfast.errors import HoldfastError, LeaseLost, all_errors
from holdfast.mqtt.codec import PubAck, Publish
from holdfast.mqtt.net import MqttFront
from holdfast.testing import Broker
from holdfast.units import MILLISECOND, format_instant
from tests.mqtt.queues.rig import Raw, dial, until

FOR_EVER_S = 0xFFFF_FFFF
_numbers = count(1)
FIRST_ERROR = 0x80


class MqttClient(Client):
    """See the module."""

    def __init__(self, connection: Raw, front: MqttFront, broker: Broker) -> None:
        super().__init__("http://localhost", retries=Retries(attempts=1), transport=broker.transport())
        self._connection = connection
        self._front = front
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

    # --- consuming --------------------------------------------------------------------------------------------------

    async def lease(
        self,
        queue: str,
        *,
        group: str = "default",
        limit: int = 1,
        wait: Duration = 0,
        timeout: Duration | None = None,  # noqa: ASYNC109 - the client's signature
        max_bytes: int = 0,
        consumer: str | None = None,
        create: bool = True,
    ) -> list[wire.Delivery]:
        """See the module."""
        name = f"{consumer or self.name}-{next(_numbers)}"
        raw = await Raw.connect(await dial(self._front.addresses[0][1]), name, clean=False, expiry_s=FOR_EVER_S)
        try:
            subscribed = await raw.subscribe(
                f"$share/{group}/$queue/{queue}", 1, prefetch=str(limit), ack_mode="explicit"
            )
            if subscribed.reason_codes[0] >= FIRST_ERROR:
                raise error_of(subscribed)
            taken = await _pushed(raw, limit, seconds(wait, "wait"))
        finally:
            raw.vanish()
            await until(lambda: name not in [one.connection.client_id for one in self._front._links if one.connection])
        deliveries = [_delivery(one) for one in taken]
        if timeout is not None:  # a subscriber cannot say how long its leases are to be: it extends them
            for one in deliveries:
                told = wire.Settlement(
                    id=one.id, lease_token=one.lease_token, action="extend", timeout=seconds(timeout, "timeout")
                )
                await self._settle(queue, group, told)
        return deliveries

    async def settle(
        self, queue: str, settlements: Iterable[wire.Settlement], *, group: str = "default"
    ) -> wire.Settled:
        errors: list[wire.ItemError] = []
        done = 0
        for index, settlement in enumerate(settlements):
            try:
                await self._settle(queue, group, settlement)
                done += 1
            except HoldfastError as error:
                errors.append(wire.ItemError(index=index, code=error.code, detail=str(error)))
        return wire.Settled(settled=done, errors=errors)

    async def settle_one(self, message: Message, settlement: wire.Settlement) -> str | None:
        try:
            await self._settle(message.queue, message.group, settlement)
        except LeaseLost:
            self.abandon(message)
            raise
        if settlement.action != "extend":
            self.abandon(message)
            return None
        view = await self.message(message.queue, message.id)
        return next(each.lease_deadline for each in view.deliveries if each.group == message.group)

    async def _settle(self, queue: str, group: str, settlement: wire.Settlement) -> None:
        user = {
            "message-id": settlement.id,
            "lease-token": settlement.lease_token,
            "consumer-group": group,
            "delay": _text(settlement.delay),
            "error": settlement.error or None,
            "timeout": _text(settlement.timeout),
        }
        given = {name: value for name, value in user.items() if value is not None}
        await self._publish(f"$queue/{queue}/${settlement.action}", b"", given)

    # --- administering ----------------------------------------------------------------------------------------------

    async def create_queue(
        self,
        queue: str,
        config: Mapping[str, object] | None = None,
        *,
        exist_ok: bool = False,
    ) -> wire.Queue:
        await self._publish("$admin/queue/create", json.encode({"name": queue, **(config or {})}), {})
        return await self.queue(queue)

    async def update_queue(self, queue: str, config: Mapping[str, object]) -> wire.Queue:
        await self._publish(f"$admin/queue/{queue}/config", json.encode(config), {})
        return await self.queue(queue)


async def _pushed(raw: Raw, limit: int, wait_seconds: float) -> list[Publish]:
    """What a new subscriber is sent: what is ready, or the first thing that becomes so."""
    taken: list[Publish] = []
    if wait_seconds:
        try:
            async with asyncio.timeout(wait_seconds):
                taken.append(await raw.delivery())
        except TimeoutError:
            return []
    while len(taken) < limit:
        before = len(taken)
        await raw.ping()  # a turn of the broker's, after which it pushes what it has found
        await raw.ping()
        taken += [packet for packet in raw.seen if isinstance(packet, Publish)]
        raw.seen = [packet for packet in raw.seen if not isinstance(packet, Publish)]
        if len(taken) == before:
            break
    return taken


RESERVED = (
    *("queue", "consumer-group", "attempt", "lease-deadline", "enqueued-at", "message-id", "lease-token", "id"),
    *("priority", "partition-key", "correlation-id", "source-id", "source-queue", "source-group", "dead-reason"),
    *("dead-error", "dead-attempts", "first-attempt-at", "last-attempt-at"),
)


def _delivery(packet: Publish) -> wire.Delivery:
    """As a client that was given the same by the API would have it; MQTT shows neither sequence nor partition."""
    told = dict(packet.properties.user_properties)
    properties: dict[str, str | list[str]] = {}
    for name, value in packet.properties.user_properties:
        if name not in RESERVED:
            known = properties.get(name)
            properties[name] = value if known is None else [*([known] if isinstance(known, str) else known), value]
    return wire.Delivery(
        id=told.get("id", told["message-id"]),
        sequence=0,
        partition=-1,
        enqueued_at=_instant(told["enqueued-at"]),
        base64=packet.payload,
        content_type=packet.properties.content_type,
        key=told.get("partition-key"),
        message_id=told["message-id"] if "id" in told else None,
        priority=int(told.get("priority", "128")),
        properties=properties,
        correlation_id=told.get("correlation-id"),
        reply_to=packet.properties.response_topic,
        origin=_origin(told),
        queue=told["queue"],
        group=told["consumer-group"],
        attempt=int(told["attempt"]),
        lease_token=told["lease-token"],
        lease_deadline=_instant(told["lease-deadline"]),
    )


def _origin(told: Mapping[str, str]) -> wire.Origin | None:
    if "source-id" not in told:
        return None
    return wire.Origin(
        source_id=told["source-id"],
        source_queue=told["source-queue"],
        source_group=told["source-group"],
        reason=told["dead-reason"],
        error=told["dead-error"],
        attempts=int(told["dead-attempts"]),
    )


def _instant(milliseconds: str) -> str:
    return format_instant(int(milliseconds) * MILLISECOND)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _body(item: wire.Draft) -> bytes:
    if isinstance(item.payload, RawJson):
        return bytes(item.payload)
    if isinstance(item.text, str):
        return item.text.encode()
    return item.base64 if isinstance(item.base64, bytes) else b""


def error_of(answer: Any) -> HoldfastError:
    """The error whose words these are; an answer says no more of it, and has fewer codes than there are errors."""
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
    connection = await Raw.connect(await dial(front.addresses[0][1]), "behaviour")
    try:
        async with MqttClient(connection, front, broker) as client:
            yield client
    finally:
        await connection.end()
        await front.stop()
        await gate.close()
