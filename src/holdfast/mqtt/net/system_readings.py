"""What the topics below `$SYS/broker/` say: Mosquitto's names, and its forms of values.

Loads are averages for a minute over the last 1, 5 and 15 minutes. They are computed when the topics are read, which
nobody does while nobody subscribes; the time between two readings counts as one even rate.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from holdfast import __version__
from holdfast.mqtt.net.meter import Traffic, hub_counts, sent_of
from holdfast.mqtt.sessions.hub import Hub
from holdfast.units import MINUTE, SECOND

_WINDOWS: Final = {"1min": MINUTE, "5min": 5 * MINUTE, "15min": 15 * MINUTE}
_MEMORY: Final = Path("/proc/self/statm")  # Linux


class SystemReadings:
    """Reads what a front has counted."""

    def __init__(self, traffic: Traffic, started_at: int) -> None:
        self._traffic = traffic
        self._started_at = started_at
        self._loads: dict[str, dict[str, float]] = {window: {} for window in _WINDOWS}
        self._loaded_at = started_at
        self._counted: dict[str, int] = {}

    def read(self, hub: Hub, now: int) -> dict[str, str]:
        """The values, by topic."""
        counters = self._counters(hub)
        self._average(counters, now)
        found = dict(self._state(hub, now))
        found |= {f"broker/{name}": str(count) for name, count in counters.items() if name not in _LOADS_ONLY}
        for window, loads in self._loads.items():
            found |= {f"broker/load/{name}/{window}": f"{load:.2f}" for name, load in loads.items()}
        return found

    def _counters(self, hub: Hub) -> dict[str, int]:
        traffic = self._traffic
        sent = sent_of(traffic, hub)
        received = {kind.__name__.upper(): count for kind, count in traffic.received.items()}
        return {
            "messages/received": sum(received.values()),
            "messages/sent": sum(sent.values()),
            "publish/messages/received": received.get("PUBLISH", 0),
            "publish/messages/sent": sent.get("PUBLISH", 0),
            "publish/messages/dropped": sum((traffic.dropped + hub.dropped).values()),
            "bytes/received": traffic.bytes_received,
            "bytes/sent": traffic.bytes_sent,
            "connections": received.get("CONNECT", 0),
            "sockets": traffic.sockets,
        }

    def _average(self, counters: dict[str, int], now: int) -> None:
        passed = max(now - self._loaded_at, 1)  # a clock may be set back
        for name, count in counters.items():
            rate = (count - self._counted.get(name, 0)) * MINUTE / passed
            for window, duration in _WINDOWS.items():
                kept = math.exp(-passed / duration)
                loads = self._loads[window]
                short = _SHORT.get(name, name)
                loads[short] = rate + kept * (loads.get(short, 0.0) - rate)
        self._counted, self._loaded_at = counters, now

    def _state(self, hub: Hub, now: int) -> Iterator[tuple[str, str]]:
        counts = hub_counts(hub)
        connected, sessions = counts["connections"], counts["sessions"]
        yield "broker/version", f"holdfast version {__version__}"
        yield "broker/uptime", f"{(now - self._started_at) // SECOND} seconds"
        for name, value in {
            "clients/total": sessions,
            "clients/connected": connected,
            "clients/active": connected,
            "clients/disconnected": sessions - connected,
            "clients/inactive": sessions - connected,
            "clients/maximum": self._traffic.connected_max,
            "messages/inflight": counts["inflight"],
            "messages/stored": counts["retained"] + counts["queued"],
            "store/messages/count": counts["retained"] + counts["queued"],
            "store/messages/bytes": counts["retained_bytes"] + counts["queued_bytes"],
            "retained messages/count": counts["retained"],
            "subscriptions/count": counts["subscriptions"],
            "shared_subscriptions/count": counts["shares"],
        }.items():
            yield f"broker/{name}", str(value)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if _MEMORY.exists():
            current = int(_MEMORY.read_text().split()[1]) * resource.getpagesize()
            most = max(most, current)  # the kernel's maximum is renewed from time to time
            yield "broker/heap/current", str(current)
        yield "broker/heap/maximum", str(most)


_LOADS_ONLY: Final = {"connections", "sockets"}
_SHORT: Final = {
    "publish/messages/received": "publish/received",
    "publish/messages/sent": "publish/sent",
    "publish/messages/dropped": "publish/dropped",
}
"""What Mosquitto calls them as loads."""
