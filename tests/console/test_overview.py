"""The overview in a browser: numbers that move by themselves, plots, keys, themes; and what needs attention."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser

from tests.console.accessibility import check_accessible
from tests.console.rig import Served, Window, config_with, serving, window
from tests.console.seed import history


async def test_the_overview_says_what_needs_attention_first(shop: Served) -> None:
    async with shop.http() as http:
        text = (await http.get("/")).text
    assert text.index("shop/orders is nearly full") < text.index("Messages stored")
    assert "reports/nightly is paused" in text
    assert "5 dead letters" in text


async def test_numbers_move_without_a_reload(view: Window, shop: Served) -> None:
    page = view.page
    await page.goto("/")
    await page.wait_for_selector("html[data-updated]")
    before = await page.inner_text("#tiles a[href*='depth'] .value")
    async with shop.client() as client:
        await client.send("live/one", "hello")
    await page.wait_for_function(
        "before => document.querySelector('#tiles a[href*=depth] .value').innerText !== before", arg=before
    )
    assert await page.locator("#busiest").get_by_text("live/one").count() == 1
    await shop.node.queues.delete(("default", "live/one"))


async def test_plots_are_drawn_and_follow_the_range(view: Window) -> None:
    page = view.page
    await page.goto("/")
    await page.wait_for_selector(".plot canvas")
    assert await page.locator(".plot canvas").count() == 4
    async with page.expect_response("**/plots?range=7d"):
        await page.get_by_role("button", name="7d").click()
    assert await page.get_by_role("button", name="7d").get_attribute("aria-current") == "true"
    await view.keep("overview")


async def test_keys(view: Window) -> None:
    page = view.page
    await page.goto("/help")
    await page.keyboard.press("/")
    assert await page.evaluate("document.activeElement.id") == "find"
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    await page.wait_for_selector("dialog#help[open]")
    await page.keyboard.press("Escape")
    await page.keyboard.press("g")
    await page.keyboard.press("o")
    await page.wait_for_url("**/")


async def test_light_and_dark_are_remembered(view: Window) -> None:
    page = view.page
    await page.emulate_media(color_scheme="light")
    await page.goto("/")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = await page.evaluate(ground)
    await page.click("[data-theme-switch]")
    dark = await page.evaluate(ground)
    assert light != dark
    await page.reload()
    assert await page.evaluate(ground) == dark


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", "/health", "/help", "/nothing-here"])
async def test_everybody_can_use_it(view: Window, axe: str, path: str, scheme: str) -> None:
    await view.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    await view.page.goto(path)
    if path == "/nothing-here":
        assert [said for said in view.complaints if "404" in said]
        view.complaints.clear()
    await check_accessible(view, axe)


async def test_signing_in_with_a_browser(browser: Browser, guarded: Served, axe: str) -> None:
    async with window(browser, guarded.url) as view:
        page = view.page
        await page.goto("/help")
        await page.wait_for_url("**/login?next=%2Fhelp")
        await check_accessible(view, axe)
        await view.keep("login")
        await page.fill("#user", "ops")
        await page.fill("#password", "correct horse")
        await page.click("button.primary")
        await page.wait_for_url("**/help")
        assert await page.get_by_text("admin:#").count() == 1
        await page.get_by_role("button", name="Sign out").click()
        await page.wait_for_url("**/login")


async def test_a_caller_sees_what_its_scopes_show(guarded: Served) -> None:
    await guarded.node.queues.create(("default", "shop/seen"))
    await guarded.node.queues.create(("default", "private/hidden"))
    history(guarded)
    guarded.console.sampler.samples.add(("default", "private/hidden"), guarded.node.clock(), {"depth": 77.0})
    async with guarded.http("shop") as http:
        assert "private/hidden" not in (await http.get("/")).text
        assert 77.0 not in (await http.get("/plots")).json()["depth"]
        assert (await http.get("/health")).status_code == 403
    async with guarded.http("ops") as http:
        assert "private/hidden" in (await http.get("/")).text
        assert (await http.get("/health")).status_code == 200


async def test_no_more_pages_are_live_than_may_be(tmp_path: Path) -> None:
    async with (
        serving(config_with(tmp_path, max_live=1)) as served,
        served.http() as http,
        http.stream("GET", "/live/overview") as first,
    ):
        assert first.status_code == 200
        second = await http.get("/live/overview")
        assert second.status_code == 503
        assert "console.max_live" in second.text


async def test_a_server_that_stops_ends_live_pages(tmp_path: Path) -> None:
    async with (
        serving(config_with(tmp_path)) as served,
        served.http() as http,
        http.stream("GET", "/live/overview") as response,
    ):
        lines = response.aiter_lines()
        assert await anext(lines) == "event: parts"
        served.front.api.close()
        seen = [line async for line in lines]
        assert "event: end" in seen
        assert 'data: "shutting_down"' in seen


async def test_a_session_that_ends_ends_its_live_pages(guarded: Served) -> None:
    async with guarded.http("ops") as http, http.stream("GET", "/live/overview") as response:
        lines = response.aiter_lines()
        assert await anext(lines) == "event: parts"
        guarded.console.sessions.close(http.cookies["holdfast_session"])
        assert 'data: "signed out"' in [line async for line in lines]


async def test_times_are_shown_here_or_in_utc(browser: Browser, shop: Served) -> None:
    context = await browser.new_context(base_url=shop.url, timezone_id="Asia/Kolkata", locale="en-GB")
    try:
        page = await context.new_page()
        await page.goto("/")
        time = page.locator(".head time")
        here, title = await time.inner_text(), await time.get_attribute("title")
        assert "UTC" not in here
        assert (title or "").endswith("UTC")
        await page.click("[data-zone-switch]")
        assert (await time.inner_text(), await time.get_attribute("title")) == (title, here)
        assert (await page.inner_text("[data-zone-switch]")).startswith("UTC")
        await page.reload()
        assert await time.inner_text() == title
    finally:
        await context.close()


async def test_the_console_works_far_away_and_on_a_slow_machine(view: Window, shop: Served) -> None:
    """Pages, live updates and actions with 200 ms of latency and a CPU that is six times slower."""
    page = view.page
    session = await view.context.new_cdp_session(page)
    slow = {"offline": False, "latency": 200, "downloadThroughput": 500_000, "uploadThroughput": 500_000}
    await session.send("Network.enable")
    await session.send("Network.emulateNetworkConditions", slow)
    await session.send("Emulation.setCPUThrottlingRate", {"rate": 6})
    await page.goto("/")
    await page.wait_for_selector("html[data-updated]")
    await page.wait_for_selector(".plot canvas")
    await page.keyboard.press("g")
    await page.keyboard.press("q")
    await page.wait_for_url("**/queues")
    await page.fill("main input[name=find]", "nightly")
    await page.wait_for_function("() => document.querySelectorAll('#rows tr').length === 1")
    await page.get_by_role("link", name="reports/nightly").click()
    await page.get_by_role("button", name="Resume").click()
    await page.get_by_role("button", name="Pause").click()
    await page.get_by_text("The queue is paused").wait_for()
    assert shop.node.queues.get(("default", "reports/nightly")).config.paused


async def test_a_page_says_so_when_the_server_does_not_answer_and_goes_on_when_it_does(
    view: Window, shop: Served
) -> None:
    page = view.page
    await page.goto("/")
    await page.wait_for_selector("html[data-updated]")
    await view.context.set_offline(True)
    await page.evaluate("stopLive(); goLive()")
    await page.wait_for_function("() => document.querySelector('#offline').innerText.includes('does not answer')")
    await view.context.set_offline(False)
    await page.wait_for_function("() => document.querySelector('#offline').hidden")
    view.complaints.clear()  # the browser says that it could not connect
    assert shop.console.live >= 1
