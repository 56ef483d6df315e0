"""Consumers, MQTT sessions, retained messages and the audit log."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import aiomqtt
import httpx
import pytest
from playwright.async_api import Browser

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
