"""Requests are answered alike and in order, in whatever chunks they arrive and however many are sent ahead."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from random import Random

import pytest

from holdfast.http_api.server.body import UNREAD_BYTES_MAX
from holdfast.http_api.server.connection import PARSE_BYTES, PIPELINE_MAX
from tests.http_api.conftest import config_for
from tests.http_api.server.rig import (
    JOBS,
    LIVE,
    MILLISECOND,
    PATH,
    Rig,
    apart,
    begun,
    message,
    post,
    serving,
)
from tests.waiting import until


async def test_a_body_may_come_after_a_known_head(rig: Rig) -> None:
    async with rig.wire() as wire:
        await wire.ask(*apart(post(message())))
        for number in range(1, 4):
            head, body = apart(post(message("in parts")))
            await begun(rig, wire, head)
            wire.writer.write(body[:5])
            await until(lambda: rig.front.api.buffered_bytes == 5)
            assert (await wire.ask(body[5:])).status == 200
            assert rig.known == number
            assert (rig.front.api.working, rig.front.api.buffered_bytes) == (0, 0)
        assert rig.depth() == 4


async def test_a_body_that_never_comes_times_out_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(config_for(tmp_path, body_timeout=100 * MILLISECOND), monkeypatch) as rig, rig.wire() as wire:
        await wire.ask(post(message()))
        late = await wire.ask(apart(post(message()))[0])
        assert (late.status, late.json["code"]) == (408, "request_timeout")
        assert rig.depth() == 1


async def test_what_comes_behind_a_body_that_came_apart_is_answered_in_order(rig: Rig) -> None:
    async with rig.wire() as wire:
        await wire.ask(post(message("0")))
        head, body = apart(post(message("1")))
        await begun(rig, wire, head)
        wire.writer.write(body + post(message("2")) + post(message("3")))
        assert [(await wire.answer()).status for _ in range(3)] == [200, 200, 200]
        assert [m.payload for _, m, _ in (await rig.node.inspection.browse(JOBS, 10)).messages] == [
            b"0",
            b"1",
            b"2",
            b"3",
        ]


async def test_a_long_body_may_come_after_a_known_head(rig: Rig) -> None:
    async with rig.wire() as wire:
        await wire.ask(post(message()))
        head, body = apart(post(message("x" * 5 * UNREAD_BYTES_MAX)))
        await begun(rig, wire, head)
        assert (await wire.ask(body)).status == 200
        assert (rig.known, rig.depth()) == (1, 2)


async def test_a_client_that_goes_before_the_rest_leaves_nothing(rig: Rig) -> None:
    async with rig.wire() as wire:
        await wire.ask(post(message()))
        head, body = apart(post(message()))
        await begun(rig, wire, head + body[:5])
    await until(lambda: not rig.connections)
    assert (rig.depth(), rig.front.api.working, rig.front.api.buffered_bytes) == (1, 0, 0)


async def test_a_server_that_stops_takes_what_has_begun(rig: Rig) -> None:
    async with rig.wire() as wire:
        await wire.ask(post(message()))
        head, body = apart(post(message()))
        connection = await begun(rig, wire, head)
        connection.shutdown()
        last = await wire.ask(body)
        assert (last.status, last.headers["connection"]) == (200, "close")
        assert await wire.reader.read() == b""
        assert (rig.known, rig.depth()) == (1, 2)


# --- requests sent ahead --------------------------------------------------------------------------------------------


async def test_thousands_of_requests_sent_ahead_are_answered_one_by_one(rig: Rig) -> None:
    async with rig.wire() as wire:
        wire.writer.write(b"GET /nothing HTTP/1.1\r\n\r\n" * 3_000 + LIVE)
        assert {(await wire.answer()).status for _ in range(3_000)} == {404}
        assert (await wire.answer()).status == 200


async def test_what_is_sent_ahead_is_bounded_and_all_of_it_answered(rig: Rig) -> None:
    async with rig.wire() as wire:
        await wire.ask(post(message()))
        rig.may_sync.clear()
        (connection,) = rig.connections
        long = post(message("y" * UNREAD_BYTES_MAX))
        wire.writer.write(post(message("first")))
        await until(lambda: rig.known == 1)
        for _ in range(4):
            wire.writer.write(long)
        await until(lambda: connection._read_paused)
        rig.may_sync.set()
        assert [(await wire.answer()).status for _ in range(5)] == [200] * 5
        assert rig.depth() == 6


async def test_requests_sent_ahead_in_parts_that_end_within_a_head_are_bounded_too(rig: Rig) -> None:
    async with rig.wire() as wire:
        await wire.ask(post(message()))
        rig.may_sync.clear()
        (connection,) = rig.connections
        await begun(rig, wire, post(message("first"), headers="x-kind: other\r\n") + LIVE[:10])
        wire.writer.write(LIVE[10:] + LIVE[:10])
        await until(lambda: len(connection._pipeline) == 1)
        for _ in range(100):
            wire.writer.write(LIVE[10:] + LIVE[:10])
            await asyncio.sleep(0.001)
        await until(lambda: connection._read_paused)
        ahead = len(connection._pipeline)
        rig.may_sync.set()
        assert ahead <= PIPELINE_MAX
        wire.writer.write(LIVE[10:])
        assert [(await wire.answer()).status for _ in range(103)] == [200] * 103


async def test_requests_that_arrive_together_are_parsed_as_far_as_there_is_room(rig: Rig) -> None:
    connection, wires = rig.front.connect(), Wires()
    connection.connection_made(wires)
    rig.may_sync.clear()
    connection.data_received(post(message("first")) + b"GET /nothing HTTP/1.1\r\n\r\n" * 5_000)
    assert len(connection._pipeline) <= PARSE_BYTES // 20
    assert len(connection._held) > PARSE_BYTES
    connection.data_received(LIVE)
    rig.may_sync.set()
    await settled(wires, 5_002)
    assert wires.statuses() == [200, *[404] * 5_000, 200]
    connection.connection_lost(None)


async def test_a_body_behind_requests_that_fill_the_pipeline_arrives(rig: Rig) -> None:
    connection, wires = rig.front.connect(), Wires()
    connection.connection_made(wires)
    rig.may_sync.clear()
    long = post(message("y" * PARSE_BYTES), headers="x-kind: long\r\n")
    connection.data_received(post(message("first")) + LIVE * PIPELINE_MAX + long[:-100])
    assert connection._held
    connection.data_received(long[-100:] + LIVE)
    rig.may_sync.set()
    await settled(wires, PIPELINE_MAX + 3)
    assert wires.statuses() == [200] * (PIPELINE_MAX + 3)
    assert rig.depth() == 2
    connection.connection_lost(None)


async def test_what_is_sent_ahead_is_bounded_in_bytes_too(rig: Rig) -> None:
    connection, wires = rig.front.connect(), Wires()
    connection.connection_made(wires)
    rig.may_sync.clear()
    connection.data_received(post(message("first")) + LIVE[:10])
    half = post(message("y" * (UNREAD_BYTES_MAX // 2)))
    connection.data_received(LIVE[10:] + half[:10])
    connection.data_received(half[10:] + half[:10])
    paused = [connection._read_paused]
    connection.data_received(half[10:])
    paused.append(connection._read_paused)
    assert paused == [False, True]
    rig.may_sync.set()
    await settled(wires, 4)
    assert (wires.statuses(), connection._read_paused) == ([200] * 4, False)
    connection.connection_lost(None)


async def test_the_time_in_which_a_head_could_not_arrive_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(tmp_path, header_timeout=200 * MILLISECOND)
    async with serving(config, monkeypatch) as rig, rig.wire() as wire:
        await wire.ask(post(message()))
        rig.may_sync.clear()
        await begun(rig, wire, post(message("first"), headers="x-kind: other\r\n") + LIVE + LIVE[:10])
        wire.writer.write(LIVE[10:])
        await asyncio.sleep(0.3)
        rig.may_sync.set()
        assert [(await wire.answer()).status for _ in range(3)] == [200] * 3


async def test_nonsense_behind_a_request_is_refused_after_its_response(rig: Rig) -> None:
    async with rig.wire() as wire:
        wire.writer.write(post(message()) + b"nonsense\r\n\r\n")
        assert [(await wire.answer()).status for _ in range(2)] == [200, 400]
        assert await wire.reader.read() == b""


async def test_every_response_is_for_nobody_else(rig: Rig) -> None:
    connection, wires = rig.front.connect(), Wires()
    connection.connection_made(wires)
    connection.data_received(post(message()) + LIVE + b"GET /nothing HTTP/1.1\r\n\r\nnonsense\r\n\r\n")
    await until(lambda: wires.closed)
    assert wires.statuses() == [200, 200, 404, 400]
    for head in (b"\r\nx-content-type-options: nosniff\r\n", b"\r\ncache-control: no-store\r\n"):
        assert bytes(wires.sent).count(head) == 4
    connection.connection_lost(None)


async def test_a_refusal_is_sent_once(rig: Rig) -> None:
    connection, wires = rig.front.connect(), Wires()
    connection.connection_made(wires)
    connection.data_received(post(message()) + b"nonsense\r\n\r\n")
    await until(lambda: wires.closed)
    connection.resume_writing()
    assert wires.statuses() == [200, 400]
    connection.connection_lost(None)


async def test_a_connection_ends_with_its_stream_when_the_server_stops(rig: Rig) -> None:
    await rig.node.queues.create(JOBS, {})
    connection, wires = rig.front.connect(), Wires()
    connection.connection_made(wires)
    connection.data_received(b"POST %b/stream HTTP/1.1\r\n\r\n" % PATH.removesuffix("/messages").encode())
    await settled(wires, 1)
    connection.shutdown()
    assert not wires.closed
    stopping = asyncio.create_task(rig.front.stop())
    await until(lambda: wires.closed)
    assert not wires.aborted
    connection.connection_lost(None)
    await stopping


@pytest.mark.parametrize("arrived", [b"", b"3\r\nabc\r\n"])
async def test_a_body_whose_chunks_are_nonsense_is_refused(rig: Rig, arrived: bytes) -> None:
    async with rig.wire() as wire:
        wire.writer.write(chunked()[:-5] + arrived)
        await until(lambda: rig.front.api.working == 1)
        refused = await wire.ask(b"nonsense\r\n")
        assert (refused.status, refused.json["code"]) == (400, "malformed_request")
        assert await wire.reader.read() == b""
    assert (rig.depth(), rig.front.api.working, rig.front.api.buffered_bytes) == (0, 0, 0)


@pytest.mark.parametrize("line", [b"x-more: %b\r\n" % (b"y" * 1_000), b"y" * 1_000])
@pytest.mark.parametrize("path", [PATH, "/nothing"])
async def test_what_follows_a_body_is_bounded_and_not_kept(rig: Rig, line: bytes, path: str) -> None:
    connection, wires = rig.front.connect(), Wires()
    connection.connection_made(wires)
    connection.data_received(chunked(b"x").replace(PATH.encode(), path.encode())[:-2])
    kept = len(connection._raw_headers)
    first = b"x-first: " if line.startswith(b"y") else b""
    for part in (first, *[line] * 200):
        connection.data_received(part)
        assert len(connection._raw_headers) == kept
    await until(lambda: wires.closed)
    assert wires.statuses() == [400 if path == PATH else 404]
    connection.connection_lost(None)
    assert (rig.depth(), rig.front.api.working, rig.front.api.buffered_bytes) == (0, 0, 0)


async def test_tiny_chunks_are_kept_together(rig: Rig) -> None:
    body = b"0123456789" * 1_000
    parts = [body[at : at + 2] for at in range(0, len(body), 2)]
    data = chunked(*parts[:1_000], b"y" * UNREAD_BYTES_MAX, *parts[1_000:])
    connection, wires = rig.front.connect(), Wires()
    connection.connection_made(wires)
    for start in range(0, len(data) - 5, 5_000):
        connection.data_received(data[start : min(start + 5_000, len(data) - 5)])
        assert connection._receiving is not None
        assert len(connection._receiving._parts) < 50
    connection.data_received(data[-5:])
    connection.data_received(data)
    await settled(wires, 2)
    connection.connection_lost(None)
    stored = [m.payload for _, m, _ in (await rig.node.inspection.browse(JOBS, 10)).messages]
    assert stored == [body[:2_000] + b"y" * UNREAD_BYTES_MAX + body[2_000:]] * 2


async def test_a_form_whose_chunks_are_nonsense_is_refused(rig: Rig) -> None:
    async with rig.wire() as wire:
        wire.writer.write(chunked()[:-5].replace(b"text/plain", b"multipart/form-data; boundary=x"))
        await until(lambda: rig.front.api.working == 1)
        refused = await wire.ask(b"nonsense\r\n")
        assert (refused.status, refused.json["code"]) == (400, "malformed_request")
        assert await wire.reader.read() == b""
    assert (rig.depth(), rig.front.api.working, rig.front.api.buffered_bytes) == (0, 0, 0)


async def test_a_long_body_before_the_beginning_of_a_head_is_not_taken_for_a_part_of_it(rig: Rig) -> None:
    async with rig.wire() as wire:
        wire.writer.write(post(message("y" * 100_000)) + LIVE[:10])
        assert (await wire.answer()).status == 200
        assert (await wire.ask(LIVE[10:])).status == 200


async def test_a_request_that_was_refused_before_its_body_was_read_does_not_spoil_the_next(rig: Rig) -> None:
    async with rig.wire() as wire:
        for _ in range(2):  # with a head that is parsed, and with one that is known
            head, body = apart(post(b"[" * 100_000, headers="content-encoding: gzip\r\n"))
            assert (await wire.ask(head, body[:1_000])).status == 415
            assert (await wire.ask(body[1_000:] + LIVE)).status == 200
    assert rig.known == 1


async def test_a_request_that_is_refused_instead_of_continued_is_the_last(rig: Rig) -> None:
    async with rig.wire() as wire:
        head, _ = apart(post(message(), path="/nothing", headers="expect: 100-continue\r\n"))
        refused = await wire.ask(head)
        assert (refused.status, refused.headers.get("connection")) == (404, "close")
        assert await wire.reader.read() == b""


async def test_nothing_behind_the_last_request_is_served(rig: Rig) -> None:
    async with rig.wire() as wire:
        wire.writer.write(b"GET /nothing HTTP/1.0\r\nconnection: keep-alive\r\n\r\n" + post(message()))
        assert (await wire.answer()).status == 404
        assert await wire.reader.read() == b""
    await until(lambda: not rig.connections)
    assert rig.depth() == 0
    assert ("POST", "/api/v1/queues/{name}/messages", 200) not in rig.front.api.answered


class Unread(asyncio.Transport):
    """To a client that does not read: it is closed when it is aborted."""

    closing = aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert len(data) < 1_000

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 1


@pytest.mark.parametrize("paused", [True, False])
async def test_a_connection_whose_last_response_is_not_read_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    async with serving(config_for(tmp_path, write_timeout=100 * MILLISECOND), monkeypatch) as rig:
        connection, transport = rig.front.connect(), Unread()
        connection.connection_made(transport)
        connection.data_received(b"GET /%b HTTP/1.0\r\n\r\n" % (b"x" * 5_000))
        assert transport.closing
        if paused:
            connection.resume_writing()
        try:
            await until(lambda: transport.aborted)
        finally:
            connection.connection_lost(None)


async def test_an_upgrade_to_what_is_not_spoken_here_is_not_made(rig: Rig) -> None:
    for protocol in (b"h2c", b"websocket"):
        async with rig.wire() as wire:
            answer = await wire.ask(LIVE[:-2] + b"connection: upgrade\r\nupgrade: %b\r\n\r\n" % protocol)
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert await wire.reader.read() == b""


# --- however it is cut ----------------------------------------------------------------------------------------------


class Wires(asyncio.Transport):
    """Keeps what a connection sends; the test decides in which pieces it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closed = self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        """What is sent ahead is short."""

    resume_reading = pause_reading

    def statuses(self) -> list[int]:
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", self.sent)]


def chunked(*parts: bytes) -> bytes:
    head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
    return head.encode() + b"".join([b"%x\r\n%b\r\n" % (len(part), part) for part in parts]) + b"0\r\n\r\n"


async def settled(wires: Wires, count: int) -> None:
    await until(lambda: len(wires.statuses()) >= count or wires.closed)


@pytest.mark.parametrize("seed", range(20))
async def test_requests_are_answered_equally_in_whatever_chunks_they_arrive(rig: Rig, seed: int) -> None:
    script = [
        (post(message("one")), 200),
        (post(message("two")), 200),
        (LIVE, 200),
        (chunked(b"thr", b"ee"), 200),
        (post(b"{", headers="x-other: 1\r\n"), 400),
        (post(message("four")), 200),
        (post(message("five"), headers="content-encoding: gzip\r\n"), 415),
        (b"GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n", 404),
        (post(message("six")), 200),
        (chunked(b"seven"), 200),
        (post(message("eight")), 200),
    ]
    random = Random(seed)
    data = b"".join([request for request, _ in script])
    cuts = sorted(random.sample(range(1, len(data)), random.choice([1, 5, 40, 200])))
    connection, wires = rig.front.connect(), Wires()
    connection.connection_made(wires)
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        connection.data_received(data[start:end])
        for _ in range(random.choice([0, 0, 1, 5])):
            await asyncio.sleep(0)
    await settled(wires, len(script))
    connection.connection_lost(None)
    assert wires.statuses() == [status for _, status in script]
    payloads = [m.payload for _, m, _ in (await rig.node.inspection.browse(JOBS, 20)).messages]
    assert payloads == [b"one", b"two", b"three", b"four", b"six", b"seven", b"eight"]
    assert (rig.front.api.working, rig.front.api.buffered_bytes) == (0, 0)
