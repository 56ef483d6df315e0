"""A real server with users, keys and TLS: both fronts let in and keep out the same callers."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiomqtt
import httpx
import pytest
import trustme
from paho.mqtt.subscribeoptions import SubscribeOptions
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from holdfast.auth import files, keys, tokens
from tests.auth.rig import user, write_keys, write_users
from tests.cli.test_cli import HOLDFAST
from tests.waiting import PATIENCE_SECONDS

GOOD = "correct horse"
SIGNING = keys.generate("ES256")


class Server:
    """Addresses of a running server, and where it keeps things."""

    def __init__(self, directory: Path, process: subprocess.Popen[str]) -> None:
        self.users = directory / "users.json"
        self.data = directory / "data"
        self.process = process
        self.url = ""
        self.mqtt: dict[bool, int] = {}

    def wait(self) -> None:
        assert self.process.stderr is not None
        seen: list[str] = []
        for line in self.process.stderr:
            seen.append(line)
            entry = json.loads(line) if line.startswith("{") else {}
            self.url = entry.get("url", self.url)
            if entry.get("event") == "MQTT is listening":
                self.mqtt[bool(entry["tls"])] = int(entry["address"].rpartition(":")[2])
            if entry.get("event") == "holdfast is running":
                return
        raise AssertionError("".join(seen))

    def wait_for(self, event: str) -> dict[str, object]:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            entry: dict[str, object] = json.loads(line)
            if entry["event"] == event:
                return entry
        raise AssertionError(f"the server ended without saying {event!r}")


@contextmanager
def serving(directory: Path, *arguments: str, **environ: str) -> Iterator[Server]:
    process = subprocess.Popen(
        [HOLDFAST, "serve", "--data-dir", directory / "data", "--log-format", "json", "--store", "memory",
         "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0", *arguments],
        env={**os.environ, "HOLDFAST_AUTH_RELOAD_INTERVAL": "0s", **environ},
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    server = Server(directory, process)
    try:
        server.wait()
        yield server
    finally:
        process.kill()
        process.communicate()


def with_credentials(directory: Path) -> dict[str, str]:
    write_users(
        directory / "users.json",
        user("shop", GOOD, "produce:orders/#", "consume:bills/#"),
        user("ops", GOOD, "admin:#"),
        user("team", GOOD, "admin:team/#", "consume:team/#", "produce:spare"),
        user("press", None, "produce:prints", subject="CN=press,O=Acme"),
    )
    write_keys(directory / "keys.json", SIGNING.public())
    return {
        "HOLDFAST_AUTH_USERS_FILE": str(directory / "users.json"),
        "HOLDFAST_AUTH_KEY_FILE": str(directory / "keys.json"),
    }


def token(**claims: object) -> str:
    return tokens.sign(tokens.Claims(**{"sub": "app", "exp": int(time.time()) + 36_000, **claims}), SIGNING)  # type: ignore[arg-type]


@asynccontextmanager
async def mqtt(server: Server, name: str | None = None, password: str | None = None) -> AsyncIterator[aiomqtt.Client]:
    async with aiomqtt.Client(
        "127.0.0.1",
        server.mqtt[False],
        username=name,
        password=password,
        protocol=aiomqtt.ProtocolVersion.V5,
        timeout=PATIENCE_SECONDS,
    ) as client:
        yield client


def message(client: httpx.Client, queue: str, **how: object) -> int:
    body = {"messages": [{"payload": "x"}]}
    answer = client.post(f"/api/v1/queues/{queue.replace('/', '%2F')}/messages", json=body, **how)  # type: ignore[arg-type]
    return answer.status_code


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Iterator[Server]:
    """With users, keys and TLS on all fronts, and MQTT also without."""
    directory = tmp_path_factory.mktemp("server")
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        directory / "server.pem"
    )
    authority.cert_pem.write_to_path(directory / "ca.pem")
    environ = {
        **with_credentials(directory),
        "HOLDFAST_TLS_CERTIFICATE_FILE": str(directory / "server.pem"),
        "HOLDFAST_TLS_CLIENT_CA_FILE": str(directory / "ca.pem"),
        "HOLDFAST_TLS_CLIENT_CERTIFICATES": "optional",
    }
    with serving(directory, "--mqtts", "127.0.0.1:0", **environ) as server:
        yield server


@pytest.fixture
def context(authority: trustme.CA) -> ssl.SSLContext:
    """A client's, without a certificate."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_over_http_callers_may_do_what_their_scopes_say(server: Server, context: ssl.SSLContext) -> None:
    bearer = {"Authorization": f"Bearer {token(scope='produce:orders/#')}"}
    with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS, verify=context) as http:
        assert message(http, "orders/new") == 401
        assert message(http, "orders/new", auth=("shop", "wrong")) == 401
        assert message(http, "orders/new", headers={"Authorization": "Bearer " + token()[:-3] + "AAA"}) == 401
        assert message(http, "orders/new", auth=("shop", GOOD)) == 200
        assert message(http, "orders/new", headers=bearer) == 200
        assert message(http, "bills/x", auth=("shop", GOOD)) == 403
        assert message(http, "orders/new", auth=("ops", GOOD)) == 403
        assert http.delete("/api/v1/queues/orders%2Fnew", auth=("shop", GOOD)).status_code == 403
        assert http.delete("/api/v1/queues/orders%2Fnew", auth=("ops", GOOD)).status_code == 200
    audit = [json.loads(line) for line in (server.data / "audit.log").read_text().splitlines()]
    assert [
        (line["who"], line["act"], line["result"])
        for line in audit
        if line["act"] == "queue.delete" and line["resource"] == "orders/new"
    ] == [
        ("shop", "queue.delete", "forbidden"),
        ("ops", "queue.delete", "ok"),
    ]


TOO_FAR: list[dict[str, object]] = [
    {"topics": ["#"]},
    {"topics": ["team/#", "orders/+"]},
    {"dlq": {"queue": "bills/dead"}},
    {"dlq.queue": "bills/dead"},
]


def test_a_queue_reaches_no_further_than_who_configures_it(server: Server, context: ssl.SSLContext) -> None:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS, verify=context, auth=("team", GOOD)) as http:
        for config in TOO_FAR:
            refused = http.post("/api/v1/queues", json={"name": "team/jobs", "config": config})
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert http.get("/api/v1/queues/team%2Fjobs").status_code == 404
        made = http.post("/api/v1/queues", json={"name": "team/jobs", "config": {"topics": ["team/+/done"]}})
        assert made.status_code == 201
        where = "/api/v1/queues/team%2Fjobs/config"
        for config in TOO_FAR:
            assert http.put(where, json=config).status_code == 403
        assert http.get("/api/v1/queues/team%2Fjobs").json()["config"]["topics"] == ["team/+/done"]
        for name, status in (("spare", 403), ("team/dead", 200)):  # to one it may produce, the other it administers
            body = {"name": name, "config": {"dlq": {"enabled": False}}}
            http.post("/api/v1/queues", json=body, auth=("ops", GOOD)).raise_for_status()
            assert http.put(where, json={"dlq": {"queue": name}}).status_code == status
        assert http.put(where, json={"topics": ["#"]}, auth=("ops", GOOD)).status_code == 200
        assert http.delete("/api/v1/queues/team%2Fjobs").status_code == 200


async def test_nor_over_mqtt(server: Server) -> None:
    async with mqtt(server, "team", GOOD) as client:
        with pytest.raises(aiomqtt.MqttError, match="Not authorized"):
            await _strictly(client, "$admin/queue/create", b'{"name": "others"}')
        await _strictly(client, "$admin/queue/create", b'{"name": "team/others"}')
        for config in TOO_FAR:
            with pytest.raises(aiomqtt.MqttError, match="Not authorized"):
                await _strictly(client, "$admin/queue/team/others/config", json.dumps(config).encode())
        await _strictly(client, "$admin/queue/team/others/config", b'{"topics": ["team/x"]}')


def test_a_page_of_queues_does_not_name_those_that_the_caller_cannot_see(
    server: Server, context: ssl.SSLContext
) -> None:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS, verify=context, auth=("team", GOOD)) as http:
        for name in ("secret/1", "secret/2", "team/a", "team/b", "zoo"):
            http.post("/api/v1/queues", json={"name": name}, auth=("ops", GOOD)).raise_for_status()
        hidden = http.get("/api/v1/queues", params={"limit": 1, "prefix": "secret"}).json()
        assert hidden == {"queues": [], "cursor": ""}
        seen: list[str] = []
        cursor = ""
        while True:
            page = http.get("/api/v1/queues", params={"limit": 1, "cursor": cursor, "prefix": ""}).json()
            seen += [queue["name"] for queue in page["queues"]]
            if not (cursor := page["cursor"]):
                break
            assert cursor == seen[-1]
        assert {"team/a", "team/b"} <= set(seen)
        assert not {"secret/1", "secret/2", "zoo"} & set(seen)


async def test_over_mqtt_callers_may_do_the_same(server: Server) -> None:
    for name, password in ((None, None), ("shop", "wrong"), ("nobody", GOOD), ("shop", token()[:-3] + "AAA")):
        with pytest.raises(aiomqtt.MqttError, match=r"(?i)not authorized|bad user"):
            async with mqtt(server, name, password):
                pass
    async with mqtt(server, "shop", GOOD) as client:
        with pytest.raises(aiomqtt.MqttError, match="Not authorized"):
            await _strictly(client, "$admin/queue/create")
    async with mqtt(server, "ops", GOOD) as client:
        await client.publish("$admin/queue/create", b'{"name": "made"}', qos=1)
        await client.publish("$admin/queue/made/config", b'{"max_depth": 5}', qos=1)
    audit = [json.loads(line) for line in (server.data / "audit.log").read_text().splitlines()]
    assert [
        (line["who"], line["act"], line["resource"], line["result"])
        for line in audit
        if line["front"] == "mqtt" and line["resource"] in ("", "made")
    ] == [
        ("shop", "queue.create", "", "forbidden"),
        ("ops", "queue.create", "made", "ok"),
        ("ops", "queue.update", "made", "ok"),
    ]
    for name, password in (("shop", GOOD), ("whoever", token(scope="produce:orders/# consume:bills/#"))):
        async with mqtt(server, name, password) as client:
            await client.publish("$queue/orders/new", b"x", qos=1)
            await client.publish("orders/plain", b"x", qos=1)
            with pytest.raises(aiomqtt.MqttError, match="Not authorized"):
                await _strictly(client, "$queue/bills/x")
            options = SubscribeOptions(qos=1)
            granted = await client.subscribe([("$queue/bills/x", options), ("bills/+", options), ("#", options)])
            assert [code.is_failure for code in granted] == [False, False, True]  # type: ignore[union-attr]


async def _strictly(client: aiomqtt.Client, topic: str, payload: bytes = b"x") -> None:
    """Publishes, and raises if the broker refuses it: the library leaves the reason code of PUBACK alone."""
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    inner = client._client
    before = inner.on_publish

    def answered(_client: object, _data: object, _mid: int, code: object, _properties: object) -> None:
        loop.call_soon_threadsafe(answer.set_result, code)

    inner.on_publish = answered
    try:
        inner.publish(topic, payload, qos=1)
        code = await asyncio.wait_for(answer, PATIENCE_SECONDS)
    finally:
        inner.on_publish = before
    if getattr(code, "is_failure", False):
        raise aiomqtt.MqttError(str(code))


def test_a_certificate_is_a_user_over_tls(
    server: Server, context: ssl.SSLContext, authority: trustme.CA, tmp_path: Path
) -> None:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS, verify=context) as http:
        assert message(http, "prints") == 401
    context.load_cert_chain(_certificate(tmp_path / "press.pem", authority))
    with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS, verify=context) as http:
        assert message(http, "prints") == 200
        assert message(http, "prints") == 200, "also the second request on a connection"
        assert message(http, "orders/new") == 403
        assert message(http, "prints", headers={"Origin": "https://evil.example"}) == 403
    asyncio.run(_over_mqtts(server, context))


async def _over_mqtts(server: Server, context: ssl.SSLContext) -> None:
    async with aiomqtt.Client("127.0.0.1", server.mqtt[True], tls_context=context, timeout=PATIENCE_SECONDS) as client:
        await client.publish("$queue/prints", b"x", qos=1)


def _certificate(path: Path, authority: trustme.CA) -> Path:
    """A client's certificate whose subject is exactly the user's; trustme adds parts of its own."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    signer = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    subject = x509.Name.from_rfc4514_string("CN=press,O=Acme")
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(issuer.subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .sign(signer, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


async def test_a_user_that_is_removed_is_put_out(server: Server, context: ssl.SSLContext) -> None:
    before = server.users.read_bytes()
    try:
        async with mqtt(server, "shop", GOOD) as client:
            write_users(server.users, user("ops", GOOD, "admin:#"))
            with pytest.raises(aiomqtt.MqttError):
                async for _ in client.messages:
                    pass
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_SECONDS, verify=context) as http:
            assert (await http.get("/api/v1/queues", auth=("shop", GOOD))).status_code == 401
            assert (await http.get("/api/v1/queues", auth=("ops", GOOD))).status_code == 200
    finally:
        files.replace(server.users, before)


def test_without_credentials_pages_from_elsewhere_are_kept_out(tmp_path: Path) -> None:
    with serving(tmp_path) as server, httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS) as http:
        assert message(http, "orders") == 200
        assert message(http, "orders", headers={"Origin": "http://evil.example"}) == 403
        assert message(http, "orders", headers={"Host": "evil.example"}) == 403
        asyncio.run(_websockets(server))


async def _websockets(server: Server) -> None:
    url = server.url.replace("http", "ws") + "/mqtt"
    async with connect(url, open_timeout=PATIENCE_SECONDS, subprotocols=["mqtt"]):  # type: ignore[list-item]
        pass
    with pytest.raises(InvalidStatus, match="403"):
        async with connect(url, open_timeout=PATIENCE_SECONDS, subprotocols=["mqtt"], origin="http://evil.example"):  # type: ignore[list-item,arg-type]
            pass


@pytest.mark.parametrize("flag", ["--http", "--mqtt"])
def test_without_credentials_a_server_does_not_start_on_another_address(tmp_path: Path, flag: str) -> None:
    arguments = [
        "--data-dir",
        str(tmp_path / "data"),
        "--store",
        "memory",
        "--http",
        "127.0.0.1:0",
        "--mqtt",
        "127.0.0.1:0",
    ]
    command = [str(HOLDFAST), "serve", *arguments, flag, "0.0.0.0:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 2
    assert "[exposure_refused]" in done.stderr


def test_a_server_with_bad_credentials_does_not_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [HOLDFAST, "serve", "--data-dir", tmp_path / "data"],
        env={**os.environ, "HOLDFAST_AUTH_USERS_FILE": str(tmp_path / "none.json")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 2
    assert "auth.users_file" in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_transaction_is_ended_by_those_who_may_fill_it(server: Server, context: ssl.SSLContext) -> None:
    path = "/api/v1/transactions/batch-1"
    body = {"batches": [{"queue": "orders/new", "messages": [{"text": "one"}]}]}
    stranger = {"Authorization": f"Bearer {token(scope='produce:prints consume:#')}"}
    with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS, verify=context) as http:
        assert http.post(f"{path}/stage", json=body, headers=stranger).status_code == 403
        assert http.post(f"{path}/stage", json=body, auth=("shop", GOOD)).status_code == 200
        assert http.post(f"{path}/publish", headers=stranger).status_code == 404  # it has none of that name
        assert http.post(f"{path}/abort", headers=stranger).status_code == 200
        assert http.post(f"{path}/publish", auth=("shop", GOOD)).json()["published"] == 1
