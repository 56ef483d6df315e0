"""A broker for your own tests: the real node on the memory store, started in milliseconds, gone without a trace.

    async with Broker() as broker, broker.client() as client:
        await client.send("jobs", "hello")

`holdfast.testing.fixtures` has it as pytest fixtures. It needs the libraries of the server: `holdfast[server]`.
"""

try:
    from holdfast.testing.broker import Broker as Broker
except ModuleNotFoundError as error:
    if (error.name or "").startswith("holdfast"):
        raise
    raise ImportError('holdfast.testing runs a real broker: pip install "holdfast[server]"') from error
