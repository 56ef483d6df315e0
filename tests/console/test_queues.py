"""Queues: find, sort, create, configure, pause, purge, delete; and what one queue shows."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser

from holdfast.console.pages.queues import PER_PAGE
from tests.console.accessibility import check_accessible
from tests.console.rig import Served, Window, config_with, csrf, serving, window


def names(page: httpx.Response) -> list[str]:
    """The queues on a page, in order."""
    return re.findall(r'<td class="name"><a href="/queues/[^"]*">([^<]*)</a>', page.text)


async def test_the_list_shows_every_queue_with_its_state(shop: Served) -> None:
    async with shop.http() as http:
        page = await http.get("/queues")
        assert names(page) == ["dlq/shop/mails", "reports/nightly", "shop/mails", "shop/orders"]
        assert page.text.count("paused</span>") == 1
        assert page.text.count("dead queue</span>") == 1


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("find=SHOP+mail", ["dlq/shop/mails", "shop/mails"]),
        ("kind=paused", ["reports/nightly"]),
        ("kind=dead", ["dlq/shop/mails"]),
        ("sort=-name", ["shop/orders", "shop/mails", "reports/nightly", "dlq/shop/mails"]),
        ("sort=-depth&find=shop", ["shop/orders", "dlq/shop/mails", "shop/mails"]),
        ("sort=nonsense&kind=nonsense&page=99", ["dlq/shop/mails", "reports/nightly", "shop/mails", "shop/orders"]),
    ],
)
async def test_queues_are_found_and_sorted(shop: Served, query: str, found: list[str]) -> None:
    async with shop.http() as http:
        assert names(await http.get(f"/queues?{query}")) == found


async def test_what_is_not_there_says_so(shop: Served) -> None:
    async with shop.http() as http:
        page = await http.get("/queues?find=%3Cb%3Enothing")
        assert "Nothing found" in page.text
        assert "<b>nothing" not in page.text


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def many(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """A server with many queues, of which only those on a page are looked at closely."""
    async with serving(config_with(tmp_path_factory.mktemp("many"))) as served:
        for index in range(3 * PER_PAGE + 1):
            await served.node.queues.create(("default", f"q/{index:04}"), {"partitions": 1})
        yield served


async def test_many_queues_come_in_pages_and_cost_no_more_than_few(many: Served) -> None:
    looked_at: list[object] = []
    stats = many.node.inspection.stats

    async def counted(name: tuple[str, str]) -> object:
        looked_at.append(name)
        return await stats(name)

    many.node.inspection.stats = counted  # type: ignore[method-assign,assignment]
    async with many.http() as http:
        first = await http.get("/queues")
        assert names(first) == [f"q/{index:04}" for index in range(PER_PAGE)]
        assert len(looked_at) == PER_PAGE
        last = await http.get("/queues?page=4")
        assert names(last) == [f"q/{3 * PER_PAGE:04}"]
        assert "Page 4 of 4" in last.text


async def test_a_queue_is_created_configured_and_deleted(shop: Served) -> None:
    async with shop.http() as http:
        form = await http.get("/new-queue")
        assert "delivered one after another" in form.text  # the API's own explanation
        fields = {"csrf": csrf(form), "name": "made/here", **defaults(form), "max_depth": "7", "paused": "on"}
        made = await http.post("/new-queue", data=fields)
        assert made.headers["location"] == "/queues/made%2Fhere?did=created"
        config = shop.node.queues.get(("default", "made/here")).config
        assert (config.max_depth, config.paused, config.retry.max_retries) == (7, True, 10)

        form = await http.get("/queues/made%2Fhere/configure")
        changed = {"csrf": csrf(form), **defaults(form), "retry.max_retries": "3", "topics": "a/+\r\nb/#"}
        assert (await http.post("/queues/made%2Fhere/configure", data=changed)).status_code == 303
        config = shop.node.queues.get(("default", "made/here")).config
        assert (config.max_depth, config.retry.max_retries, config.topics) == (7, 3, ("a/+", "b/#"))
        assert config.paused is False  # a box that is not ticked sends nothing

        for wrong in ("", "made"):
            refused = await http.post("/queues/made%2Fhere/delete", data={"csrf": csrf(form), "confirm": wrong})
            assert refused.status_code == 400
        assert shop.node.queues.exists(("default", "made/here"))
        gone = await http.post("/queues/made%2Fhere/delete", data={"csrf": csrf(form), "confirm": "made/here"})
        assert gone.headers["location"] == "/queues?did=deleted&count=0"
        assert not shop.node.queues.exists(("default", "made/here"))


def defaults(form: httpx.Response) -> dict[str, str]:
    """What a form has in its fields, as a browser would send it."""
    found = dict(re.findall(r'<input id="[^"]*" name="([^"]*)" type="text"[^>]*? value="([^"]*)"', form.text))
    for name, options in re.findall(r'<select id="[^"]*" name="([^"]*)"[^>]*>(.*?)</select>', form.text, re.DOTALL):
        chosen = re.search(r"<option selected>([^<]*)", options)
        found[name] = chosen[1] if chosen else ""
    if re.search(r'name="dlq.enabled" value="on" checked', form.text):
        found["dlq.enabled"] = "on"
    return {name: value for name, value in found.items() if name not in ("find", "name")}


async def test_a_form_that_is_wrong_comes_again_with_what_was_typed(shop: Served) -> None:
    async with shop.http() as http:
        form = await http.get("/new-queue")
        fields = {"csrf": csrf(form), "name": "made/wrong", **defaults(form), "partitions": "many"}
        refused = await http.post("/new-queue", data=fields)
        assert refused.status_code == 400
        assert 'role="alert"' in refused.text
        assert 'value="many"' in refused.text
        assert 'value="made/wrong"' in refused.text
        assert not shop.node.queues.exists(("default", "made/wrong"))


async def test_pause_resume_and_purge(shop: Served) -> None:
    await shop.node.queues.create(("default", "work"))
    async with shop.http() as http, shop.client() as client:
        await client.send("work", "one")
        token = {"csrf": csrf(await http.get("/queues/work"))}
        await http.post("/queues/work/pause", data=token)
        assert shop.node.queues.get(("default", "work")).config.paused
        await http.post("/queues/work/resume", data=token)
        assert not shop.node.queues.get(("default", "work")).config.paused
        done = await http.post("/queues/work/purge", data={**token, "confirm": "work"})
        assert "1 message was removed" in (await http.get(done.headers["location"])).text
        assert shop.node.queues.depth(("default", "work")) == 0
        await client.receive("work", group="g")
        assert "Delete group g?" in (await http.get("/queues/work/groups/g/delete")).text
        await http.post("/queues/work/groups/g/delete", data=token)
        assert shop.node.queues.get(("default", "work")).groups == ()
    await shop.node.queues.delete(("default", "work"))


async def test_one_queue_shows_its_groups_partitions_and_keys_that_block(shop: Served) -> None:
    async with shop.http() as http:
        page = await http.get("/queues/shop%2Forders")
        assert "of 50" in page.text
        part = await http.get("/queues/shop%2Forders/partitions", headers={"hx-request": "true"})
        assert "Keys that hold others up" in part.text
        assert "customer-0" in part.text
        assert "timeout after 17 ms" in part.text
        assert "<html" not in part.text
        plots = (await http.get("/queues/shop%2Forders/plots?range=24h")).json()
        assert len(plots["at"]) == 240
        assert (await http.get("/queues/shop%2Forders/plots?range=1y")).status_code == 400


async def test_a_queue_that_is_not_there_is_a_page(shop: Served) -> None:
    async with shop.http() as http:
        for path in ("/queues/none", "/queues/none/configure", "/queues/none/delete", "/queues/none/partitions"):
            page = await http.get(path)
            assert page.status_code == 404, path
            assert "none" in page.text


async def test_scopes_say_what_is_shown_and_what_can_be_done(guarded: Served) -> None:
    for name in ("shop/a", "other/b"):
        if not guarded.node.queues.exists(("default", name)):
            await guarded.node.queues.create(("default", name))
    async with guarded.http("shop") as http:
        listed = await http.get("/queues")
        assert "shop/a" in names(listed)
        assert "other/b" not in names(listed)
        assert "Create a queue" not in listed.text
        page = await http.get("/queues/shop%2Fa")
        assert "admin:shop/a" in page.text
        assert "Pause" not in page.text
        token = {"csrf": csrf(page), "confirm": "shop/a"}
        for path in (
            "/queues/other%2Fb",
            "/queues/shop%2Fa/configure",
            "/queues/shop%2Fa/plots",
            "/queues/other%2Fb/live",
        ):
            assert (await http.get(path)).status_code == 403, path
        for act in ("pause", "purge", "delete"):
            assert (await http.post(f"/queues/shop%2Fa/{act}", data=token)).status_code == 403
    assert guarded.node.queues.exists(("default", "shop/a"))


async def test_a_read_only_session_changes_no_queue(guarded: Served) -> None:
    if not guarded.node.queues.exists(("default", "kept")):
        await guarded.node.queues.create(("default", "kept"))
    async with guarded.http("ops", read_only=True) as http:
        page = await http.get("/queues/kept")
        assert "Purge" not in page.text
        refused = await http.post("/queues/kept/delete", data={"csrf": csrf(page), "confirm": "kept"})
        assert refused.status_code == 403
        assert "read only" in refused.text
    assert guarded.node.queues.exists(("default", "kept"))


async def test_what_is_done_is_in_the_audit_log(guarded: Served) -> None:
    async with guarded.http("ops") as http:
        token = csrf(await http.get("/queues"))
        await http.post("/new-queue", data={"csrf": token, **defaults(await http.get("/new-queue")), "name": "audited"})
        await http.post("/queues/audited/pause", data={"csrf": token})
    log = (guarded.node.config.node.data_dir / "audit.log").read_text()
    assert '"who":"ops"' in log
    assert '"act":"queue.pause"' in log


# --- in a browser -----------------------------------------------------------------------------------------------------


async def test_the_list_follows_what_one_types(view: Window) -> None:
    page = view.page
    await page.goto("/queues")
    assert await page.locator("#rows tr").count() == 4
    await page.fill("main input[name=find]", "orders")
    await page.wait_for_function("() => document.querySelectorAll('#rows tr').length === 1")
    await page.wait_for_url("**/queues?find=orders*")
    await page.get_by_role("button", name="Save this filter").click()
    await page.goto("/queues")
    await page.get_by_role("link", name="orders", exact=True).click()
    await page.wait_for_url("**/queues?find=orders*")
    await page.get_by_role("button", name="Forget the filter orders").click()
    await view.keep("queues")


async def test_a_queue_is_live_and_its_deletion_wants_its_name(view: Window, shop: Served) -> None:
    await shop.node.queues.create(("default", "brief"))
    page = view.page
    await page.goto("/queues/brief")
    await page.wait_for_selector("html[data-updated]")
    async with shop.client() as client:
        await client.send("brief", "one")
    await page.wait_for_function("() => document.querySelector('#tiles').innerText.includes('1 in all')")
    await view.keep("queue-brief")
    await page.get_by_role("link", name="Delete …").click()
    button = page.get_by_role("button", name="Delete")
    assert await button.is_disabled()
    await page.fill("#confirm", "brief")
    await button.click()
    await page.wait_for_url("**/queues?did=deleted*")
    assert await page.get_by_text("The queue was deleted, with 1 message.").count() == 1


async def test_every_action_with_a_browser(view: Window, shop: Served) -> None:
    page, name = view.page, ("default", "made/by-hand")
    await page.goto("/queues")
    await page.get_by_role("link", name="Create a queue").click()
    await page.fill("#name", "made/by-hand")
    await page.fill("#max_depth", "none")
    await page.get_by_role("button", name="Create").click()
    await page.get_by_role("alert").wait_for()
    view.complaints.clear()  # the browser says that the form was refused
    await page.fill("#max_depth", "9")
    await page.get_by_role("button", name="Create").click()
    await page.get_by_text("The queue was created.").wait_for()
    await page.get_by_role("button", name="Pause").click()
    await page.get_by_text("The queue is paused").wait_for()
    await page.get_by_role("button", name="Resume").click()
    await page.get_by_text("The queue gives out messages again.").wait_for()
    await page.get_by_role("link", name="Configure").click()
    assert await page.input_value("#max_depth") == "9"
    await page.fill("#max_depth", "8")
    await page.get_by_role("button", name="Save").click()
    await page.get_by_text("The configuration was changed.").wait_for()
    assert shop.node.queues.get(name).config.max_depth == 8
    async with shop.client() as client:
        await client.send(name[1], "x")
        await client.receive(name[1], group="extra")
    await page.get_by_role("link", name="Delete … group extra").click()
    await page.get_by_role("button", name="Delete the group").click()
    await page.get_by_text("The group was deleted.").wait_for()
    await page.get_by_role("link", name="Purge …").click()
    await page.fill("#confirm", name[1])
    await page.get_by_role("button", name="Purge").click()
    await page.get_by_text("1 message was removed.").wait_for()
    await page.get_by_role("link", name="Delete …", exact=True).click()
    await page.fill("#confirm", name[1])
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_text("The queue was deleted").wait_for()
    assert not shop.node.queues.exists(name)


async def test_a_reader_is_shown_nothing_that_changes_anything(browser: Browser, guarded: Served) -> None:
    if not guarded.node.queues.exists(("default", "look")):
        await guarded.node.queues.create(("default", "look"))
    async with window(browser, guarded.url) as view:
        page = view.page
        await view.sign_in("reader")
        for path in ("/", "/queues", "/queues/look", "/queues/look/messages", "/dead-letters", "/consumers"):
            await page.goto(path)
            await page.get_by_role("heading", level=1).wait_for()
            assert await page.locator("main form[method=post], main .danger").count() == 0, path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "path", ["/queues", "/queues/shop%2Forders", "/new-queue", "/queues/shop%2Forders/delete", "/queues?find=nothing"]
)
async def test_everybody_can_use_it(view: Window, axe: str, path: str, scheme: str) -> None:
    await view.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    await view.page.goto(path)
    await check_accessible(view, axe)


@pytest.mark.parametrize("path", ["/", "/queues", "/queues/shop%2Forders", "/new-queue"])
async def test_no_page_is_wider_than_a_phone(view: Window, path: str) -> None:
    await view.page.set_viewport_size({"width": 390, "height": 844})
    await view.page.goto(path)
    assert await view.page.evaluate("document.documentElement.scrollWidth") <= 390
