"""Dead letters: clusters, examples, redrive, undo, jobs, purge."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from holdfast.console.redrives import PacedRedrive
from tests.console.accessibility import check_accessible
from tests.console.rig import Served, Window, csrf
from tests.waiting import until

SOURCE, DEAD = "letters", "dlq/letters"


@pytest_asyncio.fixture(loop_scope="session")
async def dead(shop: Served) -> AsyncIterator[Served]:
    """Three dead letters of one cause and one of another."""
    async with shop.client() as client:
        await client.create_queue(SOURCE)
        for index in range(4):
            await client.send(SOURCE, {"n": index})
        for index, message in enumerate(await client.receive(SOURCE, limit=4)):
            await message.reject("no template" if index == 3 else f"timeout after {17 + index} ms")
    yield shop
    for name in (SOURCE, DEAD):
        await shop.node.queues.delete(("default", name))


async def page_of(served: Served) -> str:
    async with served.http() as http:
        return (await http.get("/dead-letters/dlq%2Fletters")).text


async def test_dead_queues_are_listed_with_what_they_take(dead: Served) -> None:
    async with dead.http() as http:
        text = (await http.get("/dead-letters")).text
    assert "dlq/letters" in text
    assert 'href="/queues/letters"' in text


async def test_dead_letters_of_one_cause_are_counted_together(dead: Served) -> None:
    text = await page_of(dead)
    assert "4 dead letters" in text
    assert "2 causes" in text
    assert text.index("timeout after &lt;n&gt; ms") < text.index("no template")
    assert "OBJECT&lt;n: NUMBER&gt;" in text
    assert len(re.findall(r"/queues/dlq%2Fletters/messages/\d+", text)) == 4


async def test_a_filter_leaves_the_others_out(dead: Served) -> None:
    async with dead.http() as http:
        assert "1 dead letter," in (await http.get("/dead-letters/dlq%2Fletters?error=TEMPLATE")).text
        assert "None fits" in (await http.get("/dead-letters/dlq%2Fletters?reason=expired")).text


async def test_a_cluster_is_tried_redriven_and_undone(dead: Served) -> None:
    queues = dead.node.queues
    async with dead.http() as http:
        page = await http.get("/dead-letters/dlq%2Fletters")
        token = csrf(page)
        path = re.findall(r'action="(/dead-letters/dlq%2Fletters/clusters/[0-9a-f]{16}/redrive)"', page.text)[0]
        form = {"csrf": token, "source": SOURCE}
        tried = await http.post(path, data={**form, "few": "1"})
        assert tried.headers["location"].endswith("?did=redriven&count=1")
        assert queues.depth(("default", DEAD)) == 3
        await http.post(path, data={**form, "few": "0"})
        assert queues.depth(("default", DEAD)) == 1
        assert queues.depth(("default", SOURCE)) == 3
        gone = await http.post(path, data=form)
        assert gone.status_code == 404
        assert "are gone" in gone.text
        for undo in re.findall(r'action="(/dead-letters/dlq%2Fletters/audits/[^"]*/undo)"', await page_of(dead)):
            assert (await http.post(undo, data={"csrf": token})).status_code == 303
        assert queues.depth(("default", DEAD)) == 4
        assert queues.depth(("default", SOURCE)) == 0


async def test_a_job_counts_first_and_moves_then(dead: Served) -> None:
    queues = dead.node.queues
    async with dead.http() as http:
        token = {"csrf": csrf(await http.get("/dead-letters"))}
        path = "/dead-letters/dlq%2Fletters/redrive"
        counted = await http.post(path, data={**token, "act": "count", "error": "timeout"})
        assert counted.headers["location"].endswith("did=counted&count=3")
        assert queues.depth(("default", DEAD)) == 4
        for wrong in ({"rate": "fast"}, {"limit": "-1"}, {"to": "no/such/queue"}):
            assert (await http.post(path, data={**token, "act": "start", **wrong})).status_code in (400, 404)
        assert queues.depth(("default", DEAD)) == 4
        await http.post(path, data={**token, "act": "start", "error": "timeout", "rate": "1000"})
        job = dead.node.redrive_jobs.of(("default", DEAD))[0]
        await job.ended.wait()
        assert job.progress.moved == 3
        assert queues.depth(("default", DEAD)) == 1
        cancelled = await http.post(f"/dead-letters/dlq%2Fletters/redrives/{job.id}/cancel", data=token)
        assert cancelled.status_code == 303
        assert "done</span>" in await page_of(dead)


async def test_purge_wants_the_name_and_obeys_the_filter(dead: Served) -> None:
    async with dead.http() as http:
        token = {"csrf": csrf(await http.get("/dead-letters"))}
        path = "/dead-letters/dlq%2Fletters/purge"
        assert "template" in (await http.get(f"{path}?error=template")).text
        assert (await http.post(path, data=token)).status_code == 400
        purged = await http.post(path, data={**token, "confirm": DEAD, "error": "template"})
        assert purged.headers["location"].endswith("did=dead-purged&count=1")
    assert dead.node.queues.depth(("default", DEAD)) == 3


async def test_one_dead_letter_is_redriven(dead: Served) -> None:
    dead_letter = (await dead.node.inspection.browse(("default", DEAD), 1)).messages[0][1].id
    async with dead.http() as http:
        token = {"csrf": csrf(await http.get("/dead-letters"))}
        await http.post(f"/dead-letters/dlq%2Fletters/{dead_letter}/retry", data=token)
    assert dead.node.queues.depth(("default", DEAD)) == 3


async def test_who_may_not_sees_and_does_nothing(guarded: Served) -> None:
    for name in ("dlq/private/q", "dlq/shop/q"):
        if not guarded.node.queues.exists(("default", name)):
            await guarded.node.queues.create(("default", name), {"dlq.enabled": False})
    async with guarded.http("shop") as http:
        assert "private" not in (await http.get("/dead-letters")).text
        token = {"csrf": csrf(await http.get("/dead-letters")), "confirm": "dlq/private/q"}
        assert (await http.get("/dead-letters/dlq%2Fprivate%2Fq")).status_code == 403
        for act in ("purge", "redrive", "clusters/0123456789abcdef/redrive", "1/retry", "audits/x/undo"):
            assert (await http.post(f"/dead-letters/dlq%2Fprivate%2Fq/{act}", data=token)).status_code == 403, act


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_everybody_can_use_it(view: Window, axe: str, scheme: str) -> None:
    await view.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    for path in ("/dead-letters", "/dead-letters/dlq%2Fshop%2Fmails", "/dead-letters/dlq%2Fshop%2Fmails/purge"):
        await view.page.goto(path)
        await check_accessible(view, axe)


async def test_progress_is_live(view: Window, dead: Served) -> None:
    page = view.page
    await page.goto("/dead-letters/dlq%2Fletters")
    await page.wait_for_selector("html[data-updated]")
    await view.keep("dead-letters")
    await page.get_by_role("button", name="Redrive", exact=True).click()
    await page.wait_for_function("() => document.querySelector('#jobs').innerText.includes('done')")
    await page.set_viewport_size({"width": 390, "height": 844})
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390


# --- at a pace --------------------------------------------------------------------------------------------------------


async def cluster_of(http: httpx.AsyncClient) -> tuple[str, dict[str, str]]:
    """The largest cluster's address, and what a form of it has."""
    page = await http.get("/dead-letters/dlq%2Fletters")
    path = re.findall(r'action="(/dead-letters/dlq%2Fletters/clusters/[0-9a-f]{16})/redrive"', page.text)[0]
    return path, {"csrf": csrf(page), "source": SOURCE}


def run_of(served: Served) -> PacedRedrive:
    return served.console.redrives.of("default", DEAD)[0]


async def work_off(served: Served, count: int, *, reject: bool = False) -> None:
    """Work on so many messages of the source queue, as they come."""
    async with served.client() as client:
        for _ in range(count):
            [message] = await client.receive(SOURCE, limit=1, wait="60s")
            await (message.reject("again") if reject else message.ack())


async def test_canaries_go_first_and_the_rest_follows_when_they_are_done(dead: Served) -> None:
    queues = dead.node.queues
    async with dead.http() as http:
        path, form = await cluster_of(http)
        begun = await http.post(f"{path}/paced", data={**form, "canaries": "1", "wait": "10m", "rate": "100"})
        assert "did=redriving" in begun.headers["location"]
        run = run_of(dead)
        await until(lambda: run.moved == 1)
        page = (await http.get("/dead-letters/dlq%2Fletters")).text
        assert "waits for canaries" in page
        assert "1 of 3" in page
        assert queues.depth(("default", SOURCE)) == 1
        await work_off(dead, 1)
        await until(lambda: not run.running)
        assert (run.state, run.moved, run.problem) == ("done", 3, "")
        assert queues.depth(("default", SOURCE)) == 2
        undo = re.findall(rf'action="(/dead-letters/dlq%2Fletters/audits/{run.id}/undo)"', await page_of(dead))
        undone = await http.post(undo[0], data=form)
        assert undone.headers["location"].endswith("?did=undone&count=2")
        assert queues.depth(("default", SOURCE)) == 0


async def test_a_canary_that_dies_again_stops_the_rest(dead: Served) -> None:
    async with dead.http() as http:
        path, form = await cluster_of(http)
        await http.post(f"{path}/paced", data={**form, "canaries": "2", "wait": "10m"})
        run = run_of(dead)
        await until(lambda: run.moved == 2)
        await work_off(dead, 1, reject=True)
        await until(lambda: not run.running)
        assert (run.state, run.moved) == ("stopped", 2)
        assert "1 of 2 canaries died again" in await page_of(dead)
        assert dead.node.queues.depth(("default", DEAD)) == 3  # the other cause, the third, and the canary


async def test_canaries_that_take_too_long_stop_the_rest(dead: Served) -> None:
    async with dead.http() as http:
        path, form = await cluster_of(http)
        await http.post(f"{path}/paced", data={**form, "canaries": "1", "wait": "1ms"})
        run = run_of(dead)
        await until(lambda: not run.running)
        assert (run.state, run.moved) == ("stopped", 1)
        assert "not done in time" in run.problem


async def test_a_paced_redrive_is_cancelled(dead: Served) -> None:
    async with dead.http() as http:
        path, form = await cluster_of(http)
        await http.post(f"{path}/paced", data={**form, "canaries": "1", "wait": "1d"})
        run = run_of(dead)
        cancel = f"/dead-letters/dlq%2Fletters/paced/{run.id}/cancel"
        assert (await http.post(cancel, data=form)).status_code == 303
        assert run.state == "cancelled"
        assert (await http.post(cancel, data=form)).status_code == 404


async def test_a_queue_that_is_full_is_waited_for(dead: Served) -> None:
    async with dead.http() as http, dead.client() as client:
        await client.update_queue(SOURCE, {"max_depth": 1})
        path, form = await cluster_of(http)
        await http.post(f"{path}/paced", data=form)
        run = run_of(dead)
        await until(lambda: run.moved == 1)
        await work_off(dead, 3)
        await until(lambda: not run.running)
        assert (run.state, run.moved, run.stayed) == ("done", 3, 0)


@pytest.mark.parametrize(
    "wrong",
    [{"rate": "fast"}, {"rate": "nan"}, {"rate": "-1"}, {"canaries": "x"}, {"canaries": "1001"}, {"wait": "2d"}],
)
async def test_a_pace_that_is_none_is_refused(dead: Served, wrong: dict[str, str]) -> None:
    async with dead.http() as http:
        path, form = await cluster_of(http)
        refused = await http.post(f"{path}/paced", data={**form, **wrong})
        assert refused.status_code == 400
        assert "Nothing was changed" in refused.text
    assert dead.node.queues.depth(("default", DEAD)) == 4


async def test_a_cluster_is_purged_alone(dead: Served) -> None:
    async with dead.http() as http:
        path, form = await cluster_of(http)
        which = {"fingerprint": path.rpartition("/")[2], "source": SOURCE}
        asked = await http.get("/dead-letters/dlq%2Fletters/purge", params=which)
        assert "3 dead letters" in asked.text
        purged = await http.post("/dead-letters/dlq%2Fletters/purge", data={**form, **which, "confirm": DEAD})
        assert purged.headers["location"].endswith("did=dead-purged&count=3")
    assert dead.node.queues.depth(("default", DEAD)) == 1


async def test_a_filter_chooses_by_age(dead: Served) -> None:
    async with dead.http() as http:
        assert "None fits" in (await http.get("/dead-letters/dlq%2Fletters?older_than=1h")).text
        assert "4 dead letters" in (await http.get("/dead-letters/dlq%2Fletters?newer_than=1h")).text
        assert (await http.get("/dead-letters/dlq%2Fletters?newer_than=soon")).status_code == 400


async def test_every_action_with_a_browser(view: Window, dead: Served) -> None:
    page, queues = view.page, dead.node.queues
    await page.goto("/dead-letters")
    await page.get_by_role("link", name="dlq/letters", exact=True).click()
    cluster = page.locator(".cluster").first
    await cluster.get_by_role("button", name="Try one").click()
    await page.get_by_text("1 dead letter was moved back.").wait_for()
    await page.locator("#jobs").get_by_role("button", name="Undo").first.click()
    await page.get_by_text("1 dead letter was moved to the dead queue again.").wait_for()
    await page.get_by_role("button", name="Dry run: only count").click()
    await page.get_by_text("Dry run: 4 dead letters would be moved.").wait_for()
    cluster = page.locator(".cluster").first
    await cluster.get_by_text("At a rate, or canaries first").click()
    await cluster.get_by_label("Canaries").fill("1")
    await cluster.get_by_label("They may take").fill("10m")
    await cluster.get_by_role("button", name="Begin").click()
    await page.locator("#jobs").get_by_text("waits for canaries").wait_for()
    await page.locator("#jobs").get_by_text("1 of 3").wait_for()
    await view.keep("dead-letters-canaries")
    await page.locator("#jobs").get_by_role("button", name="Cancel").click()
    await page.get_by_text("The redrive was cancelled.").wait_for()
    await page.locator(".cluster").first.get_by_role("button", name="Redrive 2").click()
    await page.get_by_text("2 dead letters were moved back.").wait_for()
    await page.locator(".cluster dd a.mono").first.click()
    await page.get_by_role("button", name="Redrive").click()
    await page.get_by_text("1 dead letter was moved back.").wait_for()
    assert queues.depth(("default", SOURCE)) == 4
    await work_off(dead, 1, reject=True)
    await page.reload()
    await page.get_by_role("link", name="Purge …", exact=True).click()
    await page.fill("#confirm", DEAD)
    await page.get_by_role("button", name="Purge").click()
    await page.get_by_text("1 dead letter was removed.").wait_for()
