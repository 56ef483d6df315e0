"""A whole broker inside the test's loop: node, store and MQTT front, listening on a free port, under a clock that tests
can move."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from holdfast.auth.gate import Gate
from holdfast.broker.node import Node, wall_clock
from holdfast.broker.webhooks import Webhooks
from holdfast.config import Config
from holdfast.config.settings import HttpSettings, JournalSettings, MqttSettings, NodeSettings
from holdfast.http_api import HttpFront
from holdfast.mqtt.codec import V5, Connect, Properties, Will
from holdfast.mqtt.net import MqttFront
from holdfast.mqtt.sessions.hub import Hub
from holdfast.mqtt.sessions.session import Session
from holdfast.store.contract import Store
from holdfast.store.memory import MemoryDisk, MemoryStore
from holdfast.units import SECOND
from tests.mqtt.net.client import Client
from tests.waiting import until


def config_for(path: Path, **mqtt: object) -> Config:
    """The defaults on any free port, with everything below `path` and no segment written meanwhile."""
    return Config(
        node=NodeSettings(data_dir=path),
        journal=JournalSettings(segment_age=3_600 * SECOND),
        http=HttpSettings(enabled=False, listen="127.0.0.1:0"),
        mqtt=replace(MqttSettings(listen="127.0.0.1:0"), **mqtt),
    )


class Broker:
    """`start` and `stop` may be repeated: what the store keeps is there again."""

    def __init__(self, config: Config, open_store: Callable[[], Store], gate: Gate | None = None) -> None:
        self.config = config
        self._open_store = open_store
        self._gate = gate
        self._ahead = 0
        self._clients: list[Client] = []
        self.node: Node
        self.front: MqttFront
        self.http: HttpFront | None = None
        self.store: Store

    async def start(self) -> None:
        self.store = self._open_store()
        # No webhook is called here, and reading the system's certificates takes longer than most of these tests.
        webhooks = Webhooks(self.config.webhooks, lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        self.node = Node(self.config, self.store, self.clock, webhooks)
        await self.node.start()
        gate = self._gate or Gate(self.config, self.clock)
        self.front = MqttFront(self.config, self.node, gate)
        await self.front.start()
        if self.config.http.enabled:
            self.http = HttpFront(self.config, self.node, gate, {"/mqtt": self.front.websocket()})
            await self.http.start()

    async def stop(self) -> None:
        for client in self._clients:
            client.cut()
        self._clients.clear()
        await self.front.stop()
        if self.http is not None:
            await self.http.stop()
        await self.node.stop()
        self.store.close()

    # --- time -------------------------------------------------------------------------------------------------------

    def clock(self) -> int:
        return wall_clock() + self._ahead

    def pass_time(self, seconds: float) -> None:
        """Move the clock, and let the front see what is due."""
        self._ahead += int(seconds * SECOND)
        self.front._due()

    # --- looking inside ---------------------------------------------------------------------------------------------

    @property
    def hub(self) -> Hub:
        assert self.front._hub is not None
        return self.front._hub

    def sessions(self) -> dict[str, Session]:
        ns = self.hub.namespaces.get("default")
        return {} if ns is None else {session.client_id: session for session in ns.sessions.values()}

    def session(self, client_id: str) -> Session:
        return self.sessions()[client_id]

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition)

    async def settled(self) -> None:
        """Everything that has arrived so far is durable and was answered."""
        await self.node.cell.commit.durable()

    # --- clients ----------------------------------------------------------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        return self.front.addresses[0]

    async def open(self, version: int = V5) -> Client:
        """A connection on which nothing has been said."""
        client = await Client.open(*self.address, version)
        self.adopt(client)
        return client

    def adopt(self, client: Client) -> None:
        """See to it that it is gone when the broker stops."""
        self._clients.append(client)

    async def connect(
        self,
        client_id: str = "c",
        version: int = V5,
        *,
        clean: bool = True,
        expiry: int | None = None,
        will: Will | None = None,
        keep_alive: int = 0,
        username: str | None = None,
        password: bytes | None = None,
        properties: Properties | None = None,
    ) -> Client:
        """A client that was let in; its `connack` says how."""
        client = await self.open(version)
        asked = replace(properties or Properties(), session_expiry_s=expiry) if expiry is not None else properties
        await client.connect(
            Connect(client_id, version, clean, keep_alive, username, password, will, asked or Properties())
        )
        assert client.connack.reason_code == 0
        return client


def memory_broker(config: Config, gate: Gate | None = None) -> Broker:
    disk = MemoryDisk()
    return Broker(config, lambda: MemoryStore(disk), gate)
