"""Queues and messages as a shop has them, with a history: for tests and for looking at pages."""

from __future__ import annotations

import math

from holdfast.client import Client
from holdfast.console.samples import STEP
from tests.console.rig import Served

SAMPLED = 200


async def seed(served: Served) -> None:
    async with Client(served.url, name="billing") as client:
        await client.create_queue("shop/orders", {"max_depth": 50})
        await client.create_queue("shop/mails")
        await client.create_queue("reports/nightly", {"paused": True})
        for index in range(45):
            order = {
                "order": 4711 + index,
                "lines": [{"sku": "A-1", "count": index}],
                "paid": index % 2 == 0,
                "note": None,
            }
            await client.send("shop/orders", order, key=f"customer-{index % 5}", properties={"shop": "north"})
        await client.send("reports/nightly", b"\x00\x01\x02\xffbinary", content_type="application/octet-stream")
        await client.send("shop/mails", "hello", priority=5, delay="1h")
        for index in range(6):
            await client.send("shop/mails", {"to": f"a{index}@example.org"})
        for _ in range(2):
            for message in await client.receive("shop/mails", limit=2):
                await message.reject("SMTP 550: mailbox 4711 unavailable")
        for message in await client.receive("shop/mails", limit=1):
            await message.reject("Template not found")
        for message in await client.receive("shop/orders", limit=2):
            await message.nack(3600, "timeout after 17 ms")
        for message in await client.receive("shop/orders", limit=2):
            await message.ack()
        await client.lease("shop/orders", limit=1, timeout="1h", consumer="billing-1")
    history(served)


def history(served: Served) -> None:
    """As if the server had run for a while."""
    samples, now = served.console.sampler.samples, served.node.clock()
    for at in range(SAMPLED):
        wave = 1 + math.sin(at / 12)
        values = {
            "depth": 40 * wave + at / 4,
            "enqueued": 12 * wave,
            "acked": 11 * wave,
            "failed": 0.4 * wave,
            "dead": 0.05,
            "wait": 0.2 + wave / 8,
            "work": 0.05,
        }
        for name in (("default", ""), ("default", "shop/orders"), ("default", "shop/mails")):
            samples.add(name, now - (SAMPLED - at) * STEP, values)
