"""`python -m benchmarks [NAME [ARGUMENTS]]`: one of them, or all but the long ones."""

from __future__ import annotations

import sys
from collections.abc import Callable

import structlog

from benchmarks import (
    backlog,
    cost,
    fronts,
    hotkey,
    mqtt_codec,
    one,
    raw,
    speed,
    start,
    steady,
    stores,
    timers,
    topics,
    transfer,
    waiting,
)
from benchmarks.peers import table as peers

BENCHMARKS: dict[str, Callable[[], None]] = {
    "raw": raw.main,
    "speed": speed.main,
    "cost": cost.main,
    "fronts": fronts.main,
    "backlog": lambda: backlog.main((*backlog.SIZES, *map(int, sys.argv[2:]))),
    "hotkey": hotkey.main,
    "timers": timers.main,
    "mqtt_codec": mqtt_codec.main,
    "topics": topics.main,
    "transfer": transfer.main,
    "waiting": waiting.main,
    "one": lambda: one.main(sys.argv[2:]),
    "start": lambda: start.main(sys.argv[2:]),
}

LONG: dict[str, Callable[[], None]] = {
    "peers": lambda: peers.main(sys.argv[2:]),
    "steady": lambda: steady.main(sys.argv[2:]),
    "stores": lambda: stores.main(sys.argv[2:]),
}


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    known = BENCHMARKS | LONG
    for name in sys.argv[1:2] or BENCHMARKS:
        if name not in known:
            sys.exit(f"no benchmark {name!r}: there are {', '.join(known)}")
        known[name]()
        print()


if __name__ == "__main__":
    main()
