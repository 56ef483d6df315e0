"""`python -m tests.simulation --seeds 1-200`: run seeds, say what they met, and how to replay one that failed."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation.run import STEPS, Outcome, run


def seeds_of(text: str) -> range:
    """`1000`: seeds 1 to 1000. `5-9`: those."""
    first, _, last = text.partition("-")
    return range(int(first), int(last) + 1) if last else range(1, int(first) + 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=seeds_of, default=range(1, 201), metavar="N or A-B")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"turns of each run (default {STEPS})")
    parser.add_argument("--store", choices=("memory", "rocks"), default="memory")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first seed that fails")
    options = parser.parse_args()
    began = time.monotonic()
    outcomes: list[Outcome] = []
    failed: list[int] = []
    for seed in options.seeds:
        try:
            outcomes.append(run(seed, options.steps, options.store))
        except Exception as error:  # noqa: BLE001 - whatever it is, the seed must be told
            failed.append(seed)
            traceback.print_exc(limit=-6)
            sys.stderr.write(
                f"\nseed {seed}: {type(error).__name__}: {error}\nreplay: .venv/bin/python -m tests.simulation"
                f" --seeds {seed}-{seed} --steps {options.steps} --store {options.store}\n\n"
            )
            if not options.go_on:
                return 1
    messages = sum(outcome.messages for outcome in outcomes)
    restarts = sum(outcome.restarts for outcome in outcomes)
    rows = sum(outcome.rows for outcome in outcomes)
    sys.stdout.write(
        f"{len(outcomes)} seeds held, {len(failed)} failed {failed[:20]}: {messages} messages, {rows} journal rows,"
        f" {restarts} restarts in {time.monotonic() - began:.1f} s\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
