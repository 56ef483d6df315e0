"""Send, receive and settle with the Python client, and ask for an answer.

HOLDFAST_URL=http://127.0.0.1:8080 .venv/bin/python examples/client.py
"""

from __future__ import annotations

import asyncio

import msgspec

from holdfast.client import Client, SyncClient, Workers, draft, worker


class Email(msgspec.Struct):
    to: str


@worker("example/questions")
async def double(number: int) -> int:
    return number * 2


async def main() -> None:
    async with Client() as client:
        # Durable when this returns. A retry never doubles it: it has an id of its own.
        await client.send("example/emails", Email("ann@example.com"), properties={"tenant": "acme"})

        # Messages of one key are delivered one after another.
        names = ["bob", "cid"]
        result = await client.send_many(
            "example/emails", (draft(Email(f"{name}@example.com"), key=name) for name in names)
        )
        print(f"stored {result.stored + 1} messages")

        # Leaving the loop releases what is not settled.
        seen = 0
        async for message in client.consume("example/emails", group="mailer", prefetch=10):
            print(f"attempt {message.attempt}: {message.json(Email).to}")
            await message.ack()
            seen += 1
            if seen == 3:
                break

        # A request waits for its reply; a worker replies by returning.
        stop = asyncio.Event()
        working = asyncio.create_task(Workers(double).serve(client, stop))
        reply = await client.request("example/questions", 21, timeout="20s")
        print(f"the answer is {reply.json(int)}")
        stop.set()
        await working


def clean_up() -> None:
    """The same client without `await`."""
    with SyncClient() as client:
        for queue in client.queues("example/"):
            client.delete_queue(queue.name)
            print(f"deleted {queue.name}")


if __name__ == "__main__":
    asyncio.run(main())
    clean_up()
