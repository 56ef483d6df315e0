"""A broker for your own tests: the real node on the memory store, started in milliseconds, gone without a trace.

    async with Broker() as broker, broker.client() as client:
        await client.send("jobs", "hello")

`holdfast.testing.fixtures` has it as pytest fixtures.
"""

from holdfast.testing.broker import Broker as Broker
