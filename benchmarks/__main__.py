"""`python -m benchmarks [raw|speed|backlog [MESSAGES]]`: all of them, or one."""

from __future__ import annotations

import sys

from benchmarks import backlog, raw, speed


def main() -> None:
    wanted = sys.argv[1:2] or ["raw", "speed", "backlog"]
    for name in wanted:
        if name == "raw":
            raw.main()
        elif name == "speed":
            speed.main()
        elif name == "backlog":
            backlog.main((*backlog.SIZES, *map(int, sys.argv[2:])))
        else:
            sys.exit(f"no benchmark {name!r}: there are raw, speed and backlog")
        print()


if __name__ == "__main__":
    main()
