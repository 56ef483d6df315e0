"""The broker of tests.

    async with Broker() as broker:            client = broker.client()         in this process, no socket
    async with Broker(http=True) as broker:   Client(broker.url)               also over HTTP, on a free port
    with Broker() as broker:                  client = broker.sync_client()    over HTTP, from ordinary code

It is the real node: what a test sees is what production does. Only time is different: `advance` lets it pass.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

import httpx

from holdfast.auth.gate import Gate
from holdfast.broker.node import Node
from holdfast.client import Client, Retries, SyncClient
from holdfast.client.portal import Portal
from holdfast.client.times import Duration, seconds
from holdfast.config import Config
from holdfast.config.settings import HttpSettings, JournalSettings, NodeSettings
from holdfast.http_api import HttpFront
from holdfast.store import open_store
from holdfast.testing.in_process import in_process

IN_PROCESS = "http://localhost"  # a name that a server without credentials answers to


class Broker:
    """A broker for tests: `async with` it in asynchronous code, `with` it in ordinary code (then it listens).

    `http` lets it listen on a free port as well. `store` may be `rocks` for tests that want a disk; `config` replaces
    the whole configuration.
    """

    def __init__(self, *, http: bool = False, store: str = "memory", config: Config | None = None) -> None:
        self._http = http
        self._kind = store
        self._config = config
        self._skipped = 0  # microseconds that `advance` let pass
        self._stack: AsyncExitStack | None = None
        self._portal: Portal | None = None
        self._node: Node | None = None
        self._front: HttpFront | None = None

    # --- life -------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="holdfast-", ignore_cleanup_errors=True)))
            config = self._config or Config(
                node=NodeSettings(data_dir=directory),
                journal=JournalSettings(enabled=False),
                http=HttpSettings(listen="127.0.0.1:0"),
            )
            store = open_store(self._kind, directory / "store")
            stack.callback(store.close)
            node = Node(config, store, self._clock)
            await node.start()
            stack.push_async_callback(node.stop)
            gate = Gate(config, node.clock)
            stack.push_async_callback(gate.close)
            await gate.start()
            front = HttpFront(config, node, gate)
            if self._http:
                await front.start()
            stack.push_async_callback(front.stop)
            self._node, self._front = node, front
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._stack is not None
        await self._stack.aclose()

    def __enter__(self) -> Self:
        self._http = True
        self._portal = Portal()
        self._portal.open()
        try:
            return self._portal.run(self.__aenter__())
        except BaseException:
            self._portal.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._portal is not None
        try:
            self._portal.run(self.__aexit__(kind, error, trace))
        finally:
            self._portal.close()

    # --- what a test uses -------------------------------------------------------------------------------------------

    @property
    def node(self) -> Node:
        """The node itself, for looking behind the scenes from the loop it runs on."""
        assert self._node is not None, "the broker has not been started"
        return self._node

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._front is not None, "the broker has not been started"
        assert self._http, "the broker listens nowhere: say Broker(http=True)"
        return self._front.url

    def client(self, *, retries: Retries = Retries(), name: str | None = None) -> Client:
        """A client: over HTTP if the broker listens, else in this process and on this loop, without a socket.

        In process there is no connection to lose, but all the rest is as over HTTP.
        """
        if self._http:
            return Client(self.url, retries=retries, name=name)
        return Client(IN_PROCESS, retries=retries, name=name, transport=self.transport())

    def transport(self) -> httpx.AsyncBaseTransport:
        """A way to the broker in this process, for a client with options of its own: `Client(transport=...)`."""
        assert self._front is not None, "the broker has not been started"
        return in_process(self._front)

    def sync_client(self, *, retries: Retries = Retries(), name: str | None = None) -> SyncClient:
        """A client for ordinary code, over HTTP."""
        return SyncClient(self.url, retries=retries, name=name)

    def advance(self, by: Duration) -> None:
        """Move the broker's clock: delays and backoffs end, leases run out, messages expire."""
        self._skipped += int(seconds(by, "by") * 1_000_000)
        if self._portal is not None:
            self._portal.call(self.node.cell.run_due)
        else:
            self.node.cell.run_due()

    def _clock(self) -> int:
        return time.time_ns() // 1000 + self._skipped
