"""A connection without a socket, and a node without threads: what happens depends on the order of calls alone.

With both, a server and its clients on one loop do the same in every run, on a quiet machine as on a busy one. The tests
whose coverage is a gate use them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from holdfast import threads


class ServerEnd(asyncio.Transport):
    """The transport that the server's protocol writes to; `reader` is what the client reads from."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 0)})
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._unread: list[bytes] = []
        self._reading = True
        self._lost = False
        self.reader = asyncio.StreamReader()
        protocol.connection_made(self)

    def feed(self, data: bytes) -> None:
        """From the client; the protocol gets it after everything that is to be done already."""
        self._unread.append(data)
        self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        while self._unread and self._reading and not self._lost:
            self._protocol.data_received(self._unread.pop(0))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The client takes everything."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._lost:
            self.reader.feed_data(bytes(data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.reader.feed_eof()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._loop.call_soon(self._deliver)

    def close(self) -> None:
        if not self._lost:
            self._lost = True
            self.reader.feed_eof()
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()


class ClientEnd:
    """What a test does with an `asyncio.StreamWriter`."""

    def __init__(self, server_end: ServerEnd) -> None:
        self.transport = self
        self._server_end = server_end

    def write(self, data: bytes) -> None:
        self._server_end.feed(data)

    def close(self) -> None:
        """After what was written."""
        asyncio.get_running_loop().call_soon(self._server_end.close)

    def abort(self) -> None:
        self.close()

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)


def connect(protocol: asyncio.Protocol) -> tuple[asyncio.StreamReader, ClientEnd]:
    end = ServerEnd(protocol)
    return end.reader, ClientEnd(end)


class _LoopWorker(threads.WorkerThread):
    """Does on the loop, one callback later, what a thread would do."""

    def __init__(self, name: str) -> None:
        del name
        self._loop = asyncio.get_running_loop()
        self._orders = self  # type: ignore[assignment]

    def put(self, work: Callable[[], object]) -> None:
        self._loop.call_soon(work)

    def end(self, timeout_seconds: float | None = None) -> bool:
        del timeout_seconds
        return True


@contextmanager
def without_threads() -> Iterator[None]:
    """Nodes that start inside sync and export on the loop."""
    with patch.object(threads, "WorkerThread", _LoopWorker):
        yield
