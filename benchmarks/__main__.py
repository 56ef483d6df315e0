"""`python -m benchmarks [NAME [MESSAGES]]`: all of them, or one."""

from __future__ import annotations

import sys
from collections.abc import Callable

import structlog

from benchmarks import backlog, cost, fronts, hotkey, mqtt_codec, raw, speed, timers, topics, transfer, waiting

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
}


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    wanted = sys.argv[1:2] or list(BENCHMARKS)
    for name in wanted:
        if name not in BENCHMARKS:
            sys.exit(f"no benchmark {name!r}: there are {', '.join(BENCHMARKS)}")
        BENCHMARKS[name]()
        print()


if __name__ == "__main__":
    main()
