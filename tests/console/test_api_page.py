"""The page of the HTTP API: in the console's design, with examples that can be tried out here."""

from __future__ import annotations

from playwright.async_api import Browser

from tests.console.accessibility import check_accessible
from tests.console.rig import Served, Window, window


def card(method: str, path: str) -> str:
    return f"section.card:has(form[data-method={method}][data-path='{path}'])"


async def test_a_request_is_tried_out(view: Window, shop: Served) -> None:
    page = view.page
    await page.goto("/docs")
    page.on("dialog", lambda dialog: dialog.accept())
    send = card("POST", "/api/v1/queues/{name}/messages")
    await page.click(f"{send} summary")
    await page.fill(f"{send} [data-name=name]", "tried/out")
    assert f"'{shop.url}/api/v1/queues/tried%2Fout/messages'" in await page.inner_text(f"{send} .curl")
    await page.click(f"{send} button")
    await page.wait_for_selector(f"{send} .status.good")
    assert await page.inner_text(f"{send} .status") == "200 OK"
    assert '"ids": [' in await page.inner_text(f"{send} .response")
    assert shop.node.cell.engine.queues["default", "tried/out"].depth == 1
    show = card("GET", "/api/v1/queues/{name}/partitions")
    await page.click(f"{show} summary")
    await page.fill(f"{show} [data-name=name]", "tried/out")
    await page.click(f"{show} button")
    await page.wait_for_selector(f"{show} .status.good")
    await shop.node.queues.delete(("default", "tried/out"))
    await view.keep("api")


async def test_it_looks_like_the_console_and_everybody_can_use_it(view: Window, axe: str) -> None:
    await view.page.goto("/docs")
    ground = "getComputedStyle(document.body).backgroundColor"
    token = "getComputedStyle(document.documentElement).getPropertyValue('--ground').trim()"
    assert await view.page.evaluate(token) == "#f6f7f6"
    assert await view.page.evaluate(ground) == "rgb(246, 247, 246)"
    await check_accessible(view, axe)
    await view.page.set_viewport_size({"width": 390, "height": 844})
    assert await view.page.evaluate("document.documentElement.scrollWidth") <= 390


async def test_a_credential_goes_with_requests_and_nowhere_else(browser: Browser, guarded: Served) -> None:
    async with window(browser, guarded.url) as view:
        page = view.page
        await page.goto("/docs")
        await page.fill("#credential", "reader:correct horse")
        queues = card("GET", "/api/v1/queues")
        await page.click(f"{queues} summary")
        await page.click(f"{queues} button")
        await page.wait_for_selector(f"{queues} .status.good")
        assert "correct horse" not in await page.inner_text(f"{queues} .curl")
        assert await page.evaluate("localStorage.length + sessionStorage.length") == 0
        overview = card("GET", "/api/v1/health")
        await page.click(f"{overview} summary")
        await page.click(f"{overview} button")
        await page.wait_for_selector(f"{overview} .status.bad")
        assert "node" in await page.inner_text(f"{overview} .response")
        view.complaints.clear()  # the browser says that a response was an error
