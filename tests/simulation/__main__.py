"""`python -m tests.simulation --seeds 1-200`: run seeds, say what they met, and how to replay one that failed.

Two simulations: of the `engine`, against a model that knows every rule, and of the whole `node`, against what the disk
proves of its answers.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable

from tests import postgres
from tests.simulation.node.run import run as run_node
from tests.simulation.run import STEPS, run


def seeds_of(text: str) -> range:
    """`1000`: seeds 1 to 1000. `5-9`: those."""
    first, _, last = text.partition("-")
    return range(int(first), int(last) + 1) if last else range(1, int(first) + 1)


def run_seeds(what: str, seeds: range, run_seed: Callable[[int], str], *, options: str, go_on: bool) -> bool:
    """Run seeds of one simulation. False: one failed."""
    began = time.monotonic()
    met: list[str] = []
    failed: list[int] = []
    for seed in seeds:
        try:
            met.append(run_seed(seed))
        except Exception as error:  # noqa: BLE001 - whatever it is, the seed must be reported
            failed.append(seed)
            traceback.print_exc(limit=-6)
            sys.stderr.write(
                f"\n{what}, seed {seed}: {type(error).__name__}: {error}\nreplay: .venv/bin/python -m tests.simulation"
                f" {what} --seeds {seed}-{seed}{options}\n\n"
            )
            if not go_on:
                return False
    seconds = time.monotonic() - began
    sys.stdout.write(f"{what}: {len(met)} seeds held, {len(failed)} failed {failed[:20]} in {seconds:.1f} s\n")
    sys.stdout.write(f"{what}: the last met {met[-1] if met else 'nothing'}\n")
    return not failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("engine", "node", "both"), default="both")
    parser.add_argument("--seeds", type=seeds_of, default=range(1, 201), metavar="N or A-B")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"engine: turns of each run (default {STEPS})")
    stores = ("memory", "rocks", "postgres")
    parser.add_argument("--store", choices=stores, default="memory", help="engine: what it runs on")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first seed that fails")
    options = parser.parse_args()
    postgres.configure()
    how = f" --steps {options.steps} --store {options.store}"
    held = True
    if options.what != "node":
        held &= run_seeds(
            "engine",
            options.seeds,
            lambda seed: str(run(seed, options.steps, options.store)),
            options=how,
            go_on=options.go_on,
        )
    if options.what != "engine" and (held or options.go_on):
        held &= run_seeds("node", options.seeds, lambda seed: str(run_node(seed)), options="", go_on=options.go_on)
    return 0 if held else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        postgres.end()
