"""Dead letters: clusters, examples, redrive, undo, jobs, purge."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.console.accessibility import check_accessible
from tests.console.rig import Served, Window, csrf

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
