"""Consumers, MQTT sessions, retained messages and the audit log."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import aiomqtt
import httpx
import pytest
from playwright.async_api import Browser

from holdfast import __version__, wire
from holdfast.client import Workers, calls, worker
from tests.console.accessibility import check_accessible
from tests.console.rig import Served, csrf, mqtt_client, window
from tests.waiting import PATIENCE_SECONDS, until


async def test_a_stream_is_shown_and_disconnected(mixed: Served) -> None:
    async with mixed.http() as http, httpx.AsyncClient(base_url=mixed.url, timeout=PATIENCE_SECONDS) as other:
        token = {"csrf": csrf(await http.get("/consumers"))}
        async with other.stream("POST", "/api/v1/queues/work/stream?consumer=robot") as stream:
            lines = stream.aiter_lines()
            assert "heartbeat" in await anext(lines)
            page = await http.get("/consumers")
            assert "robot" in page.text
            form = {**token, "queue": "work", "group": "default", "consumer": "robot"}
            assert (await http.post("/consumers/disconnect", data=form)).status_code == 303
            assert "an administrator has ended it" in "".join([line async for line in lines])
        await until(lambda: not mixed.node.inspection.consumers())
        assert (await http.post("/consumers/disconnect", data=form)).status_code == 404


async def test_a_worker_is_shown_with_what_it_works_on(mixed: Served) -> None:
    began, stop = asyncio.Event(), asyncio.Event()

    @worker("work", concurrency=3)
    async def resize(_: dict[str, int]) -> None:
        began.set()
        await stop.wait()

    async with mixed.http() as http, mixed.client() as client:
        sent = await client.send("work", {"n": 1})
        ended = asyncio.Event()
        running = asyncio.create_task(Workers(resize).serve(client, ended))
        await began.wait()
        await until(lambda: mixed.node.workers.in_namespace("default"))
        page = (await http.get("/consumers")).text
        for text in (socket.gethostname(), f"process {os.getpid()}", f"Python {__version__}", client.name, "of 3"):
            assert text in page, text
        announced = wire.WorkerAnnouncement(
            host="elsewhere",
            workers=[wire.WorkerStatus(name="resize", queue="work", jobs=[wire.WorkerJob(id=sent.id or "")])],
        )
        await client.call(calls.announce_workers("another", announced))
        assert f"/queues/work/messages/{sent.id}" in (await http.get("/consumers")).text
        await client.call(calls.withdraw_workers("another"))
        stop.set()
        ended.set()
        assert await running
        assert mixed.node.workers.in_namespace("default") == []


async def test_what_a_consumer_holds_is_released_and_given_to_others(mixed: Served) -> None:
    async with mixed.http() as http, mixed.client() as client:
        await client.send_many("work", ["a", "b", "c"])
        held = await client.lease("work", limit=3, timeout="1h", consumer="stuck")
        page = await http.get(f"/queues/work/messages/{held[0].id}")
        assert "it from stuck" in page.text
        form = {"csrf": csrf(page), "queue": "work", "group": "default", "consumer": "stuck"}
        one = await http.post("/consumers/release", data={**form, "id": held[0].id})
        assert one.headers["location"] == f"/queues/work/messages/{held[0].id}?did=released&count=1"
        rest = await http.post("/consumers/release", data=form)
        assert "2 messages were released" in (await http.get(rest.headers["location"])).text
        assert (await http.post("/consumers/release", data=form)).status_code == 404
        again = await client.receive("work", limit=3)
        assert [message.attempt for message in again] == [1, 1, 1]
        for message in again:
            await message.ack()


async def _delivery(lines: AsyncIterator[str]) -> str:
    """The next delivery of a stream; heartbeats come between."""
    while "heartbeat" in (line := await anext(lines)):
        pass
    return line


async def test_actions_with_a_browser(mixed: Served, browser: Browser) -> None:
    async with (
        window(browser, mixed.url) as view,
        mixed.client() as client,
        httpx.AsyncClient(base_url=mixed.url, timeout=PATIENCE_SECONDS) as other,
        other.stream("POST", "/api/v1/queues/work/stream?consumer=seen") as stream,
    ):
        page, lines = view.page, stream.aiter_lines()
        assert "heartbeat" in await anext(lines)
        await page.goto("/consumers")
        await page.wait_for_selector("html[data-updated]")
        await client.send("work", "x")
        assert await _delivery(lines)
        await page.get_by_role("button", name="Release what").click()  # appears live
        await page.get_by_text("1 message was released").wait_for()
        assert await _delivery(lines)  # again, to the same stream
        await page.get_by_role("button", name="Disconnect").click()
        await page.get_by_text("The connection is being closed.").wait_for()
        assert "an administrator has ended it" in "".join([line async for line in lines])
        for message in await client.receive("work"):
            await message.ack()
        async with mqtt_client(mixed, "kettle") as kettle:
            await kettle.publish("home/boils", "1", qos=1, retain=True)
            await page.goto("/mqtt-retained?find=boils")
            await page.get_by_role("button", name="Delete home/boils").click()
            await page.get_by_text("The retained message was deleted.").wait_for()
            await page.goto("/mqtt-sessions?find=kettle")
            await page.get_by_role("button", name="Disconnect kettle").click()
            await page.get_by_text("The connection is being closed.").wait_for()
            with pytest.raises(aiomqtt.MqttError):
                await _until_disconnected(kettle)


async def test_the_focus_stays_where_it_was_when_a_page_is_updated(mixed: Served, browser: Browser) -> None:
    async with window(browser, mixed.url) as view, mixed.client() as client:
        page = view.page
        await page.goto("/queues/work")
        await page.wait_for_selector("html[data-updated]")
        await client.receive("work", group="g")
        await page.locator("#groups").get_by_role("link", name="Delete … group g").focus()
        await client.receive("work", group="a-first")
        await page.locator("#groups").get_by_role("link", name="Delete … group a-first").wait_for()
        assert await page.evaluate("document.querySelector('#groups').contains(document.activeElement)")


async def test_long_polls_are_shown(mixed: Served) -> None:
    async with mixed.http() as http, mixed.client() as client:
        poll = asyncio.create_task(client.lease("work", wait="60s", consumer="patient"))
        await until(mixed.node.inspection.polls)
        assert "patient" in (await http.get("/consumers")).text
        await client.send("work", "x")
        assert len(await poll) == 1


async def _until_disconnected(client: aiomqtt.Client) -> None:
    async for _ in client.messages:
        pass


async def test_an_mqtt_client_is_shown_and_disconnected(mixed: Served) -> None:
    client = mqtt_client(mixed, "thermometer")
    async with mixed.http() as http:
        form = {"csrf": csrf(await http.get("/mqtt-sessions")), "owner": "", "client": "thermometer"}
        await client.__aenter__()
        await client.subscribe("home/+/temperature", qos=1)
        await client.subscribe("$queue/work", qos=1)
        page = await http.get("/mqtt-sessions?find=thermo")
        for text in ("thermometer", "home/+/temperature", "connected", "127.0.0.1"):
            assert text in page.text, text
        assert "thermometer" in (await http.get("/consumers")).text
        assert (await http.post("/mqtt-sessions/disconnect", data=form)).status_code == 303
        with pytest.raises(aiomqtt.MqttError):
            await _until_disconnected(client)
        assert (await http.post("/mqtt-sessions/disconnect", data=form)).status_code == 404
        with suppress(aiomqtt.MqttError):
            await client.__aexit__(None, None, None)


async def test_retained_messages_are_shown_and_deleted(mixed: Served) -> None:
    async with mixed.http() as http:
        async with mqtt_client(mixed, "publisher") as client:
            await client.publish("home/kitchen", '{"t": 21}', qos=1, retain=True)
        page = await http.get("/mqtt-retained")
        assert "home/kitchen" in page.text
        form = {"csrf": csrf(page), "topic": "home/kitchen"}
        assert (await http.post("/mqtt-retained/delete", data=form)).status_code == 303
        assert "home/kitchen" not in (await http.get("/mqtt-retained")).text
        assert (await http.post("/mqtt-retained/delete", data=form)).status_code == 404


async def test_a_server_without_mqtt_says_so(shop: Served) -> None:
    async with shop.http() as http:
        for path in ("/mqtt-sessions", "/mqtt-retained"):
            page = await http.get(path)
            assert page.status_code == 404
            assert "mqtt.enabled" in page.text


async def test_the_audit_log_shows_who_did_what(guarded: Served) -> None:
    async with guarded.http("ops") as http:
        token = {"csrf": csrf(await http.get("/queues"))}
        await http.post("/queues/no-such-queue/pause", data=token)
        page = await http.get("/audit?act=queue.pause&resource=no-such")
        assert page.text.count("<code>queue.pause</code>") == 1
        assert "queue_not_found" in page.text
        assert "Nothing here" in (await http.get("/audit?who=nobody-of-this-name")).text
    async with guarded.http("shop") as http:
        assert (await http.get("/audit")).status_code == 403
        assert (await http.get("/mqtt-sessions")).status_code == 403
        assert "robot" not in (await http.get("/consumers")).text
        token = {"csrf": csrf(await http.get("/queues")), "queue": "work", "group": "default", "consumer": "x"}
        assert (await http.post("/consumers/disconnect", data=token)).status_code == 403
        assert (await http.post("/consumers/release", data=token)).status_code == 403


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_everybody_can_use_it(mixed: Served, browser: Browser, axe: str, scheme: str) -> None:
    async with window(browser, mixed.url) as view:
        await view.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        async with mqtt_client(mixed, "shown") as client:
            await client.subscribe("a/b")
            await client.publish("kept", "x", qos=1, retain=True)
            for path in ("/consumers", "/mqtt-sessions", "/mqtt-retained", "/audit"):
                await view.page.goto(path)
                await check_accessible(view, axe)
                await view.keep(path.strip("/"))
                await view.page.set_viewport_size({"width": 390, "height": 844})
                assert await view.page.evaluate("document.documentElement.scrollWidth") <= 390
                await view.page.set_viewport_size({"width": 1440, "height": 900})
