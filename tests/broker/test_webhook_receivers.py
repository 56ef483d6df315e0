"""Whom the server calls for a queue: only who is allowed, at the address that was checked."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import closing

import pytest
import trustme
from structlog.testing import capture_logs

from holdfast.broker.webhook_receivers import PRIVATE, PUBLIC, ReceiverNotAllowed, ReceiverPolicy
from holdfast.broker.webhooks import Webhooks
from holdfast.config import WebhookSettings
from holdfast.config.kinds import Receivers
from tests.broker.test_webhooks import Receiver, alert, settled, trusting_nobody

DEFAULT = WebhookSettings().allow
PUBLIC_ADDRESS = "93.184.215.14"


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.0.1", "::1", "0.0.0.0", "::"),
        *("169.254.169.254", "fe80::1", "fe80::1%1"),
        *("224.0.0.1", "ff02::1", "255.255.255.255", "240.0.0.1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "2002:7f00:1::"),
    ],
)
def test_special_addresses_are_never_called_unless_they_are_named(address: str) -> None:
    with pytest.raises(ReceiverNotAllowed, match=r"webhooks\.allow"):
        ReceiverPolicy(DEFAULT).allowed("a.example", [address])
    named = ReceiverPolicy(("a.example",)).allowed("a.example", [address])
    assert named == [address]
    everything = ReceiverPolicy(("0.0.0.0/0", "::/0"))
    assert everything.allowed("b.example", [address]) == [address]


@pytest.mark.parametrize("address", ["10.0.0.1", "172.16.9.9", "192.168.1.1", "100.64.0.1", "fd00::1"])
def test_private_addresses_are_called_if_the_operator_wants_it(address: str) -> None:
    assert ReceiverPolicy(DEFAULT).allowed("a", [address]) == [address]
    assert ReceiverPolicy((PRIVATE,)).allowed("a", [address]) == [address]
    with pytest.raises(ReceiverNotAllowed):
        ReceiverPolicy((PUBLIC,)).allowed("a", [address])


def test_public_addresses_are_called_if_the_operator_wants_it() -> None:
    for address in (PUBLIC_ADDRESS, "2606:2800:21f:cb07:6820:80da:af6b:8b2c"):
        assert ReceiverPolicy((PUBLIC,)).allowed("a", [address]) == [address]
        for allow in ((PRIVATE,), (), ("10.0.0.0/8",), ("b",)):
            with pytest.raises(ReceiverNotAllowed):
                ReceiverPolicy(allow).allowed("a", [address])


def test_of_several_addresses_those_are_called_that_may_be() -> None:
    assert ReceiverPolicy(DEFAULT).allowed("a", ["127.0.0.1", "10.0.0.1", "::1"]) == ["10.0.0.1"]


@pytest.mark.parametrize(
    ("host", "good"),
    [
        ("alerts.example", True),
        ("Alerts.Example.", True),
        ("x.corp.example", True),
        ("x.y.corp.example", True),
        ("corp.example", False),
        ("notalerts.example", False),
        ("example", False),
    ],
)
def test_hosts_are_allowed_by_name(host: str, good: bool) -> None:
    policy = ReceiverPolicy(("alerts.example", "*.corp.example"))
    if good:
        assert policy.allowed(host, ["127.0.0.1"]) == ["127.0.0.1"]
    else:
        with pytest.raises(ReceiverNotAllowed):
            policy.allowed(host, ["127.0.0.1"])


def test_the_setting_says_what_is_wrong_with_it() -> None:
    kind = Receivers(5)
    assert kind.read("public, 10.1.0.0/16 ,Alerts.Example,*.corp,::1") == (
        *("public", "10.1.0.0/16", "alerts.example", "*.corp", "::1/128"),
    )
    assert kind.read("none") == ()
    assert kind.show(kind.read(["private"])) == "private"
    for wrong in ("a,b,c,d,e,f", "http://x", "10.0.0.1/8", "1.2.3", "", [1], 7, "a b"):
        if wrong:
            with pytest.raises(ValueError, match="must be none, or up to 5 of public"):
                kind.read(wrong)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    server = Receiver()
    await server.start()
    yield server
    await server.stop()


def port_of(receiver: Receiver) -> int:
    return int(receiver.url.rpartition(":")[2].partition("/")[0])


async def call(url: str, answers: list[list[str]], *allow: str) -> tuple[Webhooks, list[str]]:
    """Send one alert; the resolver gives one answer after another."""
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        assert port
        asked.append(host)
        return answers[len(asked) - 1]

    webhooks = Webhooks(WebhookSettings(allow=allow, attempts=1), trusting_nobody, resolve=resolve)
    await webhooks.start()
    webhooks.offer(alert(url))
    await settled(webhooks)
    await webhooks.stop()
    return webhooks, asked


async def test_the_address_that_was_checked_is_the_one_that_is_called(receiver: Receiver) -> None:
    url = f"http://user:pass%20word@alerts.example:{port_of(receiver)}/hook"
    webhooks, asked = await call(url, [["127.0.0.1"]], "127.0.0.0/8")
    assert (webhooks.counters.sent, asked) == (1, ["alerts.example"])
    [(_, headers, _)] = receiver.requests
    assert headers["host"] == f"alerts.example:{port_of(receiver)}"
    assert headers["authorization"] == "Basic dXNlcjpwYXNzIHdvcmQ="


async def test_a_name_that_means_the_server_itself_is_not_called(receiver: Receiver) -> None:
    with capture_logs() as logs:
        webhooks, _ = await call(
            f"http://u:hunter2@evil.example:{port_of(receiver)}/?k=hunter3", [["127.0.0.1"]], *DEFAULT
        )
    assert (webhooks.counters.failed, webhooks.counters.retried, receiver.requests) == (1, 0, [])
    assert logs[0]["problem"] == "evil.example may not be called (webhooks.allow)"
    assert "hunter" not in str(logs)


async def test_the_next_address_is_tried_when_one_does_not_answer(receiver: Receiver) -> None:
    url = f"http://alerts.example:{port_of(receiver)}/hook"
    webhooks, _ = await call(url, [["127.0.0.2", "127.0.0.1"]], "127.0.0.0/8")
    assert webhooks.counters.sent == 1


async def test_a_host_that_does_not_exist_is_not_called() -> None:
    def resolve(host: str, port: int) -> list[str]:
        raise OSError(f"no {host} at {port}")

    webhooks = Webhooks(WebhookSettings(attempts=1), trusting_nobody, resolve=resolve)
    await webhooks.start()
    with capture_logs() as logs:
        webhooks.offer(alert("http://nowhere.example/"))
        await settled(webhooks)
    assert logs[0]["problem"] == "nowhere.example cannot be resolved: no nowhere.example at 80"
    await webhooks.stop()


@pytest.mark.parametrize(("host", "good"), [("alerts.example", True), ("other.example", False)])
async def test_a_receiver_shows_a_certificate_for_its_name(host: str, good: bool) -> None:
    authority = trustme.CA()
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("alerts.example").configure_cert(served)
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(trusted)
    called: list[bytes] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    settings = WebhookSettings(allow=("127.0.0.0/8",), attempts=1)
    webhooks = Webhooks(settings, lambda: trusted, resolve=lambda _host, _port: ["127.0.0.1"])
    with closing(await asyncio.start_server(accept, "127.0.0.1", 0, ssl=served)) as server:
        port = server.sockets[0].getsockname()[1]
        await webhooks.start()
        webhooks.offer(alert(f"https://{host}:{port}/"))
        await settled(webhooks)
        await webhooks.stop()
    assert (webhooks.counters.sent, len(called)) == (int(good), int(good))
