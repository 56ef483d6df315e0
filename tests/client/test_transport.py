"""What the client does when answers are late, lost, refusals, or nonsense."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import trustme

from holdfast.client import Client, Retries, Tls
from holdfast.client.retries import NEVER
from holdfast.errors import (
    AnswerUnreadable,
    HoldfastError,
    InvalidArgument,
    Overloaded,
    QueueFull,
    ServerUnreachable,
    TlsFailed,
    Unauthenticated,
)
from holdfast.testing import Broker

QUICK = Retries(first_seconds=0.001, longest_seconds=0.002)


def problem(error: HoldfastError, **headers: str) -> httpx.Response:
    document = {
        "type": "t",
        "title": "t",
        "status": error.http,
        "code": error.code,
        "detail": str(error),
        "retryable": error.retryable,
        "details": error.details,
    }
    return httpx.Response(error.http, json=document, headers=headers)


def client_of(handler: Callable[[httpx.Request], httpx.Response], retries: Retries = QUICK) -> Client:
    return Client("http://test", retries=retries, transport=httpx.MockTransport(handler))


class LossyTransport(httpx.AsyncBaseTransport):
    """Does what is asked and loses the answer, the first `losses` times."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self.losses = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        if self.losses:
            self.losses -= 1
            raise httpx.ReadError("connection reset", request=request)
        return response


async def test_a_lost_answer_does_not_double_a_message() -> None:
    async with Broker() as broker:
        lossy = LossyTransport(broker.transport())
        async with Client("http://localhost", retries=QUICK, transport=lossy) as client:
            lossy.losses = 3
            sent = await client.send("jobs", "once")
            assert sent.duplicate
            lossy.losses = 1
            await client.send_many("jobs", ["a", "b"])
            assert (await client.queue("jobs")).depth == 3
            (message,) = await client.receive("jobs")
            lossy.losses = 1
            await message.ack()
            assert (await client.queue("jobs")).depth == 2


async def test_what_may_not_be_done_twice_is_not_repeated_when_its_answer_is_lost() -> None:
    async with Broker() as broker:
        lossy = LossyTransport(broker.transport())
        async with Client("http://localhost", retries=QUICK, transport=lossy) as client:
            lossy.losses = 1
            with pytest.raises(ServerUnreachable, match="connection reset"):
                await client.create_queue("jobs")
            assert (await client.queue("jobs")).name == "jobs"


async def test_but_it_is_when_the_server_says_that_nothing_was_done() -> None:
    asked = 0

    def handler(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        return problem(Overloaded(waiting=1)) if asked < 3 else httpx.Response(200, json={"messages": 7})

    async with client_of(handler) as client:
        assert await client.delete_queue("jobs") == 7
    assert asked == 3


async def test_it_gives_up_after_its_attempts_with_the_servers_own_error() -> None:
    asked = 0

    def handler(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        return problem(Overloaded(waiting=9))

    async with client_of(handler, Retries(attempts=6, first_seconds=0.001, longest_seconds=0.002)) as client:
        with pytest.raises(Overloaded, match="9 requests waiting") as caught:
            await client.send("jobs", "x")
    assert (asked, caught.value.details) == (6, {"waiting": 9})


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the client sleeps, on a clock that only its sleeps move."""
    slept: list[float] = []

    async def sleep(delay: float) -> None:
        slept.append(delay)

    monkeypatch.setattr("holdfast.client.transport.asyncio.sleep", sleep)
    monkeypatch.setattr("holdfast.client.transport.time.monotonic", lambda: sum(slept))
    return slept


async def test_a_server_that_is_away_is_tried_for_as_long_as_documented(sleeps: list[float]) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    async with client_of(handler, Retries()) as client:
        with pytest.raises(ServerUnreachable):
            await client.queue("jobs")
    assert 25 < sum(sleeps) <= 30
    assert max(sleeps) <= 5


async def test_a_full_queue_is_reported_immediately_unless_the_caller_waits_for_room(sleeps: list[float]) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return problem(QueueFull(queue="jobs", depth=9), **{"retry-after": "1"})

    async with client_of(handler, Retries()) as client:
        with pytest.raises(QueueFull, match="holds 9 messages"):
            await client.send("jobs", "x")
    assert sleeps == []
    async with client_of(handler, Retries(full_seconds=10)) as client:
        with pytest.raises(QueueFull):
            await client.send("jobs", "x")
    assert 5 < sum(sleeps) <= 10


async def test_it_waits_as_long_as_the_server_says(sleeps: list[float]) -> None:
    answers = [problem(Overloaded(waiting=1), **{"retry-after": "7"}), httpx.Response(200, json={"messages": 0})]
    async with client_of(lambda _: answers.pop(0)) as client:
        await client.delete_queue("jobs")
    assert sleeps == [7.0]


async def test_it_does_not_wait_longer_than_its_budget() -> None:
    retries = Retries(budget_seconds=5)
    async with client_of(lambda _: problem(Overloaded(waiting=1), **{"retry-after": "3600"}), retries) as client:
        with pytest.raises(Overloaded):
            await client.queue("jobs")


def test_pauses_double_up_to_the_longest_and_half_of_each_is_chance() -> None:
    retries = Retries(first_seconds=1, longest_seconds=5)
    assert [retries.pause(attempt, 0, 1.0) for attempt in range(1, 6)] == [1, 2, 4, 5, 5]
    assert [retries.pause(attempt, 0, 0.0) for attempt in range(1, 6)] == [0.5, 1, 2, 2.5, 2.5]
    assert retries.pause(10_000, 0, 1.0) == 5


async def test_a_proxys_error_page_is_called_what_it_is() -> None:
    async with client_of(lambda _: httpx.Response(502, text="<html>Bad Gateway</html>")) as client:
        with pytest.raises(AnswerUnreadable, match=r"answered 502 .*Bad Gateway"):
            await client.queue("jobs")
    async with client_of(lambda _: httpx.Response(200, text="<html>Welcome</html>")) as client:
        with pytest.raises(AnswerUnreadable, match="answered 200"):
            await client.queue("jobs")


async def test_an_error_of_a_newer_server_keeps_its_words_and_its_code() -> None:
    document = {"type": "t", "title": "t", "status": 418, "code": "is_a_teapot", "detail": "Short and stout."}
    async with client_of(lambda _: httpx.Response(418, json=document)) as client:
        with pytest.raises(HoldfastError, match="Short and stout") as caught:
            await client.queue("jobs")
    assert caught.value.details["code"] == "is_a_teapot"


async def test_nobody_listening_is_one_clear_error() -> None:
    async with Client("http://127.0.0.1:1", retries=NEVER) as client:
        with pytest.raises(
            ServerUnreachable, match=r"http://127\.0\.0\.1:1 did not answer: .*Check the address"
        ) as caught:
            await client.delete_queue("jobs")
    assert str(caught.value).endswith("Nothing was sent.")


async def test_what_was_asked_may_have_been_done_if_any_attempt_was_sent(sleeps: list[float]) -> None:
    failures: list[type[httpx.TransportError]] = [httpx.ReadError, httpx.ConnectError]

    def handler(request: httpx.Request) -> httpx.Response:
        raise (failures.pop(0) if len(failures) > 1 else failures[0])("gone", request=request)

    async with client_of(handler, Retries()) as client:
        with pytest.raises(ServerUnreachable, match="may or may not have been done"):
            await client.send("jobs", "x")


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://x", "http://", "http://[::1", "", " "])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    if url:
        with pytest.raises(InvalidArgument, match="url"):
            Client(url)
    else:
        assert Client(url).url == "http://127.0.0.1:8080"


async def test_credentials_are_sent_and_a_token_may_be_made_anew_for_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str | None] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return problem(Unauthenticated(problem="no"))

    tokens = iter(["one", "two"])
    monkeypatch.setenv("HOLDFAST_TOKEN", "three")
    for options in (
        {"token": lambda: next(tokens)},
        {},
        {"user": "u", "password": "p"},
        {"url": "http://u:p@test"},
    ):
        async with Client(transport=httpx.MockTransport(handler), **{"url": "http://test"} | options) as client:
            for _ in range(2 if "token" in options else 1):
                with pytest.raises(Unauthenticated):
                    await client.queue("jobs")
    assert seen == ["Bearer one", "Bearer two", "Bearer three", "Basic dTpw", "Basic dTpw"]


async def test_the_environment_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "http://elsewhere:1")
    assert Client().url == "http://elsewhere:1"
    assert Client("http://here:2/prefix/").url == "http://here:2/prefix"


async def test_tls_with_a_private_authority_and_a_client_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    ca, mine = tmp_path / "ca.pem", tmp_path / "mine.pem"
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("me@example.com").private_key_and_cert_chain_pem.write_to_path(mine)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ca))
    context.verify_mode = ssl.CERT_REQUIRED
    authority.issue_cert("localhost").configure_cert(context)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"GET /api/v1/queues/jobs HTTP/1.1")
        body = json.dumps({"name": "jobs", "namespace": "default", "created_at": "2026-01-01T00:00:00Z"}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        async with Client(url, tls=Tls(ca_file=ca, certificate_file=mine)) as client:
            assert (await client.queue("jobs")).name == "jobs"
        async with Client(url, retries=NEVER) as stranger:
            with pytest.raises(TlsFailed, match=r"certificate verify failed.*--ca-file.*Nothing was sent"):
                await stranger.queue("jobs")
        async with Client(url.replace("localhost", "127.0.0.1"), tls=Tls(ca_file=ca, certificate_file=mine)) as client:
            with pytest.raises(TlsFailed, match=r"127\.0\.0\.1.*name that the certificate has"):
                await client.queue("jobs")


async def test_a_refused_handshake_is_not_repeated_but_a_broken_one_is(sleeps: list[float]) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no", request=request) from cause

    cause: ssl.SSLError = ssl.SSLError(1, "[SSL: TLSV1_ALERT_PROTOCOL_VERSION] tlsv1 alert protocol version")
    cause.reason = "TLSV1_ALERT_PROTOCOL_VERSION"
    async with client_of(handler, Retries()) as client:
        with pytest.raises(TlsFailed, match=r"alert protocol version.*asks for a certificate"):
            await client.queue("jobs")
        assert sleeps == []
        cause = ssl.SSLEOFError(8, "EOF occurred in violation of protocol")
        with pytest.raises(ServerUnreachable):
            await client.queue("jobs")
    assert sum(sleeps) > 25


async def test_https_to_a_server_without_tls_says_so() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, Client(f"https://localhost:{server.sockets[0].getsockname()[1]}") as client:
        with pytest.raises(TlsFailed, match="http://"):
            await client.queue("jobs")


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    for file, problem in ((tmp_path / "missing.pem", "No such file"), (bad, "bad.pem cannot be used: ")):
        for tls in (Tls(ca_file=file), Tls(certificate_file=file)):
            with pytest.raises(InvalidArgument, match=problem):
                Client("https://localhost", tls=tls)


async def test_a_server_that_is_just_starting_is_waited_for_whatever_is_asked() -> None:
    asked = 0

    def handler(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(200, json={"messages": 7})

    async with client_of(handler) as client:
        assert await client.delete_queue("jobs") == 7


async def test_a_token_that_cannot_be_made_is_raised_where_somebody_waits() -> None:
    def broken() -> str:
        raise LookupError("no token today")

    async with Client(
        "http://test", token=broken, transport=httpx.MockTransport(lambda _: httpx.Response(500))
    ) as client:
        with pytest.raises(LookupError, match="no token today"):
            await client.send("jobs", "x")
        with pytest.raises(LookupError, match="no token today"):
            async for _ in client.consume("jobs"):
                pass


async def test_closing_does_not_wait_long_for_a_server_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    async with Broker() as broker, broker.client() as client:
        await client.send("jobs", "x")
        lossy = LossyTransport(broker.transport())
        async with Client("http://localhost", transport=lossy) as other:
            await other.receive("jobs")
            lossy.losses = 1_000
        assert lossy.losses == 998  # one more attempt than the first
    assert "could not be released" in caplog.text
