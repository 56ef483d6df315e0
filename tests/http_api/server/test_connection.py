"""Connections: requests whose head was parsed and those whose head is known from before are answered alike, and within
limits."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import weakref
from base64 import b64encode
from pathlib import Path

import msgspec
import pytest

from holdfast.auth import keys, tokens
from holdfast.config.secret import SecretText
from holdfast.config.settings import AuthSettings, LimitSettings, RateSettings
from holdfast.core.commands import Draft
from holdfast.errors import StoreFull
from holdfast.http_api.server.head import HEAD_BYTES_MAX, HEADS_MAX, Head, remember
from holdfast.store.faulty import Fault
from tests.auth.rig import settings, user, write_users
from tests.http_api.conftest import config_for
from tests.http_api.server.rig import (
    JOBS,
    PATH,
    Rig,
    apart,
    message,
    post,
    serving,
)
from tests.waiting import PATIENCE_SECONDS, until


async def test_the_second_of_its_kind_is_not_parsed_and_answered_equally(rig: Rig) -> None:
    async with rig.wire() as wire:
        first = await wire.ask(post(message()))
        second = await wire.ask(post(message("a longer text")))
        assert (rig.known, rig.depth()) == (1, 2)
        assert first.status == second.status == 200
        assert set(first.headers) == set(second.headers)
        assert first.headers["x-correlation-id"] != second.headers["x-correlation-id"]
        assert {**first.json, "ids": []} == {**second.json, "ids": []}
        assert rig.front.api.answered["POST", "/api/v1/queues/{name}/messages", 200] == 2
        assert (rig.front.api.working, rig.front.api.buffered_bytes) == (0, 0)


async def test_what_a_message_brings_is_kept(rig: Rig) -> None:
    drafts = [{"text": "a", "key": "k", "priority": 3, "properties": {"p": "q"}}, {"payload": {"n": 1}, "delay": "1h"}]
    async with rig.wire() as wire:
        for _ in range(2):
            assert (await wire.ask(post({"messages": drafts}))).status == 200
        kept = [message for _, message, _ in (await rig.node.inspection.browse(JOBS, 10)).messages]
        assert len(kept) == 4
        assert [(m.payload, m.priority, m.extra) for m in kept[:2]] == [
            (m.payload, m.priority, m.extra) for m in kept[2:]
        ]
    assert rig.known == 1


async def test_requests_of_many_connections_are_one_batch_and_each_is_notified_of_its_own(rig: Rig) -> None:
    await rig.node.queues.create(JOBS, {"max_message_size": 100, "dedup_window": "1h"})
    bodies: list[dict[str, object]] = [
        {"messages": [{"text": "one"}]},
        {"messages": [{"text": "two"}, {"text": "x" * 200}, {"text": "three"}]},
        {"messages": [{"text": "y" * 200}]},
        {"messages": [{"text": "four", "message_id": "same"}]},
        {"messages": [{"text": "five", "message_id": "same"}]},
    ]
    async with rig.wire() as a, rig.wire() as b, rig.wire() as c, rig.wire() as d, rig.wire() as e:
        wires = [a, b, c, d, e]
        for wire in wires:
            await wire.ask(post(message("before")))
        batches = rig.node.cell.commit.batches
        for wire, body in zip(wires, bodies, strict=True):
            wire.writer.write(post(body))
        one, two, three, four, five = [await wire.answer() for wire in wires]
        assert rig.known == 5
        assert rig.node.cell.commit.batches - batches < 5
    assert one.status == two.status == four.status == five.status == 200
    assert two.json["ids"][1] is None
    assert two.json["errors"][0]["index"] == 1
    assert (three.status, three.json["code"]) == (413, "message_too_large")
    assert (four.json["duplicates"], five.json["duplicates"]) == ([], [0])
    assert four.json["ids"] == five.json["ids"]
    texts = {m.id: m.payload for _, m, _ in (await rig.node.inspection.browse(JOBS, 100)).messages}
    assert texts[int(one.json["ids"][0])] == b"one"
    assert [texts[int(two.json["ids"][at])] for at in (0, 2)] == [b"two", b"three"]
    assert texts[int(four.json["ids"][0])] == b"four"


async def test_what_is_too_much_together_is_taken_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = msgspec.structs.replace(config_for(tmp_path), limits=LimitSettings(enqueue_max=3))
    async with serving(config, monkeypatch) as rig, rig.wire() as one, rig.wire() as other:
        for wire in (one, other):
            await wire.ask(post(message()))
        for wire in (one, other):
            wire.writer.write(post({"messages": [{"text": "x"}] * 2}))
        assert [(await wire.answer()).status for wire in (one, other)] == [200, 200]
        assert (rig.known, rig.depth()) == (2, 6)
        refused = await one.ask(post({"messages": [{"text": "x"}] * 4}))
        assert (refused.status, refused.json["code"]) == (400, "limit_exceeded")


async def test_nothing_is_answered_before_it_is_durable(rig: Rig) -> None:
    async with rig.wire() as wire:
        await wire.ask(post(message()))
        rig.fault = Fault(StoreFull(path="data"))
        failed = await wire.ask(post(message()))
        assert rig.known == 1
        assert (failed.status, failed.json["code"]) == (507, "store_full")
        assert failed.headers["content-type"] == "application/problem+json"
        assert failed.json["correlation_id"] == failed.headers["x-correlation-id"]
        assert rig.front.api.working == 0
        refused = await wire.ask(post(message()))
        assert refused.status == 507
        rig.fault = None
        await until(lambda: rig.node.cell.refusal is None)
        assert (await wire.ask(post(message()))).status == 200


async def test_answers_wait_for_the_sync_and_come_in_order(rig: Rig) -> None:
    async with rig.wire() as wire:
        await wire.ask(post(message()))
        rig.may_sync.clear()
        wire.writer.write(post(message("first")))
        await until(lambda: rig.known == 1)
        wire.writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n" + post(message("second")))
        async with rig.wire() as other:
            for _ in range(3):
                assert (await other.ask(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")).status == 200
        assert rig.front.api.working == 1
        heard = asyncio.ensure_future(wire.reader.readexactly(4))
        await asyncio.wait((heard,), timeout=0)
        assert not heard.done()
        rig.may_sync.set()
        assert await heard == b"HTTP"
        answers = [await wire.answer() for _ in range(3)]
        assert [answer.status for answer in answers] == [200] * 3
        assert answers[0].json["ids"]
        assert b"ids" not in answers[1].body
        assert int(answers[0].json["ids"][0]) < int(answers[2].json["ids"][0])


@pytest.mark.parametrize("cut", [1, 40, -5])
async def test_a_request_that_comes_in_parts_is_taken_as_it_is(rig: Rig, cut: int) -> None:
    async with rig.wire() as wire:
        await wire.ask(post(message()))
        data = post(message("in parts"))
        wire.writer.write(data[:cut])
        await wire.writer.drain()
        await asyncio.sleep(0)
        assert (await wire.ask(data[cut:])).status == 200
        assert (await wire.ask(post(message()))).status == 200
        assert rig.depth() == 3
        assert rig.known >= 1


async def test_requests_sent_together_are_answered_in_order(rig: Rig) -> None:
    async with rig.wire() as wire:
        await wire.ask(post(message()))
        wire.writer.write(post(message("a")) + post(message("b")) + post(message("c")))
        ids = [int((await wire.answer()).json["ids"][0]) for _ in range(3)]
        assert ids == sorted(ids)
        for each in "de":
            wire.writer.write(post(message(each)))
        assert [(await wire.answer()).status for _ in range(2)] == [200, 200]
        texts = [m.payload for _, m, _ in (await rig.node.inspection.browse(JOBS, 10)).messages]
        assert texts == [b"x", b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize(
    ("headers", "length"),
    [
        ("connection: close\r\n", "content-length"),
        ("expect: 100-continue\r\n", "content-length"),
        ("idempotency-key: k\r\n", "content-length"),
        ("x-correlation-id: mine\r\n", "content-length"),
        ("x-same: 1\r\nx-same: 2\r\n", "content-length"),
        ("x-long: " + "y" * HEAD_BYTES_MAX + "\r\n", "content-length"),
    ],
)
async def test_heads_that_will_not_come_again_are_always_parsed(rig: Rig, headers: str, length: str) -> None:
    for _ in range(2):
        async with rig.wire() as wire:
            for _ in range(1 if "close" in headers else 2):
                answer = await wire.ask(post(message(), headers=headers, length=length))
                while answer.status == 100:
                    answer = await wire.answer()
                assert answer.status == 200
                if "mine" in headers:
                    assert answer.headers["x-correlation-id"] == "mine"
    assert rig.known == 0


async def test_other_ways_to_send_a_message_are_not_taken_for_json(rig: Rig) -> None:
    start = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\n"
    chunked = start + "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    raw = start + "content-type: text/plain\r\ncontent-length: 2\r\n\r\nhi"
    query = post(b'"hi"', PATH + "?raw=true")
    body = json.dumps(message()).encode()
    async with rig.wire() as wire:
        for _ in range(2):
            assert (await wire.ask(chunked.encode(), b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))).status == 200
            assert (await wire.ask(raw.encode())).status == 200
            assert (await wire.ask(query)).status == 200
        wire.writer.write(b"HEAD /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await wire.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert (await wire.ask(raw.encode())).status == 200
    assert (rig.known, rig.depth()) == (2, 7)
    payloads = [m.payload for _, m, _ in (await rig.node.inspection.browse(JOBS, 10)).messages]
    assert payloads == [b"x", b"hi", b'"hi"', b"x", b"hi", b'"hi"', b"hi"]


async def test_lines_that_end_in_another_way_are_not_remembered(rig: Rig) -> None:
    raw = f"POST {PATH} HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n".encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
    router = rig.front.api.router

    def kept(raw: bytes, headers: list[tuple[bytes, bytes]] = headers) -> tuple[bytes, bytes] | None:
        known = remember(raw, headers, Head("POST", PATH.encode(), headers, router, keep_alive=True))
        return None if known is None else (known.prefix, known.suffix)

    assert kept(raw) == (raw[:-5], raw[-4:])
    assert kept(raw.replace(b"json\r\n", b"json\n")) is None
    assert kept(b"POST / HTTP/1.1\nhost: x\n\n" + raw) is None  # it ended sooner for the parser
    assert kept(raw, [*headers, (b"host", b"x")]) is None
    assert kept(raw.replace(b"1.1", b"1.0")) is None
    assert kept(raw.replace(b": 2", b": 2 ")) is None


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "malformed_request"),
        (b"", 400, "malformed_request"),
        (b'{"messages": []}', 400, "invalid_argument"),
        (b'{"messages": [{"text": 1}]}', 400, "invalid_argument"),
        (b'{"messages": [{"text": "x"}, {"text": 1}], "atomic": true}', 400, "invalid_argument"),
    ],
)
async def test_what_is_wrong_is_told_equally(rig: Rig, body: bytes, status: int, code: str) -> None:
    async with rig.wire() as fresh:
        ordinary = await fresh.ask(post(body))
    async with rig.wire() as wire:
        await wire.ask(post(message()))
        refused = await wire.ask(post(body))
        assert rig.known == 1
        assert (refused.status, refused.json["code"]) == (status, code)
        assert {**refused.json, "correlation_id": ""} == {**ordinary.json, "correlation_id": ""}
        assert (await wire.ask(post(message()))).status == 200
        assert rig.depth() == 2
        assert (rig.front.api.working, rig.front.api.buffered_bytes) == (0, 0)


async def test_an_atomic_request_stores_all_or_nothing(rig: Rig) -> None:
    await rig.node.queues.create(JOBS, {"max_message_size": 100})
    async with rig.wire() as wire:
        await wire.ask(post(message()))
        both = {"messages": [{"text": "x"}, {"text": "y" * 200}], "atomic": True}
        assert (await wire.ask(post(both))).json["code"] == "message_too_large"
        assert rig.depth() == 1
        assert (await wire.ask(post({**both, "messages": [{"text": "x"}] * 2}))).status == 200
        assert (rig.known, rig.depth()) == (2, 3)


async def test_limits_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_for(tmp_path, max_request_bytes=300, max_concurrency=1, max_buffered_bytes=250)
    async with serving(config, monkeypatch) as rig, rig.wire() as wire:
        await wire.ask(post(message()))
        assert (await wire.ask(post(message("y" * 400)))).json["code"] == "request_too_large"
    async with serving(config, monkeypatch) as rig, rig.wire() as wire:
        await wire.ask(post(message()))
        assert (await wire.ask(post(message("y" * 260)))).json["code"] == "overloaded"
        rig.front.api.working = 1
        assert (await wire.ask(post(message()))).json["code"] == "overloaded"
        rig.front.api.working = 0
        assert (await wire.ask(post(message()))).status == 200
        assert rig.depth() == 2


async def test_each_request_with_a_known_head_has_its_own_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(tmp_path, max_request_bytes=300)
    async with serving(config, monkeypatch) as rig, rig.wire() as wire:
        assert (await wire.ask(post(message("y" * 400)))).status == 413
        assert (await wire.ask(post(message()))).status == 200
        head, _ = apart(post(message("y" * 400)))
        assert (await asyncio.wait_for(wire.ask(head), PATIENCE_SECONDS)).status == 413  # before any of its body
        assert rig.known == 2


async def test_a_rate_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = RateSettings(messages_per_second=1, burst=2_000_000)
    config = msgspec.structs.replace(config_for(tmp_path), rates=rates)
    async with serving(config, monkeypatch) as rig, rig.wire() as wire:
        answers = [await wire.ask(post(message())) for _ in range(4)]
        assert rig.known == 3
        assert answers[-1].json["code"] == "rate_limited"
        assert int(answers[-1].headers["retry-after"]) >= 1


async def test_who_calls_is_asked_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = SecretText("s" * 40)
    config = msgspec.structs.replace(config_for(tmp_path), auth=AuthSettings(token_secret=secret))
    async with serving(config, monkeypatch) as rig:
        claims = tokens.Claims(sub="producer", exp=int(time.time()) + 3_600, scope="produce:jobs")
        good = tokens.sign(claims, keys.from_secret(secret))
        headers = f"authorization: Bearer {good}\r\n"
        async with rig.wire() as wire:
            for _ in range(3):
                assert (await wire.ask(post(message(), headers=headers))).status == 200
            assert rig.known == 2
            other = post(message(), "/api/v1/queues/others/messages", headers)
            assert [(await wire.ask(other)).status for _ in range(2)] == [403, 403]
            assert (await wire.ask(post(message()))).status == 401
            assert (await wire.ask(post(message()))).status == 401
            rig.front.api.gate._tokens.clear()  # as when the keys change
            assert (await wire.ask(post(message(), headers=headers))).status == 200
            assert (await wire.ask(post(message(), headers="authorization: Basic eA==\r\n"))).status == 401
            assert (await wire.ask(post(message(), headers="authorization: Basic eA==\r\n"))).status == 401


async def test_leases_and_settlements(rig: Rig) -> None:
    leases, settle = "/api/v1/queues/jobs/leases", "/api/v1/queues/jobs/settle"
    await rig.node.messages.enqueue(JOBS, [Draft(b"1"), Draft(b"2"), Draft(b"3")])
    async with rig.wire() as wire:
        for at in range(3):
            leased = (await wire.ask(post({"wait": "1s"}, leases))).json["deliveries"][0]
            token = {"id": leased["id"], "lease_token": leased["lease_token"]}
            done = await wire.ask(post({"settlements": [token]}, settle))
            assert done.json["settled"] == 1
            assert rig.known == 2 * at
            lost = await wire.ask(post({"settlements": [{"id": leased["id"], "lease_token": "7"}]}, settle))
            assert (lost.status, lost.json["code"]) == (409, "lease_lost")
            rig.known -= 1
        assert (await wire.ask(post({}, leases))).json == {"deliveries": []}
        assert (await wire.ask(post({"wait": "10ms"}, leases))).json == {"deliveries": []}
        wire.writer.write(post({"wait": "30s"}, leases))
        await until(lambda: rig.node.cell.dispatcher.waiters.count == 1)
        await rig.node.messages.enqueue(JOBS, [Draft(b"4")])
        assert (await wire.answer()).json["deliveries"][0]["payload"] == 4


async def test_a_client_that_goes_before_its_answer_gives_back_what_was_leased(rig: Rig) -> None:
    leases = "/api/v1/queues/jobs/leases"
    async with rig.wire() as wire:
        await wire.ask(post({}, leases))
        await rig.node.messages.enqueue(JOBS, [Draft(b"1")])
        rig.connections[0].data_received(post({}, leases))
        assert rig.known == 1
        rig.connections[0].abort()
        await until(lambda: not rig.connections)
    again = await rig.node.messages.lease(JOBS, "default")
    assert [leased.message.payload for leased in again] == [b"1"]


async def test_a_connection_that_is_silent_after_them_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(config_for(tmp_path, keep_alive=1_000_000), monkeypatch) as rig, rig.wire() as wire:
        for _ in range(3):
            await wire.ask(post(message()))
        assert rig.known == 2
        assert await wire.reader.read() == b""


async def test_a_stopping_server_says_so_and_closes(rig: Rig) -> None:
    async with rig.wire() as wire, rig.wire() as other:
        for each in (wire, other):
            await each.ask(post(message()))
        rig.front.api.closing = True
        refused = await wire.ask(post(message()))
        assert (refused.status, refused.json["code"]) == (503, "shutting_down")
        assert refused.headers["connection"] == "close"
        assert await wire.reader.read() == b""
        rig.front.api.closing = False
        (connection,) = rig.connections
        connection.data_received(post(message()))
        connection.shutdown()  # while one is under way
        last = await other.answer()
        assert (last.status, last.headers["connection"]) == (200, "close")
        assert await other.reader.read() == b""
        assert rig.known == 2


async def test_only_so_many_heads_are_remembered(rig: Rig) -> None:
    async with rig.wire() as wire:
        for _ in range(2):
            for number in range(HEADS_MAX + 1):
                assert (await wire.ask(post(message(), f"/api/v1/queues/q{number}/messages"))).status == 200
        (connection,) = rig.connections
        assert len(connection._known_heads) == HEADS_MAX
        assert rig.known == 0


async def test_a_connection_that_was_closed_is_gone_with_all_it_remembered(rig: Rig) -> None:
    """Without anybody looking for cycles: the heads that it remembers may hold tokens."""
    gc.disable()
    try:
        async with rig.wire() as wire:
            for _ in range(2):
                await wire.ask(post(message()))
            await wire.ask(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            (known,) = map(weakref.ref, rig.connections)
        await until(lambda: known() is None)
    finally:
        gc.enable()


NEW_QUEUE = post({"name": "other"}, "/api/v1/queues")


@pytest.mark.parametrize(
    "parts",
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n",),
        (post(message())[:-5], post(message())[-5:]),
        (post(message(), headers="content-encoding: gzip\r\n"),),
        (post(b"{"),),
        (NEW_QUEUE[:-5], NEW_QUEUE[-5:]),
        (NEW_QUEUE.replace(b"other", b"/////")[:-5], NEW_QUEUE[-5:]),
        (post(b"x" * 3_000)[:-1_000], b"x" * 1_000),
    ],
    ids=["no route", "body apart", "refused", "malformed", "coroutine", "coroutine fails", "too large"],
)
async def test_a_request_leaves_nothing_behind_for_the_garbage_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: tuple[bytes, ...]
) -> None:
    """A body of megabytes that refers to itself stays in memory until it runs, which is seldom."""
    async with serving(config_for(tmp_path, max_request_bytes=2_000), monkeypatch) as rig:
        gc.disable()
        try:
            async with rig.wire() as wire:
                answers = [(await wire.ask(*parts)).status for _ in range(2)]
                (known,) = map(weakref.ref, rig.connections)
            assert answers[0] in {200, 201, 400, 404, 413, 415}
            await until(lambda: known() is None)
        finally:
            gc.enable()


# --- passwords ------------------------------------------------------------------------------------------------------


async def test_a_password_is_asked_for_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_users(tmp_path / "users.json", user("shop", "open sesame", "produce:jobs"))
    config = msgspec.structs.replace(config_for(tmp_path), auth=settings(users_file=file))
    async with serving(config, monkeypatch) as rig, rig.wire() as wire:

        async def ask(password: str, path: str = PATH) -> int:
            shown = b64encode(f"shop:{password}".encode()).decode()
            return (await wire.ask(post(message(), path, f"authorization: Basic {shown}\r\n"))).status

        assert [await ask("open sesame") for _ in range(3)] == [200] * 3
        assert rig.known == 2
        assert [await ask("open sesam") for _ in range(2)] == [401] * 2
        others = "/api/v1/queues/others/messages"
        assert [await ask("open sesame", others) for _ in range(2)] == [403] * 2

        write_users(file, user("shop", "another", "produce:jobs"))
        assert [await ask("open sesame") for _ in range(2)] == [401] * 2
        assert [await ask("another") for _ in range(2)] == [200] * 2
        write_users(file, user("shop", "another", "consume:jobs"))
        assert [await ask("another") for _ in range(2)] == [403] * 2
        assert rig.depth() == 5


async def test_a_password_that_was_checked_long_ago_is_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_users(tmp_path / "users.json", user("shop", "open sesame", "produce:jobs"))
    auth = settings(users_file=file, password_cache_age=0)
    config = msgspec.structs.replace(config_for(tmp_path), auth=auth)
    async with serving(config, monkeypatch) as rig, rig.wire() as wire:
        headers = f"authorization: Basic {b64encode(b'shop:open sesame').decode()}\r\n"
        assert [(await wire.ask(post(message(), headers=headers))).status for _ in range(2)] == [200] * 2
        assert (rig.known, rig.depth()) == (1, 2)
