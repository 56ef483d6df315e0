"""One loop over many connections that publish and consume, on one thread of this process.

A publisher sends a burst in one write and has at most a window of messages unconfirmed. Without a rate it sends as soon
as it may; with one, messages are due at equal distances over all publishers, and each carries the moment it was sent,
so that the time to its delivery is known. Each message is delivered in so many copies: one for each group.
"""

from __future__ import annotations

import math
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from benchmarks.load.wires import ConsumerWire, PublisherWire, Wire

PATIENCE_SECONDS = 30.0
STAMP_BYTES = 19


class LoadReport(NamedTuple):
    """What one run did. Times are seconds, sorted."""

    seconds: float
    sent: int
    delivered: int
    behind: float
    """How late a message was sent at worst, because every publisher had its window full or the client was busy."""
    confirm_times: list[float]
    """From the write of a burst to the confirmation of its last message."""
    delivery_times: list[float]
    """From the write of a message to the moment its delivery was read; of loads with a rate."""
    client_seconds: float
    """Processor time of this process: near `seconds`, the client was the limit."""


def percentile(times: list[float], part: float) -> float:
    """In milliseconds, of sorted seconds."""
    return times[int(len(times) * part)] * 1000


class Publisher:
    """A connection that publishes, and what it waits for."""

    def __init__(self, wire: PublisherWire, burst: bytes) -> None:
        self.wire = wire
        self.burst = burst
        self.unconfirmed = 0
        self.sent_at: deque[float] = deque()  # of the bursts that are not confirmed


class Load:
    """See the module. The end of its context closes the connections."""

    def __init__(
        self,
        publishers: Sequence[PublisherWire],
        consumers: Sequence[ConsumerWire] = (),
        *,
        payload_bytes: int = 256,
        burst: int = 1,
        window: int = 1,
        rate: float = 0.0,
        copies: int = 1,
    ) -> None:
        payload = os.urandom(payload_bytes).hex().encode()[:payload_bytes]
        self._burst, self._window, self._rate, self._copies = burst, window, rate, copies
        self._padding = payload[STAMP_BYTES:]
        self._idle = deque(Publisher(wire, b"".join(wire.encode(payload) for _ in range(burst))) for wire in publishers)
        self._epoll = select.epoll()
        self._on_readable: dict[int, Callable[[], None]] = {}
        for publisher in self._idle:
            self._register(publisher.wire, partial(self._confirm, publisher))
        for wire in consumers:
            self._register(wire, partial(self._deliver, wire))
        self._consumers = consumers
        self._wires = (*publishers, *consumers)
        self._begin()

    def run(self, seconds: float) -> LoadReport:
        """Publish for so long, then wait until everything is confirmed and, if there are consumers, delivered."""
        return self._run(seconds, int(self._rate * seconds) if self._rate else sys.maxsize)

    def fill(self, messages: int) -> LoadReport:
        """Publish so many, rounded up to a burst, and wait until they are confirmed."""
        return self._run(math.inf, messages)

    def _run(self, seconds: float, total: int) -> LoadReport:
        self._begin()
        behind = 0.0
        while True:
            elapsed = time.perf_counter() - self._started
            publishing = self._sent < total and (self._rate or elapsed < seconds)
            if publishing and self._idle:
                ahead = self._sent / self._rate - elapsed if self._rate else 0.0
                if ahead > 0:
                    self._wait(ahead)
                else:
                    behind = max(behind, -ahead)
                    self._send()
            elif publishing or self._waits():
                self._wait(PATIENCE_SECONDS)
            else:
                return self._report(behind)

    def drain(self, messages: int) -> LoadReport:
        """Consume so many, until all their acks are processed."""
        self._begin()
        for wire in self._consumers:
            self._answer(wire, b"")  # deliveries that came with the answer to its subscription
        while self._delivered < messages:
            self._wait(PATIENCE_SECONDS)
        for wire in self._consumers:
            wire.wait_acked()
        return self._report(0.0)

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._epoll.close()
        for wire in self._wires:
            wire.close()

    def _begin(self) -> None:
        self._sent = self._confirmed = self._delivered = 0
        self._confirm_times: list[float] = []
        self._delivery_times: list[float] = []
        self._client_before, self._started = time.process_time(), time.perf_counter()

    def _report(self, behind: float) -> LoadReport:
        return LoadReport(
            time.perf_counter() - self._started,
            self._sent,
            self._delivered,
            behind,
            sorted(self._confirm_times),
            sorted(self._delivery_times),
            time.process_time() - self._client_before,
        )

    def _waits(self) -> bool:
        return self._confirmed < self._sent or (bool(self._consumers) and self._delivered < self._sent * self._copies)

    def _send(self) -> None:
        publisher = self._idle.popleft()
        burst = publisher.burst
        if self._rate:
            burst = publisher.wire.encode(b"%0*d" % (STAMP_BYTES, time.perf_counter_ns()) + self._padding)
        publisher.sent_at.append(time.perf_counter())
        publisher.wire.socket.sendall(burst)
        publisher.unconfirmed += self._burst
        self._sent += self._burst
        if publisher.unconfirmed + self._burst <= self._window:
            self._idle.append(publisher)

    def _confirm(self, publisher: Publisher) -> None:
        confirmed = publisher.wire.confirmed(publisher.wire.receive())
        if not confirmed:
            return
        now = time.perf_counter()
        was_idle = publisher.unconfirmed + self._burst <= self._window
        publisher.unconfirmed -= confirmed
        self._confirmed += confirmed
        while len(publisher.sent_at) * self._burst > publisher.unconfirmed:
            self._confirm_times.append(now - publisher.sent_at.popleft())
        if not was_idle and publisher.unconfirmed + self._burst <= self._window:
            self._idle.append(publisher)

    def _deliver(self, wire: ConsumerWire) -> None:
        self._answer(wire, wire.receive())

    def _answer(self, wire: ConsumerWire, data: bytes) -> None:
        payloads, answer = wire.delivered(data)
        if self._rate:
            now = time.perf_counter_ns()
            self._delivery_times += [(now - int(payload[:STAMP_BYTES])) / 1e9 for payload in payloads]
        self._delivered += len(payloads)
        if answer:
            wire.socket.sendall(answer)

    def _register(self, wire: Wire, on_readable: Callable[[], None]) -> None:
        self._epoll.register(wire.socket, select.EPOLLIN)
        self._on_readable[wire.socket.fileno()] = on_readable

    def _wait(self, seconds: float) -> None:
        """Until something can be read, or so long. epoll itself counts in milliseconds only."""
        if seconds < PATIENCE_SECONDS:
            select.select([self._epoll], [], [], seconds)
            seconds = 0.0
        readable = self._epoll.poll(seconds)
        if seconds and not readable:
            progress = f"{self._confirmed} of {self._sent} confirmed, {self._delivered} delivered"
            raise TimeoutError(f"nothing came for {seconds} s: {progress}")
        for number, _ in readable:
            self._on_readable[number]()
