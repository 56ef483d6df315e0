"""Long polls and streams: waiting for deliveries, and what becomes of them when the client goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from holdfast.auth.gate import Gate
from holdfast.broker.node import Node
from holdfast.core.commands import Draft
from holdfast.http_api import HttpFront
from holdfast.http_api.server.app import ANONYMOUS
from holdfast.http_api.server.body import ClientDisconnected
from holdfast.store import open_store
from tests.http_api.conftest import config_for
from tests.waiting import PATIENCE_SECONDS, until

JOBS = ("default", "jobs")
QUEUE = "/api/v1/queues/jobs"


async def lines(response: httpx.Response) -> AsyncIterator[dict[str, object]]:
    async for line in response.aiter_lines():
        yield json.loads(line)


async def test_a_long_poll_is_answered_when_a_message_comes(http: httpx.AsyncClient, node: Node) -> None:
    poll = asyncio.create_task(http.post(f"{QUEUE}/leases", json={"wait": "30s", "limit": 5}))
    await until(lambda: node.inspection.waiting(JOBS) == 1)
    await node.messages.enqueue(JOBS, [Draft(b"now")])
    [delivery] = (await poll).json()["deliveries"]
    assert delivery["text"] == "now"


@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n"])
async def test_a_payload_of_several_lines_is_one_line_of_a_stream(http: httpx.AsyncClient, ending: bytes) -> None:
    payload = b'{"a":' + ending + b' "b\\r\\n"}'
    headers = {"content-type": "application/json"}
    await http.post(f"{QUEUE}/messages", params={"raw": "true"}, content=payload, headers=headers)
    for accept in ("text/event-stream", "application/x-ndjson"):
        url = f"{QUEUE}/stream?limit=1"
        async with http.stream("POST", url, headers={"accept": accept}) as answer:
            content = (await answer.aread()).replace(b"\r", b"\n")
        [line] = [line for line in content.split(b"\n") if b"lease_token" in line]
        shown = json.loads(line.removeprefix(b"data: "))
        assert shown.get("delivery", shown)["payload"] == {"a": "b\r\n"}


async def test_a_long_poll_that_finds_nothing_ends_empty(http: httpx.AsyncClient) -> None:
    assert (await http.post(f"{QUEUE}/leases", json={"wait": "10ms"})).json() == {"deliveries": []}


async def test_a_client_that_goes_while_it_waits_takes_nothing_with_it(http: httpx.AsyncClient, node: Node) -> None:
    poll = asyncio.create_task(http.post(f"{QUEUE}/leases", json={"wait": "30s"}))
    await until(lambda: node.inspection.waiting(JOBS) == 1)
    poll.cancel()
    await until(lambda: not node.inspection.waiting(JOBS))
    await node.messages.enqueue(JOBS, [Draft(b"kept")])
    [delivery] = (await http.post(f"{QUEUE}/leases")).json()["deliveries"]
    assert delivery["attempt"] == 1


async def test_what_is_found_in_the_very_moment_in_which_the_client_goes_is_given_back(front: HttpFront) -> None:
    class Leaving:
        principal = ANONYMOUS
        disconnected = asyncio.get_running_loop().create_future()

    Leaving.disconnected.set_result(None)

    async def work() -> list[str]:
        return ["a delivery"]

    given_back: list[str] = []

    async def undo(found: list[str]) -> None:
        given_back.extend(found)

    with pytest.raises(ClientDisconnected):
        await front.api.until_disconnect(Leaving(), work(), undo)  # type: ignore[arg-type]
    assert given_back == ["a delivery"]


async def test_a_client_that_pipelines_and_goes_takes_nothing_with_it(front: HttpFront, node: Node) -> None:
    _, writer = await asyncio.open_connection(*front.address)
    body = b'{"wait":"30s"}'
    poll = b"POST /api/v1/queues/jobs/leases HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )
    writer.write(poll + b"GET /api/v1/queues HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await until(lambda: node.inspection.waiting(JOBS) == 1)
    writer.close()
    await until(lambda: not node.inspection.waiting(JOBS))


async def test_a_stream_gives_one_line_a_delivery_and_no_more_than_its_credit(
    http: httpx.AsyncClient, node: Node
) -> None:
    await node.messages.enqueue(JOBS, [Draft(b"%d" % n) for n in range(5)])
    async with http.stream("POST", f"{QUEUE}/stream", params={"credit": 2, "consumer": "me"}) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        stream = lines(response)
        assert "heartbeat" in await anext(stream)
        first = [(await anext(stream))["delivery"] for _ in range(2)]
        assert [item["payload"] for item in first] == [0, 1]  # type: ignore[index]
        assert [(member.name, len(member.in_flight)) for member in node.inspection.consumers(JOBS)] == [("me", 2)]
        await http.post(
            f"{QUEUE}/settle",
            json={"settlements": [{"id": item["id"], "lease_token": item["lease_token"]} for item in first]},  # type: ignore[index]
        )
        second = [(await anext(stream))["delivery"] for _ in range(2)]
        assert [item["payload"] for item in second] == [2, 3]  # type: ignore[index]
    await until(lambda: not node.inspection.consumers(JOBS))
    rest = (await http.post(f"{QUEUE}/leases", json={"limit": 9})).json()["deliveries"]
    assert [(item["payload"], item["attempt"]) for item in rest] == [(2, 1), (3, 1), (4, 1)]


async def test_a_stream_can_spend_the_attempt_of_what_its_client_had_when_it_went(
    http: httpx.AsyncClient, node: Node
) -> None:
    await node.queues.create(JOBS, {"retry.initial_backoff": "0s"})
    await node.messages.enqueue(JOBS, [Draft(b"poison")])
    async with http.stream("POST", f"{QUEUE}/stream", params={"gone": "fail"}) as response:
        stream = lines(response)
        await anext(stream)
        await anext(stream)
    [again] = (await http.post(f"{QUEUE}/leases", json={"wait": "30s"})).json()["deliveries"]
    assert again["attempt"] == 2


async def test_server_sent_events(http: httpx.AsyncClient, node: Node) -> None:
    await node.messages.enqueue(JOBS, [Draft(b'{\n"a": 1\n}')])
    headers = {"accept": "text/event-stream"}
    async with http.stream("POST", f"{QUEUE}/stream", params={"limit": 1}, headers=headers) as response:
        assert response.headers["content-type"] == "text/event-stream"
        text = (await response.aread()).decode()
    beat, delivery, end = text.strip().split("\n\n")
    assert beat == ": heartbeat"
    event, number, data = delivery.split("\n")
    assert event == "event: delivery"
    assert json.loads(data.removeprefix("data: "))["payload"] == {"a": 1}
    assert number.removeprefix("id: ") == json.loads(data.removeprefix("data: "))["id"]
    assert end.startswith("event: end\ndata: {")


async def test_a_second_stream_of_a_consumer_takes_over(http: httpx.AsyncClient, node: Node) -> None:
    async with http.stream("POST", f"{QUEUE}/stream", params={"consumer": "me"}) as old:
        old_lines = lines(old)
        await anext(old_lines)
        async with http.stream("POST", f"{QUEUE}/stream", params={"consumer": "me"}) as new:
            new_lines = lines(new)
            await anext(new_lines)
            assert (await anext(old_lines))["end"]["code"] == "stream_ended"  # type: ignore[index]
            await node.messages.enqueue(JOBS, [Draft(b"x")])
            assert "delivery" in await anext(new_lines)


@pytest.mark.parametrize(("gone", "attempt"), [("release", 1), ("fail", 2)])
async def test_a_stream_that_is_taken_over_leaves_no_leases(
    http: httpx.AsyncClient, node: Node, gone: str, attempt: int
) -> None:
    await node.queues.create(JOBS, {"retry.initial_backoff": "0s"})
    await node.messages.enqueue(JOBS, [Draft(b"x")])
    query: dict[str, str | int] = {"consumer": "me", "credit": 1, "gone": gone}
    async with http.stream("POST", f"{QUEUE}/stream", params=query) as old:
        old_lines = lines(old)
        await anext(old_lines)
        assert "delivery" in await anext(old_lines)
        async with http.stream("POST", f"{QUEUE}/stream", params=query) as new:
            new_lines = lines(new)
            while "delivery" not in (line := await anext(new_lines)):
                assert "heartbeat" in line
            assert line["delivery"]["attempt"] == attempt  # type: ignore[index]


@pytest_asyncio.fixture(loop_scope="session")
async def own(tmp_path: Path) -> AsyncIterator[tuple[Node, HttpFront]]:
    """A node and a front that a test stops itself, with a quick heartbeat and small streams."""
    config = config_for(tmp_path, heartbeat=100_000, stream_bytes=2_500)
    store = open_store("memory", tmp_path)
    node = Node(config, store)
    await node.start()
    front = HttpFront(config, node, Gate(config, node.clock))
    await front.start()
    yield node, front
    await front.stop()
    await node.stop()
    store.close()


async def test_a_silent_stream_carries_heartbeats_and_ends_when_its_queue_does(own: tuple[Node, HttpFront]) -> None:
    node, front = own
    async with (
        httpx.AsyncClient(base_url=front.url, timeout=PATIENCE_SECONDS) as http,
        http.stream("POST", f"{QUEUE}/stream") as response,
    ):
        stream = lines(response)
        assert "heartbeat" in await anext(stream)
        assert "heartbeat" in await anext(stream)
        await node.queues.delete(JOBS)
        codes = [line["end"]["code"] async for line in stream if "end" in line]  # type: ignore[index]
        assert codes == ["queue_not_found"]


async def test_a_stream_learns_immediately_that_its_queue_or_group_was_deleted(
    http: httpx.AsyncClient, node: Node
) -> None:
    for delete, code in (
        (lambda: node.groups.delete(JOBS, "default"), "stream_ended"),
        (lambda: node.queues.delete(JOBS), "queue_not_found"),
    ):
        async with http.stream("POST", f"{QUEUE}/stream") as response:
            stream = lines(response)
            await anext(stream)
            await delete()
            end = await anext(stream)  # the heartbeat is many seconds away
            assert end["end"]["code"] == code  # type: ignore[index]
        assert not [member for member in node.cell.dispatcher.members.all_members() if member.group[0] == JOBS]


async def test_a_stream_has_no_more_bytes_unsettled_than_it_may(own: tuple[Node, HttpFront]) -> None:
    node, front = own
    async with httpx.AsyncClient(base_url=front.url, timeout=PATIENCE_SECONDS) as http:
        await node.messages.enqueue(JOBS, [Draft(b"x" * 1_000) for _ in range(5)])
        async with http.stream("POST", f"{QUEUE}/stream", params={"credit": 100}) as response:
            stream = lines(response)
            await anext(stream)
            held = (await anext(stream))["delivery"]
            await anext(stream)
            assert "heartbeat" in await anext(stream), "a third would be too much"
            assert node.inspection.current_stats(JOBS).groups[0].leased == 2
            assert isinstance(held, dict)
            settlement = {"id": held["id"], "lease_token": held["lease_token"]}
            await http.post(f"{QUEUE}/settle", json={"settlements": [settlement]})
            while "delivery" not in await anext(stream):
                pass
            assert node.inspection.current_stats(JOBS).groups[0].leased == 2


async def test_while_a_server_stops_what_is_under_way_is_finished_and_what_is_new_gets_503(
    own: tuple[Node, HttpFront],
) -> None:
    _, front = own
    body = b'{"messages": [{"text": "last"}]}'
    reader, writer = await asyncio.open_connection(*front.address)
    writer.write(
        b"POST /api/v1/queues/jobs/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(body), body[:10])
    )
    await until(lambda: front.api.working == 1)
    stopping = asyncio.create_task(front.stop())
    await until(lambda: front.api.closing)
    async with httpx.AsyncClient(base_url=front.url, timeout=PATIENCE_SECONDS) as http:
        refused = await http.get("/api/v1/queues")
        assert (refused.status_code, refused.json()["code"]) == (503, "shutting_down")
        assert refused.headers["retry-after"] == "1"
        ready = (await http.get("/readyz")).json()
        assert (ready["ok"], ready["problems"]) == (False, ["shutting down"])
        assert (await http.get("/livez")).status_code == 200
    writer.write(body[10:])
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    writer.close()
    await stopping


async def test_a_stop_ends_long_polls_immediately_and_notifies_streams(own: tuple[Node, HttpFront]) -> None:
    node, front = own
    async with httpx.AsyncClient(base_url=front.url, timeout=PATIENCE_SECONDS) as http:
        poll = asyncio.create_task(http.post(f"{QUEUE}/leases", json={"wait": "10m"}))
        await until(lambda: node.inspection.waiting(JOBS) == 1)
        async with http.stream("POST", f"{QUEUE}/stream", params={"group": "other"}) as response:
            stream = lines(response)
            await anext(stream)
            stopping = asyncio.create_task(front.stop())
            answer = await poll
            assert answer.status_code == 503
            assert answer.json()["code"] == "shutting_down"
            ends = [line["end"] async for line in stream if "end" in line]
            assert [end["code"] for end in ends] == ["shutting_down"]  # type: ignore[index]
        await stopping
        with pytest.raises(httpx.ConnectError):
            await http.get("/api/v1/queues")
    assert node.inspection.waiting(JOBS) == 0


async def test_a_stream_creates_nothing_if_it_says_so(http: httpx.AsyncClient, node: Node) -> None:
    refused = await http.post(f"{QUEUE}/stream", params={"group": "mailer", "create": "false"})
    assert (refused.status_code, refused.json()["code"]) == (404, "queue_not_found")
    assert not node.queues.exists(JOBS)
    await node.messages.enqueue(JOBS, [Draft(b"x")])
    refused = await http.post(f"{QUEUE}/stream", params={"create": "false"})
    assert (refused.status_code, refused.json()["code"]) == (404, "group_not_found")
    assert node.queues.get(JOBS).groups == ()
    await node.groups.create(JOBS, "default")
    async with http.stream("POST", f"{QUEUE}/stream", params={"limit": 1, "create": "false"}) as response:
        assert "delivery" in [key async for line in lines(response) for key in line]
    refused = await http.get(f"{QUEUE}/stream")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


async def test_a_lease_creates_nothing_if_it_says_so(http: httpx.AsyncClient, node: Node) -> None:
    refused = await http.post(f"{QUEUE}/leases", json={"create": False, "wait": "1m"})
    assert (refused.status_code, refused.json()["code"]) == (404, "queue_not_found")
    await node.messages.enqueue(JOBS, [Draft(b"x")])
    refused = await http.post(f"{QUEUE}/leases", json={"create": False})
    assert (refused.status_code, refused.json()["code"]) == (404, "group_not_found")
    assert node.queues.get(JOBS).groups == ()
    await node.groups.create(JOBS, "default")
    leased = await http.post(f"{QUEUE}/leases", json={"create": False})
    assert len(leased.json()["deliveries"]) == 1
