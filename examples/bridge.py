"""Moves messages between another broker and Holdfast, either way, while programs change sides one after another.

    python bridge.py in  amqp://guest:guest@rabbit// emails     the other broker's queue `emails` into the queue here
    python bridge.py out amqp://guest:guest@rabbit// emails     and back

Any broker that Kombu knows: RabbitMQ, Redis, SQS. A message is acked where it was when it is stored where it goes, so
none is lost. One with an id of its own is stored once, though the bridge dies in between. `--once` ends when nothing is
left. Needs: pip install holdfast kombu
"""

from __future__ import annotations

import argparse
import queue as queues

import kombu

from holdfast.client import Draft, Received, SyncClient, draft

BATCH = 100
WAIT_SECONDS = 0.5


def to_draft(message: kombu.Message) -> Draft:
    """What another broker's message is here. There a greater priority is more urgent, here a lower one."""
    properties, body = message.properties, message.body
    expiration = properties.get("expiration")
    return draft(
        body if isinstance(body, bytes) else str(body).encode(),
        message_id=properties.get("message_id") or None,
        content_type=message.content_type,
        priority=128 - min(properties.get("priority") or 0, 128),
        ttl=None if expiration is None else int(expiration) / 1000,
        correlation_id=properties.get("correlation_id") or None,
        reply_to=properties.get("reply_to") or None,
        properties={name: str(value) for name, value in (message.headers or {}).items()},
    )


def take_in(other: kombu.Connection, client: SyncClient, queue: str, once: bool) -> int:
    """Enqueue here what is in the other broker's queue. Returns how many messages that were."""
    total = 0
    with other.SimpleQueue(queue) as source:
        while True:
            batch: list[kombu.Message] = []
            try:
                while len(batch) < BATCH:
                    batch.append(source.get(timeout=WAIT_SECONDS))
            except (TimeoutError, queues.Empty):
                pass
            if batch:
                client.send_many(queue, [to_draft(message) for message in batch])
                for message in batch:
                    message.ack()
                total += len(batch)
            elif once:
                return total


def give_out(other: kombu.Connection, client: SyncClient, queue: str, once: bool) -> int:
    """Publish at the other broker what is in the queue here."""
    total = 0
    with other.SimpleQueue(queue) as target:
        while True:
            received = client.receive(queue, limit=BATCH, wait=WAIT_SECONDS)  # as a member of the workers' group
            for message in received:
                publish(target, message)
                message.ack()
            total += len(received)
            if once and not received:
                return total


def publish(target: kombu.simple.SimpleQueue, message: Received) -> None:
    target.put(
        message.body,
        headers={name: value if isinstance(value, str) else value[-1] for name, value in message.properties.items()},
        content_type=message.content_type or "application/octet-stream",
        content_encoding="binary",
        message_id=message.id,
        delivery_mode=2,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("direction", choices=["in", "out"])
    parser.add_argument("broker", help="as amqp://user:password@host//, redis://host, sqs://")
    parser.add_argument("queue")
    parser.add_argument("--once", action="store_true", help="end when nothing is left")
    options = parser.parse_args()
    move = take_in if options.direction == "in" else give_out
    # Publishing waits for the broker's confirmation, where the transport has one.
    with kombu.Connection(options.broker, transport_options={"confirm_publish": True}) as other, SyncClient() as client:
        print(f"moved {move(other, client, options.queue, options.once)} messages")


if __name__ == "__main__":
    main()
