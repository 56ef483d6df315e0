"""The page to publish and subscribe from, which speaks MQTT over WebSocket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec.structs import replace
from playwright.async_api import Browser, Page, expect

from tests.console.accessibility import check_accessible
from tests.console.rig import PASSWORD, Served, config_with, mqtt_client, serving, window
from tests.waiting import PATIENCE_SECONDS

PATIENCE = PATIENCE_SECONDS * 1000


async def connect(page: Page) -> None:
    await page.get_by_role("button", name="Connect").click()
    await expect(page.locator("#mqtt-state")).to_have_text("connected", timeout=PATIENCE)


async def says(page: Page, text: str) -> None:
    await expect(page.locator("#mqtt-log")).to_contain_text(text, timeout=PATIENCE)


async def test_what_is_published_arrives_where_it_is_subscribed(browser: Browser, mixed: Served, axe: str) -> None:
    async with window(browser, mixed.url) as view, mqtt_client(mixed, "other") as other:
        page = view.page
        await page.goto("/mqtt-sessions")
        await page.get_by_role("link", name="Try it out").click()
        await connect(page)
        await page.fill("#mqtt-filter", "try/+")
        await page.get_by_role("button", name="Subscribe").click()
        await says(page, "Subscribed to try/+")
        await page.fill("#mqtt-topic", "try/kept")
        await page.fill("#mqtt-payload", "größer als 0")
        await page.check("#mqtt-retain")
        await page.get_by_role("button", name="Publish").click()
        await says(page, "Published to try/kept")
        await says(page, "größer als 0")
        assert [kept.topic for kept in mixed.console.mqtt.administration.retained("default")].count("try/kept") == 1  # type: ignore[union-attr]
        await other.publish("try/long", "x" * 70_000, qos=1)  # longer than one read
        await says(page, "← try/long, QoS 1")
        await other.publish("try/bytes", b"\xff\x00", qos=0)
        await says(page, "ff 00")
        await check_accessible(view, axe)
        await view.keep("mqtt-try")
        await page.get_by_role("button", name="Unsubscribe from try/+").click()
        await says(page, "Unsubscribed from try/+")
        await page.fill("#mqtt-filter", "$queue/work")
        await page.get_by_role("button", name="Subscribe", exact=True).click()
        await says(page, "Not subscribed to $queue/work")
        await page.get_by_role("button", name="Disconnect").click()
        await expect(page.locator("#mqtt-state")).to_have_text("not connected", timeout=PATIENCE)


async def test_a_publication_to_a_queue_enqueues(browser: Browser, mixed: Served) -> None:
    async with window(browser, mixed.url) as view:
        page = view.page
        await page.goto("/mqtt-try")
        await connect(page)
        await page.fill("#mqtt-topic", "$queue/tried")
        await page.fill("#mqtt-payload", "work")
        await page.get_by_role("button", name="Publish").click()
        await says(page, "Published to $queue/tried")
        assert mixed.node.queues.depth(("default", "tried")) == 1
    await mixed.node.queues.delete(("default", "tried"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """A server with users and MQTT."""
    config = config_with(tmp_path_factory.mktemp("locked"), users=True)
    config = replace(config, mqtt=replace(config.mqtt, listen="127.0.0.1:0"))
    async with serving(config, mqtt=True) as served:
        yield served


async def test_rights_are_those_of_the_credential(browser: Browser, locked: Served) -> None:
    async with window(browser, locked.url) as view:
        page = view.page
        await view.sign_in("shop")
        await page.goto("/mqtt-try")
        assert await page.input_value("#mqtt-user") == "shop"
        await page.fill("#mqtt-password", "wrong")
        await page.get_by_role("button", name="Connect").click()
        await says(page, "The server refused the connection")
        await page.fill("#mqtt-password", PASSWORD)
        await connect(page)
        await page.fill("#mqtt-topic", "private/x")
        await page.get_by_role("button", name="Publish").click()
        await says(page, "Not published to private/x")
        await page.fill("#mqtt-filter", "private/#")
        await page.get_by_role("button", name="Subscribe").click()
        await says(page, "Not subscribed to private/#")


async def test_a_read_only_session_has_no_form_to_publish(locked: Served) -> None:
    async with locked.http("ops", read_only=True) as http:
        page = await http.get("/mqtt-try")
        assert 'id="mqtt-subscribe"' in page.text
        assert 'id="mqtt-publish"' not in page.text
