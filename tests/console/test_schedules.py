"""Schedules: create, look at, run, pause, edit and delete them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.console.accessibility import check_accessible
from tests.console.rig import Served, Window, csrf

QUEUE = ("default", "clock/work")
FORM = {"queue": "clock/work", "cron": "30 2 * * *", "timezone": "Europe/Berlin", "kind": "json", "payload": '{"a": 1}'}


@pytest_asyncio.fixture(loop_scope="session")
async def clocked(shop: Served) -> AsyncIterator[Served]:
    """A server with a queue for schedules, which are deleted afterwards."""
    await shop.node.queues.create(QUEUE)
    yield shop
    for found in list(shop.node.schedules.in_namespace("default", "", "")):
        await shop.node.schedules.delete(("default", found.schedule.name))
    await shop.node.queues.delete(QUEUE)


async def test_a_schedule_is_stored_with_its_message_and_shows_its_next_ticks(clocked: Served) -> None:
    async with clocked.http() as http:
        form = await http.get("/new-schedule")
        assert "Minute, hour, day of month" in form.text  # the API's own explanation
        fields = {"csrf": csrf(form), "name": "nightly", **FORM, "key": "k", "properties": "tag=a\r\ntag=b"}
        stored = await http.post("/new-schedule", data=fields)
        assert stored.headers["location"] == "/schedules/nightly?did=schedule-stored"
        page = await http.get("/schedules/nightly")
        assert page.text.count("<li><time") == 10
        schedule = clocked.node.schedules.get(("default", "nightly")).schedule
        assert (schedule.payload, schedule.extra.key) == (b'{"a": 1}', "k")
        assert schedule.extra.properties == (("tag", "a"), ("tag", "b"))
        listed = await http.get("/schedules")
        assert "30 2 * * *" in listed.text
        assert "Europe/Berlin" in listed.text
        assert "Nothing found" in (await http.get("/schedules?find=x")).text


async def test_a_second_one_of_a_name_does_not_replace_the_first(clocked: Served) -> None:
    async with clocked.http() as http:
        token = csrf(await http.get("/new-schedule"))
        for cron, status in (("0 1 * * *", 303), ("0 2 * * *", 409)):
            fields = {"csrf": token, "name": "one", **FORM, "cron": cron}
            assert (await http.post("/new-schedule", data=fields)).status_code == status
        assert clocked.node.schedules.get(("default", "one")).schedule.rule.cron == "0 1 * * *"


@pytest.mark.parametrize(
    "wrong",
    [{"cron": "61 * * * *"}, {"cron": "", "every": ""}, {"payload": "{"}, {"name": ""}, {"timezone": "Mars/Olympus"}],
)
async def test_what_is_wrong_comes_again_with_what_was_typed(clocked: Served, wrong: dict[str, str]) -> None:
    async with clocked.http() as http:
        token = csrf(await http.get("/new-schedule"))
        refused = await http.post("/new-schedule", data={"csrf": token, "name": "bad", **FORM, "key": "typed", **wrong})
        assert refused.status_code == 400
        assert 'role="alert"' in refused.text
        assert 'value="typed"' in refused.text
    assert clocked.node.schedules.find(("default", "bad")) is None


async def test_who_may_not_sees_and_does_nothing(guarded: Served) -> None:
    name = ("default", "private/clock")
    if not guarded.node.queues.exists(name):
        await guarded.node.queues.create(name)
    async with guarded.http("ops") as http:
        token = csrf(await http.get("/new-schedule"))
        fields = {"csrf": token, "name": "secret", **FORM, "queue": name[1]}
        assert (await http.post("/new-schedule", data=fields)).status_code == 303
    async with guarded.http("shop") as http:
        assert 'href="/schedules"' not in (await http.get("/")).text
        token = csrf(await http.get("/"))
        for path in ("/schedules", "/schedules/secret", "/schedules/secret/edit", "/new-schedule"):
            assert (await http.get(path)).status_code == 403, path
        for act in ("run", "pause", "delete", "edit"):
            form = {"csrf": token, "confirm": "secret", **FORM}
            assert (await http.post(f"/schedules/secret/{act}", data=form)).status_code == 403, act
    async with guarded.http("ops", read_only=True) as http:
        page = await http.get("/schedules/secret")
        assert "Run now" not in page.text
        assert (await http.post("/schedules/secret/pause", data={"csrf": csrf(page)})).status_code == 403
    assert not guarded.node.schedules.get(("default", "secret")).schedule.paused


async def test_every_action_with_a_browser(view: Window, clocked: Served) -> None:
    page = view.page
    await page.goto("/schedules")
    await page.get_by_role("link", name="Create a schedule").click()
    await page.fill("#name", "hourly")
    await page.fill("#queue", "clock/work")
    await page.fill("#every", "1h")
    await page.fill("#payload", '{"hour": true}')
    await page.get_by_role("button", name="Create").click()
    await page.get_by_text("The schedule is stored.").wait_for()
    await page.get_by_role("button", name="Run now").click()
    await page.get_by_text("Its message was enqueued.").wait_for()
    assert clocked.node.queues.depth(QUEUE) == 1
    await view.keep("schedule")
    await page.get_by_role("button", name="Pause").click()
    await page.get_by_text("None: it is paused.").wait_for()
    await page.get_by_role("button", name="Resume").click()
    await page.get_by_text("The schedule ticks again.").wait_for()
    await page.get_by_role("link", name="Edit").click()
    assert await page.input_value("#payload") == '{"hour": true}'
    await page.fill("#every", "2h")
    await page.get_by_role("button", name="Save").click()
    await page.get_by_text("every 2h").wait_for()
    await page.get_by_role("link", name="Delete …").click()
    await page.fill("#confirm", "hourly")
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_text("The schedule was deleted.").wait_for()
    assert clocked.node.schedules.find(("default", "hourly")) is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_everybody_can_use_it(view: Window, clocked: Served, axe: str, scheme: str) -> None:
    async with clocked.http() as http:
        token = csrf(await http.get("/new-schedule"))
        await http.post("/new-schedule", data={"csrf": token, "name": "shown", **FORM})
        await http.post("/schedules/shown/run", data={"csrf": token})
    await view.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    for path in ("/schedules", "/schedules/shown", "/schedules/shown/edit", "/schedules/shown/delete"):
        await view.page.set_viewport_size({"width": 1440, "height": 900})
        await view.page.goto(path)
        await check_accessible(view, axe)
        await view.page.set_viewport_size({"width": 390, "height": 844})
        assert await view.page.evaluate("document.documentElement.scrollWidth") <= 390
