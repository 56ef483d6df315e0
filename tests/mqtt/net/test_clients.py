"""The plain broker with clients that others wrote: paho, aiomqtt, MQTT.js, Mosquitto's, over all transports."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiomqtt
import paho.mqtt.client as paho
import pytest
from msgspec.structs import replace
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from holdfast.config.audit_settings import AuditSettings
from tests.auth import rig
from tests.mqtt.net.broker import Broker, config_for, memory_broker
from tests.mqtt.net.conftest import Run
from tests.mqtt.net.secure import Certificates
from tests.waiting import PATIENCE_SECONDS

V311, V5 = MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5
BOTH = pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])
TRANSPORTS = pytest.mark.parametrize("transport", ["tcp", "tls", "websocket", "websocket over tls"])


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@asynccontextmanager
async def serving(run: Run, tmp_path: Path, certificates: Certificates, transport: str) -> AsyncIterator[Broker]:
    """With a user `shop`, over one transport."""
    config = config_for(tmp_path, tls_listen="127.0.0.1:0")
    users = rig.write_users(tmp_path / "users.json", rig.user("shop", "secret", "produce:#", "consume:open/#"))
    secure = transport.endswith("tls")
    config = replace(
        config,
        http=replace(config.http, enabled=transport.startswith("websocket")),
        mqtt=config.mqtt if secure else replace(config.mqtt, tls_listen=""),
        tls=certificates.settings() if secure else config.tls,
        auth=rig.settings(users_file=users),
        audit=AuditSettings(enabled=False),
    )
    yield await run(memory_broker(config))


def address(broker: Broker, transport: str) -> tuple[str, int]:
    if transport.startswith("websocket"):
        assert broker.http is not None
        return broker.http.address
    return broker.front.addresses[1 if transport == "tls" else 0]


# --- paho -----------------------------------------------------------------------------------------------------------


class Paho:
    """paho-mqtt with its thread, and what it was told, in queues."""

    def __init__(self, name: str, version: MQTTProtocolVersion, transport: str, trust: Path) -> None:
        self.version = version
        wire = "websockets" if transport.startswith("websocket") else "tcp"
        clean = None if version == V5 else True
        self.client = paho.Client(CallbackAPIVersion.VERSION2, name, clean, protocol=version, transport=wire)  # type: ignore[arg-type]
        if wire == "websockets":
            self.client.ws_set_options(path="/mqtt")
        if transport.endswith("tls"):
            self.client.tls_set_context(ssl.create_default_context(cafile=trust))
        self.client.username_pw_set("shop", "secret")
        self.client.connect_timeout = PATIENCE_SECONDS
        self.connected: queue.Queue[ReasonCode] = queue.Queue()
        self.granted: queue.Queue[list[ReasonCode]] = queue.Queue()
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.published: queue.Queue[ReasonCode] = queue.Queue()
        self.lost: queue.Queue[ReasonCode] = queue.Queue()
        self.client.on_connect = lambda *said: self.connected.put(said[3])
        self.client.on_subscribe = lambda *said: self.granted.put(said[3])
        self.client.on_message = lambda *said: self.messages.put(said[2])
        self.client.on_publish = lambda *said: self.published.put(said[3])
        self.client.on_disconnect = lambda *said: self.lost.put(said[3])

    def connect(self, at: tuple[str, int]) -> ReasonCode:
        self.client.connect(*at)
        self.client.loop_start()
        return self.connected.get(timeout=PATIENCE_SECONDS)

    def subscribe(self, topic: str, qos: int) -> int:
        if self.version == V5:
            self.client.subscribe(topic, options=SubscribeOptions(qos, noLocal=False))
        else:
            self.client.subscribe(topic, qos)
        return self.granted.get(timeout=PATIENCE_SECONDS)[0].value

    def publish(self, topic: str, payload: bytes, qos: int, properties: Properties | None = None) -> ReasonCode:
        self.client.publish(topic, payload, qos, properties=properties)
        return self.published.get(timeout=PATIENCE_SECONDS)

    def message(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=PATIENCE_SECONDS)


@contextmanager
def pahos(version: MQTTProtocolVersion, transport: str, trust: Path) -> Iterator[tuple[Paho, Paho]]:
    both = Paho("reader", version, transport, trust), Paho("writer", version, transport, trust)
    try:
        yield both
    finally:
        for one in both:
            one.client.disconnect()
            one.client.loop_stop()


@BOTH
@TRANSPORTS
async def test_paho(
    run: Run, tmp_path: Path, certificates: Certificates, version: MQTTProtocolVersion, transport: str
) -> None:
    def scene(at: tuple[str, int]) -> None:
        with pahos(version, transport, certificates.authority_file) as (reader, writer):
            assert [one.connect(at).value for one in (reader, writer)] == [0, 0]
            assert reader.subscribe("open/+", 2) == 2
            assert reader.subscribe("closed/+", 2) == (0x87 if version == V5 else 0x80)
            carried = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            carried.UserProperty = pairs = [("b", "1"), ("a", "2")]
            carried.ResponseTopic = "open/answers"
            for qos in range(3):
                payload = b"%d" % qos * 20_000
                assert not writer.publish(f"open/{qos}", payload, qos, carried if version == V5 else None).is_failure
                seen = reader.message()
                assert (seen.topic, seen.payload, seen.qos) == (f"open/{qos}", payload, qos)
                if version == V5:
                    assert seen.properties is not None
                    known = seen.properties.json()  # type: ignore[no-untyped-call]
                    assert (known["UserProperty"], known["ResponseTopic"]) == (pairs, "open/answers")
            refusal = writer.publish("/".join("x" * 300), b"", 1)
            assert refusal.value == (0x90 if version == V5 else 0)

    async with serving(run, tmp_path, certificates, transport) as broker:
        await asyncio.to_thread(scene, address(broker, transport))
        await broker.until(lambda: not broker.front._links)


@BOTH
async def test_paho_understands_every_refusal(
    run: Run, tmp_path: Path, certificates: Certificates, version: MQTTProtocolVersion
) -> None:
    """A code that PUBACK does not have ends paho's thread."""

    def scene(at: tuple[str, int]) -> None:
        with pahos(version, "tcp", certificates.authority_file) as (_, writer):
            assert writer.connect(at).value == 0
            writer.client.publish("$queue/q", b"x" * 1_100_000, 1)  # larger than a queue takes
            if version == V5:
                assert writer.published.get(timeout=PATIENCE_SECONDS).value == 0x97
                assert writer.publish("open/1", b"still there", 1).value in (0, 0x10)
            else:
                assert writer.lost.get(timeout=PATIENCE_SECONDS).is_failure

    async with serving(run, tmp_path, certificates, "tcp") as broker:
        await asyncio.to_thread(scene, address(broker, "tcp"))


@BOTH
async def test_paho_comes_back_to_its_session(
    run: Run, tmp_path: Path, certificates: Certificates, version: MQTTProtocolVersion
) -> None:
    def scene(at: tuple[str, int]) -> None:
        kept = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        kept.SessionExpiryInterval = 1000

        def reader() -> Paho:
            one = Paho("kept", version, "tcp", certificates.authority_file)
            if version == V5:
                one.client.connect(*at, clean_start=False, properties=kept)
            else:
                one.client._clean_session = False
                one.client.connect(*at)
            one.client.loop_start()
            assert one.connected.get(timeout=PATIENCE_SECONDS).value == 0
            return one

        first = reader()
        assert first.subscribe("open/#", 2) == 2
        first.client.disconnect()
        first.client.loop_stop()
        writer = Paho("writer", version, "tcp", certificates.authority_file)
        writer.connect(at)
        for number in range(50):
            assert not writer.publish("open/x", b"%d" % number, 1 + number % 2).is_failure
        second = reader()
        assert sorted(int(second.message().payload) for _ in range(50)) == list(range(50))
        for one in (second, writer):
            one.client.disconnect()
            one.client.loop_stop()

    async with serving(run, tmp_path, certificates, "tcp") as broker:
        await asyncio.to_thread(scene, address(broker, "tcp"))


async def test_paho_is_told_that_its_password_is_wrong(run: Run, tmp_path: Path, certificates: Certificates) -> None:
    def scene(at: tuple[str, int]) -> list[str]:
        said = []
        for version in (V311, V5):
            one = Paho("c", version, "tcp", certificates.authority_file)
            one.client.username_pw_set("shop", "wrong")
            said.append(str(one.connect(at)))
            one.client.loop_stop()
        return said

    async with serving(run, tmp_path, certificates, "tcp") as broker:
        said = await asyncio.to_thread(scene, address(broker, "tcp"))
    assert said == ["Bad user name or password", "Bad user name or password"]


# --- aiomqtt --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5])
async def test_aiomqtt(run: Run, tmp_path: Path, certificates: Certificates, version: aiomqtt.ProtocolVersion) -> None:
    async with serving(run, tmp_path, certificates, "tls") as broker:
        host, port = address(broker, "tls")
        context = ssl.create_default_context(cafile=certificates.authority_file)
        login = {
            "username": "shop",
            "password": "secret",
            "tls_context": context,
            "protocol": version,
            "timeout": PATIENCE_SECONDS,
        }
        async with (
            aiomqtt.Client(host, port, identifier="reader", **login) as reader,  # type: ignore[arg-type]
            aiomqtt.Client(host, port, identifier="writer", **login) as writer,  # type: ignore[arg-type]
        ):
            await reader.subscribe("open/#", qos=2)
            for qos in range(3):
                await writer.publish(f"open/{qos}", b"%d" % qos, qos, retain=True)
            seen = []
            async with asyncio.timeout(PATIENCE_SECONDS):
                async for message in reader.messages:
                    seen.append((str(message.topic), message.payload, message.qos))
                    if len(seen) == 3:
                        break
        assert sorted(seen) == [(f"open/{qos}", b"%d" % qos, qos) for qos in range(3)]
        await broker.until(lambda: not broker.front._links)


# --- MQTT.js --------------------------------------------------------------------------------------------------------

SCRIPT = """
const mqtt = require("mqtt");
const [url, version, ca] = process.argv.slice(2);
const options = {
  protocolVersion: Number(version), username: "shop", password: "secret", clientId: "js-" + version,
  ca: ca ? require("fs").readFileSync(ca) : undefined, reconnectPeriod: 0,
};
const client = mqtt.connect(url, options);
const seen = [];
client.on("error", (error) => { console.error(String(error)); process.exit(1); });
client.on("message", (topic, payload, packet) => {
  seen.push([topic, payload.toString(), packet.qos, packet.properties?.userProperties?.a ?? null]);
  if (seen.length === 3) { console.log(JSON.stringify(seen)); client.end(); }
});
client.on("connect", () => client.subscribe({ "open/+": { qos: 2 } }, (error, granted) => {
  if (error || granted[0].qos !== 2) { console.error("subscribe", error, granted); process.exit(1); }
  const properties = version === "5" ? { userProperties: { a: "1" } } : undefined;
  for (const qos of [0, 1, 2]) client.publish("open/" + qos, "x" + qos, { qos, properties });
}));
"""


@pytest.mark.parametrize(
    ("transport", "version"), [("tcp", 4), ("tls", 5), ("websocket", 5), ("websocket over tls", 4)]
)
async def test_mqtt_js(
    run: Run, tmp_path: Path, certificates: Certificates, mqtt_js: Path, transport: str, version: int
) -> None:
    async with serving(run, tmp_path, certificates, transport) as broker:
        scheme = {"tcp": "mqtt", "tls": "mqtts", "websocket": "ws", "websocket over tls": "wss"}[transport]
        path = "/mqtt" if transport.startswith("websocket") else ""
        url = f"{scheme}://127.0.0.1:{address(broker, transport)[1]}{path}"
        ca = [str(certificates.authority_file)] if transport.endswith("tls") else []
        (tmp_path / "scene.js").write_text(SCRIPT)
        child = await asyncio.create_subprocess_exec(
            *("node", str(tmp_path / "scene.js"), url, str(version), *ca),
            env={**os.environ, "NODE_PATH": str(mqtt_js)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            out, err = await child.communicate()
        assert child.returncode == 0, err.decode()
        carried = "1" if version == 5 else None
        assert sorted(json.loads(out)) == [[f"open/{qos}", f"x{qos}", qos, carried] for qos in range(3)]
        await broker.until(lambda: not broker.front._links)


# --- Mosquitto's ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto_pub and mosquitto_sub are not installed")
@pytest.mark.parametrize(("transport", "version"), [("tcp", "311"), ("tcp", "5"), ("tls", "5")])
async def test_mosquitto(run: Run, tmp_path: Path, certificates: Certificates, transport: str, version: str) -> None:
    async with serving(run, tmp_path, certificates, transport) as broker:
        host, port = address(broker, transport)
        common = ["-h", host, "-p", str(port), "-u", "shop", "-P", "secret", "-V", version, "-q", "2"]
        if transport == "tls":
            common += ["--cafile", str(certificates.authority_file)]
        reader = await asyncio.create_subprocess_exec(
            *("mosquitto_sub", *common, "-i", "reader", "-t", "open/#", "-C", "2", "-F", "%t %q %r %p", "-W", "30"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        await broker.until(lambda: "reader" in broker.sessions() and bool(broker.session("reader").subscriptions))
        for topic, payload in (("open/1", "one"), ("open/2", "two")):
            writer = await asyncio.create_subprocess_exec(
                "mosquitto_pub", *common, "-t", topic, "-m", payload, stderr=subprocess.PIPE
            )
            _, err = await writer.communicate()
            assert writer.returncode == 0, err.decode()
        async with asyncio.timeout(PATIENCE_SECONDS):
            out, err = await reader.communicate()
        assert reader.returncode == 0, err.decode()
        assert out.decode().splitlines() == ["open/1 2 0 one", "open/2 2 0 two"]
