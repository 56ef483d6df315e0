"""Who sees what: signing in and out, forms of other sites, sessions, scopes, headers."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from holdfast.auth.principal import Principal
from holdfast.config.console_settings import ConsoleSettings
from holdfast.console import Console
from holdfast.console.sessions import PER_PERSON_MAX, Sessions
from holdfast.http_api import HttpFront
from holdfast.server import _fronts
from holdfast.testing.in_process import in_process
from holdfast.units import HOUR, MINUTE
from tests.console.rig import PASSWORD, Served, config_with, csrf
from tests.http_api.tenants import token

ALICE = Principal(name="alice", namespace="default", method="password")
BOB = Principal(name="bob", namespace="default", method="password")


async def test_nothing_is_shown_without_a_credential(guarded: Served) -> None:
    async with guarded.http() as http:
        for endpoint in guarded.console.routes.endpoints:
            if endpoint.path in ("/login", "/static/{file}"):
                continue
            path = endpoint.path.replace("{", "").replace("}", "")
            response = await http.request(endpoint.method, path, headers={"accept": "text/html"})
            assert (response.status_code, response.content) == (303, b""), path
            assert response.headers["location"].startswith("/login")


async def test_signing_in_goes_where_one_wanted_to(guarded: Served) -> None:
    async with guarded.http() as http:
        asked = await http.get("/help?x=1")
        assert asked.headers["location"] == "/login?next=%2Fhelp%3Fx%3D1"
        form = {"user": "ops", "password": PASSWORD, "next": "/help?x=1"}
        signed_in = await http.post("/login", data=form)
        assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/help?x=1")
        cookie = signed_in.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert (await http.get("/help")).status_code == 200


@pytest.mark.parametrize(
    "elsewhere", ["//evil.example", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"]
)
async def test_signing_in_leads_to_no_other_site(guarded: Served, elsewhere: str) -> None:
    async with guarded.http() as http:
        form = {"user": "ops", "password": PASSWORD, "next": elsewhere}
        assert (await http.post("/login", data=form)).headers["location"] == "/"


async def test_a_wrong_password_is_refused_and_says_no_more(guarded: Served) -> None:
    async with guarded.http() as http:
        for user in ("ops", "nobody<script>"):
            response = await http.post("/login", data={"user": user, "password": "wrong"})
            assert response.status_code == 401
            assert "the user or the password is wrong" in response.text
            assert "<script>alert" not in response.text
            assert "set-cookie" not in response.headers


async def test_a_token_signs_in_too_and_ends_the_session_with_it(guarded: Served) -> None:
    async with guarded.http() as http:
        response = await http.post("/login", data={"token": token("admin:shop/#", subject="robot")})
        assert response.status_code == 303
        page = await http.get("/help")
        assert "robot" in page.text
        assert "admin:shop/#" in page.text


async def test_signing_out_ends_the_session(guarded: Served) -> None:
    async with guarded.http("ops") as http:
        page = await http.get("/help")
        cookies = dict(http.cookies)
        assert (await http.post("/logout", data={"csrf": csrf(page)})).headers["location"] == "/login"
    async with guarded.http() as http:
        http.cookies.update(cookies)
        assert (await http.get("/help")).status_code == 303


async def test_a_form_of_another_site_changes_nothing(guarded: Served) -> None:
    async with guarded.http("ops") as http:
        page = await http.get("/help")
        wrong = await http.post("/logout", data={"csrf": "guessed"})
        assert wrong.status_code == 403
        assert "out of date" in wrong.text
        foreign = {"origin": "https://evil.example", "host": "127.0.0.1"}
        assert (await http.post("/logout", data={"csrf": csrf(page)}, headers=foreign)).status_code == 403
        assert (await http.post("/login", data={"user": "ops"}, headers=foreign)).status_code == 403
        assert (await http.get("/help")).status_code == 200


async def test_an_open_server_keeps_out_pages_that_only_point_to_it(shop: Served) -> None:
    async with shop.http() as http:
        rebound = await http.get("/", headers={"host": "evil.example"})
        assert rebound.status_code == 403
        assert "shop/orders" not in rebound.text


async def test_a_link_of_another_site_asks_again_before_it_asks_to_sign_in(guarded: Served) -> None:
    async with guarded.http() as http:
        response = await http.get("/help?a=1&b=%22", headers={"sec-fetch-site": "cross-site"})
        assert response.status_code == 200
        assert 'content="0; url=/help?a=1&amp;b=%22"' in response.text


async def test_every_page_says_what_a_browser_may_load(shop: Served) -> None:
    async with shop.http() as http:
        for path in ("/", "/help", "/nothing-here"):
            headers = (await http.get(path, headers={"accept": "text/html"})).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy
            assert headers["x-frame-options"] == "DENY"
            assert headers["cache-control"] == "no-store"


async def test_no_page_has_a_script_or_a_style_of_its_own(shop: Served) -> None:
    async with shop.http() as http:
        for path in ("/", "/help", "/health"):
            text = (await http.get(path)).text
            assert "<style" not in text
            assert " style=" not in text
            assert " onclick=" not in text
            assert text.count("<script") == text.count('<script src="/static/')


async def test_files_are_kept_by_browsers_until_they_change(shop: Served) -> None:
    async with shop.http() as http:
        first = await http.get("/")
        urls = [part.split('"')[0] for part in first.text.split('src="')[1:] + first.text.split('href="')[1:]]
        size = len(first.content)
        for url in {url for url in urls if url.startswith("/static/")}:
            response = await http.get(url)
            assert response.status_code == 200
            assert "immutable" in response.headers["cache-control"]
            size += len(response.content)
        assert size < 150_000 * 2  # as they are unpacked
        packed = 0
        for url in {url for url in urls if url.startswith("/static/")}:
            async with http.stream("GET", url, headers={"accept-encoding": "gzip"}) as raw:
                assert raw.headers["content-encoding"] == "gzip"
                packed += len(b"".join([part async for part in raw.aiter_raw()]))
        assert packed + len(first.content) < 150_000
        assert (await http.get("/static/secrets.txt")).status_code == 404


async def test_an_address_that_leads_nowhere_is_a_page_for_people_and_a_problem_for_programs(shop: Served) -> None:
    async with shop.http() as http:
        page = await http.get("/nothing-here", headers={"accept": "text/html"})
        assert page.status_code == 404
        assert "Page not found" in page.text
        problem = await http.get("/nothing-here")
        assert problem.headers["content-type"] == "application/problem+json"


async def test_the_api_description_has_no_pages(shop: Served) -> None:
    async with shop.http() as http:
        paths = (await http.get("/openapi.json")).json()["paths"]
        assert "/login" not in paths
        assert "get" not in paths.get("/", {})


async def test_a_session_that_is_read_only_changes_nothing(guarded: Served) -> None:
    async with guarded.http("ops", read_only=True) as http:
        page = await http.get("/help")
        assert "read only" in page.text
        signed_out = await http.post("/logout", data={"csrf": csrf(page)})
        assert signed_out.status_code == 303


async def test_there_are_no_pages_where_they_are_switched_off(shop: Served, tmp_path: Path) -> None:
    config = config_with(tmp_path, enabled=False)
    fronts = _fronts(config, shop.node, shop.console.gate)
    assert not any(isinstance(front, Console) for front in fronts)
    front = next(front for front in fronts if isinstance(front, HttpFront))
    async with httpx.AsyncClient(base_url="http://localhost", transport=in_process(front)) as http:
        assert (await http.get("/", headers={"accept": "text/html"})).status_code == 405  # SQS has its POST


# --- sessions, without a server ---------------------------------------------------------------------------------------


class Sitting:
    """Sessions with a clock and credentials that a test sets."""

    def __init__(self, **settings: object) -> None:
        self.now = 0
        self.revoked: set[str] = set()
        self.sessions = Sessions(
            ConsoleSettings(**settings),  # type: ignore[arg-type]
            lambda principal: principal.name not in self.revoked,
            lambda: self.now,
        )


def test_a_session_ends_when_it_is_old() -> None:
    sitting = Sitting(session_age=HOUR, session_idle=HOUR)
    opened = sitting.sessions.open(ALICE)
    for _ in range(3):
        sitting.now += HOUR // 4
        assert sitting.sessions.find(opened) is not None
    sitting.now += HOUR // 4
    assert sitting.sessions.find(opened) is None
    assert len(sitting.sessions) == 0


def test_a_session_ends_when_nobody_uses_it() -> None:
    sitting = Sitting(session_idle=10 * MINUTE)
    opened = sitting.sessions.open(ALICE)
    sitting.now += 10 * MINUTE
    assert sitting.sessions.find(opened) is None


def test_a_session_ends_with_its_credential() -> None:
    sitting = Sitting()
    opened = sitting.sessions.open(ALICE)
    sitting.revoked.add("alice")
    assert sitting.sessions.find(opened) is None


def test_one_person_has_so_many_sessions_and_no_more() -> None:
    sitting = Sitting()
    other = sitting.sessions.open(BOB)
    opened = []
    for _ in range(PER_PERSON_MAX + 1):
        sitting.now += 1
        opened.append(sitting.sessions.open(ALICE))
    assert sitting.sessions.find(opened[0]) is None
    assert all(sitting.sessions.find(token) is not None for token in [*opened[1:], other])


def test_the_session_unused_for_longest_makes_room() -> None:
    sitting = Sitting(max_sessions=2)
    first, second = sitting.sessions.open(ALICE), sitting.sessions.open(BOB)
    assert sitting.sessions.find(first) is not None
    third = sitting.sessions.open(BOB)
    assert sitting.sessions.find(second) is None
    assert sitting.sessions.find(first) is not None
    assert sitting.sessions.find(third) is not None


def test_a_token_that_was_made_up_is_nobodys() -> None:
    sitting = Sitting()
    sitting.sessions.open(ALICE)
    assert sitting.sessions.find("made up") is None
    assert sitting.sessions.find("") is None
