"""GET and HEAD change nothing, with one exception, which is not for browsers; what follows a body says nothing."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from holdfast.auth import keys, tokens
from holdfast.auth.tokens import Claims
from holdfast.broker.node import Node
from holdfast.core.records import Table
from holdfast.http_api.server.app import ROUTES
from holdfast.http_api.server.routes import Endpoint
from tests.auth import rig as auth_rig
from tests.http_api.conftest import config_for
from tests.http_api.server.rig import PATH, Rig, serving

READING = [endpoint for routes in ROUTES for endpoint in routes.endpoints if endpoint.method == "GET"]
END = b"\xff" * 40
KEY = keys.generate("HS256")


def _path(endpoint: Endpoint, names: dict[str, str]) -> str:
    return re.sub(r"{(\w+)}", lambda match: names.get(match[1], "1"), endpoint.path)


def stored(node: Node) -> dict[Table, list[tuple[bytes, bytes]]]:
    return {table: node.store.scan(table, b"", END, 10_000) for table in Table}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("endpoint", READING, ids=lambda endpoint: endpoint.path)
async def test_reading_changes_nothing(http: httpx.AsyncClient, node: Node, endpoint: Endpoint, method: str) -> None:
    """Neither what there is nor what there is not: no queue and no group appears, and nothing is leased."""
    queue = "/api/v1/queues/jobs"
    enqueued = await http.post(f"{queue}/messages", json={"messages": [{"text": "x"}, {"text": "y"}]})
    message_id = enqueued.json()["ids"][0]
    await http.put(f"{queue}/groups/work", json={"kind": "lease"})
    await http.put(f"{queue}/groups/log", json={"kind": "cursor"})
    await node.cell.commit.durable()
    before = stored(node)
    for name, group in (("jobs", "work"), ("jobs", "log"), ("jobs", "new"), ("new", "new")):
        names = {"name": name, "group": group, "id": message_id, "partition": "0"}
        headers = {"Sec-Fetch-Site": "cross-site"} if endpoint.changes else {}
        query = {"namespace": "default", "topic": name, "group": group, "wait": "0"}
        given = {key: value for key, value in query.items() if key in _fields(endpoint)}
        answer = await http.request(method, _path(endpoint, names), params=given, headers=headers)
        assert answer.status_code < 500
        assert answer.status_code != 400 or "wait" in given, answer.text
    await node.cell.commit.durable()
    assert stored(node) == before


def _fields(endpoint: Endpoint) -> tuple[str, ...]:
    return endpoint.query.__struct_fields__ if endpoint.query is not None else ()


# --- the seed's GET that leases --------------------------------------------------------------------------------------

PLACE = {"namespace": "default", "topic": "jobs"}
BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:52.0) Gecko/20100101 Firefox/52.0"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},  # typed, or fetched ahead of a click
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Referer": "http://evil.example/page"},
        {"Referer": "http://localhost.evil.example/"},
        {"User-Agent": BROWSER},  # an image in a page, by a browser that does not say where the page is from
        {"Sec-Fetch-Site": "same-origin", "Referer": "http://evil.example/"},
    ],
    ids=str,
)
async def test_a_browser_cannot_dequeue(http: httpx.AsyncClient, node: Node, headers: dict[str, str]) -> None:
    await http.post("/enqueue", json=[{**PLACE, "payload": "eA=="}])
    answer = await http.get("/dequeue", params=PLACE, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "cross_origin")
    assert (await http.head("/dequeue", params=PLACE)).status_code == 405
    taken = await http.get("/dequeue", params=PLACE)
    assert len(taken.json()) == 1


@pytest.mark.parametrize("same", ["Origin", "Referer", "Sec-Fetch-Site"])
async def test_a_page_of_our_own_can_dequeue(http: httpx.AsyncClient, same: str) -> None:
    await http.post("/enqueue", json=[{**PLACE, "payload": "eA=="}])
    own = {
        "Origin": str(http.base_url).rstrip("/"),
        "Referer": f"{http.base_url}/docs",
        "Sec-Fetch-Site": "same-origin",
    }
    answer = await http.get("/dequeue", params=PLACE, headers={"User-Agent": BROWSER, same: own[same]})
    assert len(answer.json()) == 1


async def test_a_page_with_a_token_cannot_dequeue_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key_file = auth_rig.write_keys(tmp_path / "keys.json", KEY.private())
    config = replace(config_for(tmp_path), auth=auth_rig.settings(key_file=key_file))
    async with serving(config, monkeypatch) as rig, rig.wire() as wire:
        head = (
            b"GET /dequeue?namespace=default&topic=jobs HTTP/1.1\r\nhost: localhost\r\n"
            b"authorization: Bearer %b\r\n%b\r\n"
        )
        assert (await wire.ask(head % (token(rig), b"origin: http://evil.example\r\n"))).status == 403
        assert (await wire.ask(head % (token(rig), b""))).status == 200


# --- trailers -------------------------------------------------------------------------------------------------------


def token(rig: Rig) -> bytes:
    claims = Claims(sub="shop", scope="produce:# consume:#", exp=rig.node.clock() // 1_000_000 + 600)
    return tokens.sign(claims, KEY).encode()


@pytest.mark.parametrize("split", ["together", "trailer apart", "body apart", "byte by byte"])
async def test_what_follows_a_body_does_not_authenticate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    key_file = auth_rig.write_keys(tmp_path / "keys.json", KEY.private())
    config = replace(config_for(tmp_path), auth=auth_rig.settings(key_file=key_file))
    async with serving(config, monkeypatch) as rig, rig.wire() as wire:
        body = b'{"messages":[{"text":"x"}]}'
        head = (
            b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\ntrailer: authorization\r\n\r\n" % PATH.encode()
        )
        chunk = b"%x\r\n%b\r\n" % (len(body), body)
        trailer = b"0\r\nauthorization: Bearer %b\r\n\r\n" % token(rig)
        parts = {
            "together": [head + chunk + trailer],
            "trailer apart": [head + chunk, trailer],
            "body apart": [head, chunk + trailer],
            "byte by byte": [bytes([byte]) for byte in head + chunk + trailer],
        }[split]
        assert (await wire.ask(*parts)).status == 401
        assert rig.depth() == 0
        good = head.replace(b"trailer: authorization", b"authorization: Bearer %b" % token(rig))
        foreign = b"0\r\norigin: http://evil.example\r\nholdfast-priority: 3\r\n\r\n"
        assert (await wire.ask(good + chunk + foreign)).status == 200
        assert rig.depth() == 1
