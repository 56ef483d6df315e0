"""A server with the console, open or with users, and a browser to look at it with."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiomqtt
import httpx
import msgspec
from argon2 import PasswordHasher
from msgspec.structs import replace
from playwright.async_api import Browser, BrowserContext, Page, async_playwright
from playwright.async_api import Error as PlaywrightError

from holdfast.auth.gate import Gate
from holdfast.broker.node import Node
from holdfast.client import Client
from holdfast.config import Config
from holdfast.config.secret import SecretText
from holdfast.console import Console
from holdfast.http_api import HttpFront
from holdfast.http_api.server.connection import Upgrade
from holdfast.mqtt.net import MqttFront
from holdfast.store import open_store
from tests.http_api.conftest import config_for
from tests.http_api.tenants import SECRET
from tests.waiting import PATIENCE_SECONDS

PASSWORD = "correct horse"
USERS = {
    "ops": ["admin:#", "consume:#", "produce:#", "node"],
    "shop": ["consume:shop/#", "produce:shop/#"],
    "reader": ["consume:#"],
}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SIZES = {"wide": (1440, 900), "middle": (1024, 768), "phone": (390, 844)}


def users_file(path: Path) -> Path:
    """Users with the scopes above, and a hash that is quickly computed."""
    password = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)
    users = [{"name": name, "scopes": scopes, "password": password} for name, scopes in USERS.items()]
    path.write_bytes(msgspec.json.encode({"version": 1, "users": users}))
    path.chmod(0o600)
    return path


class Served:
    """A server that runs, and clients of it."""

    def __init__(self, node: Node, front: HttpFront, console: Console) -> None:
        self.node = node
        self.front = front
        self.console = console
        self.url = front.url

    def client(self) -> Client:
        """A client of the API of an open server."""
        return Client(self.url)

    @asynccontextmanager
    async def http(self, user: str = "", *, read_only: bool = False) -> AsyncIterator[httpx.AsyncClient]:
        """What a browser does, without a browser; signed in as a user."""
        async with httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_SECONDS) as http:
            if user:
                form = {"user": user, "password": PASSWORD} | ({"read_only": "1"} if read_only else {})
                assert (await http.post("/login", data=form)).status_code == 303
            yield http


def csrf(page: httpx.Response) -> str:
    """What a form of this page has to bring along."""
    found = re.search(r'"X-CSRF-Token": "([^"]+)"', page.text)
    assert found is not None, page.text
    return found[1]


def config_with(path: Path, *, users: bool = False, **console: object) -> Config:
    config = config_for(path)
    config = replace(config, console=replace(config.console, **console))
    if users:
        auth = replace(config.auth, users_file=users_file(path / "users.json"), token_secret=SecretText(SECRET))
        config = replace(config, auth=auth)
    return config


@asynccontextmanager
async def serving(config: Config, *, mqtt: bool = False) -> AsyncIterator[Served]:
    store = open_store("memory", config.node.data_dir / "store")
    node = Node(config, store)
    await node.start()
    gate = Gate(config, node.clock)
    mqtt_front = MqttFront(config, node, gate) if mqtt else None
    console = Console(config, node, gate, mqtt_front)
    upgrades: dict[str, Upgrade] = {} if mqtt_front is None else {"/mqtt": mqtt_front.websocket()}
    front = HttpFront(config, node, gate, upgrades, console)
    await console.start()
    await front.start()
    if mqtt_front is not None:
        await mqtt_front.start()
    try:
        yield Served(node, front, console)
    finally:
        if mqtt_front is not None:
            await mqtt_front.stop()
        await front.stop()
        await console.stop()
        await node.stop()
        await gate.close()
        store.close()


def mqtt_client(served: Served, client_id: str) -> aiomqtt.Client:
    assert served.console.mqtt is not None
    host, port = served.console.mqtt.addresses[0]
    return aiomqtt.Client(host, port, identifier=client_id, timeout=PATIENCE_SECONDS)


# --- a browser ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()


class Window:
    """A window of the browser. What its console says that it should not is in `complaints`."""

    def __init__(self, context: BrowserContext, page: Page) -> None:
        self.context = context
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda said: self._said(said.type, said.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._requested(request.url))
        page.on("response", lambda response: self._responded(response.status, response.url))
        self.origins: set[str] = set()
        self.failed: list[str] = []

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def _responded(self, status: int, url: str) -> None:
        """What the browser says of a response that failed does not name it."""
        if status >= 400:
            self.failed.append(f"{status} {url}")

    def _requested(self, url: str) -> None:
        self.origins.add("/".join(url.split("/")[:3]))

    async def sign_in(self, user: str) -> None:
        await self.page.goto("/login")
        await self.page.fill("#user", user)
        await self.page.fill("#password", PASSWORD)
        await self.page.click("button.primary")
        await self.page.wait_for_url(re.compile(r".*/$"))

    async def keep_failure(self) -> None:
        """A picture of what a test that fails has before it."""
        name = re.sub(r"[^\w-]+", "-", os.environ.get("PYTEST_CURRENT_TEST", "window").rpartition("::")[2])
        FAILURES.mkdir(parents=True, exist_ok=True)
        with suppress(PlaywrightError):  # the browser itself may be gone
            await self.page.screenshot(path=FAILURES / f"{name}.png", full_page=True)

    async def keep(self, name: str) -> None:
        """A screenshot, if HOLDFAST_SCREENSHOTS says where: in each width, light and dark."""
        folder = os.environ.get("HOLDFAST_SCREENSHOTS")
        if not folder:
            return
        wanted = os.environ.get("HOLDFAST_SCREENSHOT_SIZES", "wide,middle,phone").split(",")
        for size, (width, height) in SIZES.items():
            if size not in wanted:
                continue
            await self.page.set_viewport_size({"width": width, "height": height})
            for scheme in ("light", "dark"):
                await self.page.emulate_media(color_scheme=scheme)
                await self.page.evaluate("typeof drawPlots === 'function' && drawPlots()")
                await self.page.wait_for_timeout(150)
                await self.page.screenshot(path=Path(folder) / f"{name}-{size}-{scheme}.png", full_page=True)
        await self.page.set_viewport_size({"width": 1440, "height": 900})
        await self.page.emulate_media(color_scheme="light")


FAILURES = Path(__file__).parents[2] / "build" / "console-failures"
"""Where pictures of windows are kept whose test has failed."""


@asynccontextmanager
async def window(browser: Browser, url: str) -> AsyncIterator[Window]:
    """A window that must not complain."""
    context = await browser.new_context(base_url=url, viewport={"width": 1440, "height": 900})
    context.set_default_timeout(PATIENCE_SECONDS * 1000)
    try:
        opened = Window(context, await context.new_page())
        try:
            yield opened
        except BaseException:
            await opened.keep_failure()
            raise
        assert opened.complaints == [], opened.failed
        assert opened.origins <= {url, url.replace("http", "ws", 1)}
    finally:
        await context.close()
