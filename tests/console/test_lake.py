"""Reports of the pipeline, shown inside."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser

from tests.console.accessibility import check_accessible
from tests.console.rig import Served, Window, window

REPORT = (
    "<!doctype html><html lang='en'><head><title>R</title><style>h1 { color: rgb(1, 2, 3) }</style></head>"
    "<body><h1>Queues of a week</h1><script>document.querySelector('h1').textContent = 'ran'</script></body></html>"
)


@pytest_asyncio.fixture(loop_scope="session")
async def reports(shop: Served) -> AsyncIterator[Path]:
    """The directory of reports, with two."""
    directory = shop.node.config.lake_dir / "reports"
    directory.mkdir(parents=True)
    for age, name in enumerate(("today.html", "last week.html")):
        (directory / name).write_text(REPORT)
        os.utime(directory / name, (1_700_000_000 - age, 1_700_000_000 - age))
    (directory / "notes.txt").write_text("no report")
    (directory / "link.html").symlink_to("/etc/hostname")
    yield directory
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()


async def test_without_reports_the_page_says_how_to_make_one(shop: Served) -> None:
    async with shop.http() as http:
        page = await http.get("/lake")
    assert "holdfast pipeline report" in page.text
    assert str(shop.node.config.lake_dir / "reports") in page.text


async def test_the_newest_report_opens_inside_and_runs_nothing(
    view: Window, reports: Path, browser: Browser, shop: Served, axe: str
) -> None:
    page = view.page
    await page.goto("/lake")
    heading = page.frame_locator("iframe").locator("h1")
    assert await heading.inner_text() == "Queues of a week"
    assert await heading.evaluate("element => getComputedStyle(element).color") == "rgb(1, 2, 3)"
    refused = [said for said in view.complaints if "sandboxed" in said or "Content Security Policy" in said]
    assert refused == view.complaints  # the script that the report should not have
    view.complaints.clear()
    await page.select_option("select[name=report]", "last week.html")
    await page.get_by_role("button", name="Show").click()
    await page.wait_for_url("**/lake?report=last+week.html")
    assert await page.get_by_text("last week.html, written").count() == 1
    view.complaints.clear()
    head = "<!doctype html><html lang='en'><title>R</title><base target=_top>"
    (reports / "last week.html").write_text(f"{head}<h1>Short</h1><a href='/queues'>All</a></html>")
    async with window(browser, shop.url) as other:
        await other.page.goto("/lake?report=last+week.html")
        await check_accessible(other, axe)
        await other.keep("lake")
        await other.page.frame_locator("iframe").get_by_role("link", name="All").click()
        await other.page.wait_for_url("**/queues")


async def test_only_reports_are_served(shop: Served, reports: Path) -> None:
    async with shop.http() as http:
        for name in ("notes.txt", "link.html", "..%2Fjournal", "none.html"):
            assert (await http.get(f"/lake/reports/{name}")).status_code == 404, name
        found = await http.get("/lake/reports/today.html")
        assert found.text == REPORT
        assert "sandbox" in found.headers["content-security-policy"]
        assert "script" not in found.headers["content-security-policy"]
        (reports / "today.html").unlink()
        assert (await http.get("/lake?report=today.html")).status_code == 404


async def test_reports_are_for_who_may_see_the_server(guarded: Served) -> None:
    async with guarded.http("reader") as http:
        assert 'href="/lake"' not in (await http.get("/")).text
        for path in ("/lake", "/lake/reports/today.html"):
            assert (await http.get(path)).status_code == 403, path
    async with guarded.http("ops") as http:
        assert 'href="/lake"' in (await http.get("/")).text
