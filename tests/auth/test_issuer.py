"""Tokens of an identity provider whose keys the server fetches itself: a real HTTP server plays the provider."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import structlog
import trustme

from holdfast.auth import issuer, keys
from holdfast.auth.exposure import check_browser, has_credentials
from holdfast.auth.gate import Gate
from holdfast.auth.issuer import FETCH_EVERY, IssuerKeys
from holdfast.auth.keyring import Key
from holdfast.broker.node import wall_clock
from holdfast.config import Config
from holdfast.config.kinds import KeyAddress
from holdfast.config.settings import HttpSettings, JournalSettings, NodeSettings
from holdfast.errors import InvalidConfig, Unauthenticated
from holdfast.testing import Broker
from holdfast.units import DAY, HOUR, MINUTE, SECOND
from tests.auth.conftest import Clock
from tests.auth.rig import gate, settings, token, write_keys

FIRST, SECOND_KEY, OURS, SECRET = (keys.generate(kind) for kind in ("RS256", "ES256", "EdDSA", "HS256"))
DISCOVERY = "/.well-known/openid-configuration"


class Provider:
    """Serves its pages on loopback; a page is a status, headers and a body."""

    def __init__(self, server: asyncio.Server, scheme: str) -> None:
        self.server = server
        self.url = f"{scheme}://localhost:{server.sockets[0].getsockname()[1]}"
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[str] = []
        self.hung: asyncio.Event | None = None
        """Answers come when it is set."""
        self.waited = asyncio.Event()
        """Somebody waits for one."""
        self.publish(FIRST.public())
        self.configure()

    def configure(self, **changes: str) -> None:
        document = {"issuer": self.url, "jwks_uri": f"{self.url}/keys?tenant=1", **changes}
        self.pages[DISCOVERY] = (200, {}, json.dumps(document).encode())

    def publish(self, *jwks: dict[str, object], **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.pages["/keys?tenant=1"] = (200, named, keys.as_document(jwks))

    def fetches(self) -> int:
        return self.asked.count("/keys?tenant=1")

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split()[1].decode()
        self.asked.append(path)
        if self.hung is not None:
            self.waited.set()
            await self.hung.wait()
        status, headers, body = self.pages.get(path, (404, {}, b""))
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        writer.write(f"HTTP/1.1 {status} X\r\nConnection: close\r\n{''.join(lines)}\r\n".encode() + body)
        writer.close()


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Provider]:
    found: list[Provider] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await found[0].answer(reader, writer)

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    found.append(Provider(server, "https" if tls else "http"))
    async with server:
        yield found[0]


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with serving() as found:
        yield found


@asynccontextmanager
async def opened(clock: Clock, provider: Provider, **changes: object) -> AsyncIterator[Gate]:
    door = gate(clock, **{"oidc_issuer": provider.url, **changes})
    await door.start()
    try:
        yield door
    finally:
        await door.close()


def issued(clock: Clock, provider: Provider, key: Key = FIRST, **changes: object) -> str:
    return token(clock, key, **{"sub": "alice", "iss": provider.url, "exp": clock() // SECOND + 7 * 86_400, **changes})


async def refusal(door: Gate, text: str) -> str:
    with pytest.raises(Unauthenticated) as caught:
        await door.token(text, "10.0.0.1")
    return str(caught.value.details["problem"])


async def test_the_keys_are_found_by_the_name_of_the_issuer(clock: Clock, provider: Provider) -> None:
    async with opened(clock, provider) as door:
        who = await door.token(issued(clock, provider), "10.0.0.1")
        assert (who.identity, who.namespace) == ("oidc:alice", "acme")
        assert door.valid(who)
        assert provider.asked == [DISCOVERY, "/keys?tenant=1"]
        assert (await door.password("any", issued(clock, provider), "10.0.0.1")).identity == "oidc:alice"
        check_browser(settings(), who, "here.example", "https://elsewhere.example")  # as with every token


async def test_keys_can_be_fetched_from_their_address_alone(clock: Clock, provider: Provider) -> None:
    async with opened(clock, provider, oidc_issuer="", jwks_url=f"{provider.url}/keys?tenant=1") as door:
        assert (await door.token(issued(clock, provider), "")).identity == "oidc:alice"
        assert provider.asked == ["/keys?tenant=1"]
    async with opened(clock, provider, jwks_url=f"{provider.url}/keys?tenant=1") as door:
        assert "another issuer" in await refusal(door, issued(clock, provider, iss="https://elsewhere.example"))
        assert provider.asked == ["/keys?tenant=1"] * 2


async def test_its_tokens_name_the_issuer_and_the_audience_and_ours_need_not(
    clock: Clock, provider: Provider, tmp_path: Path
) -> None:
    file = write_keys(tmp_path / "keys.json", OURS.public())
    async with opened(clock, provider, key_file=file, token_audience="holdfast") as door:
        assert "another issuer" in await refusal(door, issued(clock, provider, iss=None, aud="holdfast"))
        assert "another issuer" in await refusal(door, issued(clock, provider, iss=f"{provider.url}/", aud="holdfast"))
        assert "somebody else" in await refusal(door, issued(clock, provider, aud="shop"))
        theirs = await door.token(issued(clock, provider, aud="holdfast"), "")
        ours = await door.token(token(clock, OURS, sub="alice", aud="holdfast"), "")
    assert (theirs.identity, ours.identity) == ("oidc:alice", "token:alice")


async def test_a_name_that_the_provider_gives_a_key_hides_none_of_ours(
    clock: Clock, provider: Provider, tmp_path: Path
) -> None:
    pem = tmp_path / "key.pem"
    pem.write_bytes(OURS.jose.as_pem(private=False))  # type: ignore[union-attr]
    provider.publish({**keys.generate("EdDSA").public(), "kid": OURS.kid})
    async with opened(clock, provider, key_file=pem) as door:
        assert (await door.token(token(clock, OURS), "")).identity == "token:shop"


async def test_a_key_taken_out_of_the_file_is_not_kept_by_the_provider(
    clock: Clock, provider: Provider, tmp_path: Path
) -> None:
    file = write_keys(tmp_path / "keys.json", FIRST.public())
    async with opened(clock, provider, key_file=file) as door:
        who = await door.token(issued(clock, provider), "")
        assert who.identity == "token:alice"
        write_keys(file, OURS.public())
        assert not door.valid(who)
        assert (await door.token(issued(clock, provider), "")).identity == "oidc:alice"


async def test_a_new_key_is_fetched_when_a_token_names_it_and_a_gone_one_closes_the_door(
    clock: Clock, provider: Provider
) -> None:
    async with opened(clock, provider) as door:
        before = await door.token(issued(clock, provider), "")
        provider.publish(SECOND_KEY.public())
        clock.advance(FETCH_EVERY)
        after = await door.token(issued(clock, provider, SECOND_KEY), "")
        assert after.identity == before.identity
        assert not door.valid(before)
        assert door.valid(after)
        assert door.recall(issued(clock, provider)) is None
        assert "no key here fits" in await refusal(door, issued(clock, provider))


async def test_made_up_names_of_keys_do_not_make_it_fetch_more_often(clock: Clock, provider: Provider) -> None:
    async with opened(clock, provider) as door:
        clock.advance(FETCH_EVERY)
        texts = [issued(clock, provider, keys.generate("EdDSA")) for _ in range(20)]
        provider.hung = asyncio.Event()
        waiting = [asyncio.create_task(refusal(door, text)) for text in texts]
        await provider.waited.wait()
        assert (await door.token(issued(clock, provider), "")).identity == "oidc:alice"  # others need not wait
        provider.hung.set()
        assert all("no key here fits" in problem for problem in await asyncio.gather(*waiting))
        clock.advance(FETCH_EVERY - 1)
        await refusal(door, texts[0])
        assert provider.fetches() == 2
        clock.advance(1)
        await refusal(door, texts[0])
        assert provider.fetches() == 3


async def test_a_caller_that_leaves_does_not_end_the_fetch_of_others(clock: Clock, provider: Provider) -> None:
    async with opened(clock, provider) as door:
        provider.publish(SECOND_KEY.public())
        clock.advance(FETCH_EVERY)
        provider.hung = asyncio.Event()
        leaving, staying = (
            asyncio.create_task(door.token(issued(clock, provider, SECOND_KEY), peer)) for peer in ("a", "b")
        )
        await provider.waited.wait()
        leaving.cancel()
        provider.hung.set()
        assert (await staying).identity == "oidc:alice"


async def test_a_provider_that_is_away_is_missed_only_after_a_long_time(clock: Clock, provider: Provider) -> None:
    async with opened(clock, provider, oidc_stale=DAY) as door:
        text = issued(clock, provider)
        who = await door.token(text, "")
        provider.pages.clear()
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                clock.advance(FETCH_EVERY)
                await refusal(door, issued(clock, provider, SECOND_KEY))
            assert [entry["event"] for entry in logs if "could not be fetched" in entry["event"]] == [
                "keys of the issuer could not be fetched, trying again"
            ]
            assert "answered 404; keys fetched before still hold" in door.health()[0].problem
            clock.advance(DAY - 3 * FETCH_EVERY - 1)
            assert door.recall(text) is who
            clock.advance(1)
            assert door.recall(text) is None
            assert not door.valid(who)
            assert "could not be reached for too long" in await refusal(door, text)
            assert "its tokens are refused" in door.health()[0].problem
            assert "too old" in str(logs)
        provider.configure()
        provider.publish(FIRST.public())
        clock.advance(FETCH_EVERY)
        assert (await door.token(text, "")).identity == "oidc:alice"
        assert door.health()[0].problem == ""


async def test_a_server_starts_without_its_provider_and_finds_it_later(
    clock: Clock, provider: Provider, tmp_path: Path
) -> None:
    provider.pages.clear()
    file = write_keys(tmp_path / "keys.json", OURS.public())
    with structlog.testing.capture_logs() as logs:
        async with opened(clock, provider, key_file=file) as door:
            assert [entry["log_level"] for entry in logs] == ["warning"]
            assert "could not be fetched yet" in await refusal(door, issued(clock, provider))
            assert (await door.token(token(clock, OURS), "")).identity == "token:shop"
            assert door.health()[0].problem
            provider.configure()
            provider.publish(FIRST.public())
            clock.advance(FETCH_EVERY)
            assert (await door.token(issued(clock, provider), "")).identity == "oidc:alice"


async def test_only_public_keys_are_taken(clock: Clock, provider: Provider) -> None:
    provider.publish(SECRET.private(), SECOND_KEY.private(), FIRST.public())
    async with opened(clock, provider) as door:
        assert (await door.token(issued(clock, provider), "")).identity == "oidc:alice"
        assert "no key here fits" in await refusal(door, issued(clock, provider, SECRET))
        assert "no key here fits" in await refusal(door, issued(clock, provider, SECOND_KEY))
        provider.publish()
        clock.advance(FETCH_EVERY)
        await refusal(door, issued(clock, provider, SECOND_KEY))
        assert "publishes none" in await refusal(door, issued(clock, provider))
        assert "publishes no keys" in door.health()[0].problem


def _wrong_issuer(provider: Provider) -> None:
    provider.configure(issuer=f"{provider.url}/")


def _plain_keys(provider: Provider) -> None:
    provider.configure(jwks_uri="http://keys.example/keys")


def _file_keys(provider: Provider) -> None:
    provider.configure(jwks_uri="file:///etc/passwd")


def _no_configuration(provider: Provider) -> None:
    provider.pages[DISCOVERY] = (200, {}, b"[" * 100_000)


def _oversize(provider: Provider) -> None:
    status, headers, body = provider.pages["/keys?tenant=1"]
    provider.pages["/keys?tenant=1"] = (status, headers, body + b" " * issuer.ANSWER_BYTES_MAX)


def _redirect(provider: Provider) -> None:
    provider.pages["/moved"] = provider.pages["/keys?tenant=1"]
    provider.pages["/keys?tenant=1"] = (302, {"Location": f"{provider.url}/moved"}, b"")


def _redirect_first(provider: Provider) -> None:
    provider.pages["/moved"] = provider.pages[DISCOVERY]
    provider.pages[DISCOVERY] = (307, {"Location": "/moved"}, b"")


def _compressed(provider: Provider) -> None:
    provider.publish(FIRST.public(), content_encoding="gzip")


def _no_keys(provider: Provider) -> None:
    provider.pages["/keys?tenant=1"] = (200, {}, b"<html>")


def _no_http(provider: Provider) -> None:
    provider.pages[DISCOVERY] = (200, {"a b": "c"}, b"")


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (_wrong_issuer, "for another issuer"),
        (_plain_keys, "no https URL"),
        (_file_keys, "no https URL"),
        (_no_configuration, "no configuration"),
        (_oversize, "larger than 1048576 bytes"),
        (_redirect, "answered 302; redirects are not followed"),
        (_redirect_first, "answered 307; redirects are not followed"),
        (_compressed, "compressed"),
        (_no_keys, "is not JSON"),
        (_no_http, "illegal header"),
    ],
)
async def test_what_is_not_as_it_should_be_changes_nothing(
    clock: Clock, provider: Provider, spoil: Callable[[Provider], None], problem: str
) -> None:
    async with opened(clock, provider) as door:
        spoil(provider)
        clock.advance(FETCH_EVERY)
        assert "no key here fits" in await refusal(door, issued(clock, provider, SECOND_KEY))
        assert problem in door.health()[0].problem
        assert (await door.token(issued(clock, provider), "")).identity == "oidc:alice"
    assert "/moved" not in provider.asked


async def test_an_answer_that_does_not_come_is_not_waited_for(
    clock: Clock, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer, "FETCH_SECONDS", 0.05)
    provider.hung = asyncio.Event()
    async with opened(clock, provider) as door:
        assert "could not be fetched yet" in await refusal(door, issued(clock, provider))
        assert door.health()[0].problem == "no answer within 0.05 s"
    provider.hung.set()


async def test_the_providers_certificate_is_checked(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    async with serving(context) as provider:
        async with opened(clock, provider) as door:
            assert "CERTIFICATE_VERIFY_FAILED" in door.health()[0].problem
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        async with opened(clock, provider) as door:
            assert (await door.token(issued(clock, provider), "")).identity == "oidc:alice"
            provider.configure(jwks_uri=f"{provider.url.replace('https', 'http')}/keys?tenant=1")
            clock.advance(FETCH_EVERY)
            await refusal(door, issued(clock, provider, SECOND_KEY))
            assert "no https URL" in door.health()[0].problem


class Sleeps:
    """Sleeps until told to wake up, and notes how long it was to be."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[float] = asyncio.Queue()
        self.wake = asyncio.Event()

    def sleep(self, seconds: float) -> Awaitable[None]:
        self.begun.put_nowait(seconds)
        self.wake.clear()
        return self._sleep()

    async def _sleep(self) -> None:
        await self.wake.wait()


async def test_keys_are_fetched_again_after_a_time_that_the_provider_may_shorten(
    clock: Clock, provider: Provider
) -> None:
    sleeps = Sleeps()
    held = IssuerKeys(settings(oidc_issuer=provider.url, oidc_refresh=HOUR), clock, sleeps.sleep)
    await held.start()
    assert held.refresh(clock())
    assert await sleeps.begun.get() == 3600
    for cache_control, pause in [
        ("public, max-age=600", 600),
        ("max-age=5", 60),
        ("max-age=86400", 3600),
        ("s-maxage=60", 3600),
        ("no-store", 3600),
    ]:
        provider.publish(FIRST.public(), cache_control=cache_control)
        sleeps.wake.set()
        assert await sleeps.begun.get() == pause, cache_control
        assert not held.refresh(clock())
    provider.publish(SECOND_KEY.public())
    sleeps.wake.set()
    await sleeps.begun.get()
    assert held.refresh(clock())
    assert [key.kid for key in held.value.keys] == [SECOND_KEY.kid]
    provider.pages.clear()
    sleeps.wake.set()
    assert await sleeps.begun.get() == FETCH_EVERY / SECOND
    await held.close()


def test_addresses_of_keys_are_those_that_nobody_can_forge(clock: Clock) -> None:
    for good in ("https://id.example/realms/a", "http://127.0.0.1:80/", "http://localhost", "http://[::1]:8080/x"):
        assert KeyAddress(query=False).read(good) == good
    assert KeyAddress(query=True).read("https://id.example/keys?p=1") == "https://id.example/keys?p=1"
    assert KeyAddress(query=True).read("none") == ""
    for bad in (
        "http://id.example", "ftp://id.example", "id.example", "https://", "https://me:pw@id.example", 7,
        "https://id.example/#a", "https://id.example/?a=b", "http://localhost.example", "https://id.example/ x",
    ):  # fmt: skip
        with pytest.raises(ValueError, match="must be an https URL"):
            KeyAddress(query=False).read(bad)
    with pytest.raises(InvalidConfig, match=r"shorter than auth\.oidc_refresh"):
        gate(clock, oidc_issuer="https://id.example", oidc_stale=MINUTE)
    assert has_credentials(settings(oidc_issuer="https://id.example"))
    assert has_credentials(settings(jwks_url="https://id.example/keys"))


async def test_a_server_takes_the_providers_tokens_and_shows_its_health(provider: Provider, tmp_path: Path) -> None:
    config = Config(
        node=NodeSettings(data_dir=tmp_path),
        journal=JournalSettings(enabled=False),
        http=HttpSettings(listen="127.0.0.1:0"),
        auth=settings(oidc_issuer=provider.url),
    )
    now = Clock(wall_clock())
    async with Broker(http=True, config=config) as broker, httpx.AsyncClient(base_url=broker.url) as client:
        headers = {"authorization": f"Bearer {issued(now, provider, scope='node')}"}
        assert (await client.get("/api/v1/health")).status_code == 401
        answer = await client.get("/api/v1/health", headers=headers)
        part = next(part for part in answer.json()["parts"] if part["name"] == "issuer")
        assert (part["ok"], part["facts"]["keys"]) == (True, 1)
