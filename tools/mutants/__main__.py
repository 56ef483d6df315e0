"""Runs every mutant against the tests that must notice it: `make mutants`.

    python -m tools.mutants [--jobs 2] [--only WORDS] [--table FILE]

Each mutant is a copy of the source with one change; the working tree is not touched. A mutant is killed when its tests
fail, or do not end in time; the same tests pass without it, which is checked first. Exit code 1 if one survives or a
selection of tests is no good.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tools.mutants.listed import ROOT, Mutant, read_list

TIMEOUT_SECONDS = 300.0
PASSED, FAILED = 0, 1  # exit codes of pytest; all others say that no test was run as meant


class Verdict(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    word: str
    """`killed`, `SURVIVED`, or `ERROR`."""
    by: str
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--only", default="", help="those whose description, file or tests contain this")
    parser.add_argument("--table", type=Path, help="write the result there too")
    arguments = parser.parse_args()
    mutants = [each for each in read_list() if arguments.only in f"{each.bug} {each.file} {each.tests}"]
    broken = _check_selections(mutants, arguments.jobs)
    if broken:
        print(broken)
        return 1
    verdicts: list[Verdict] = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for verdict in pool.map(_try, mutants):
            verdicts.append(verdict)
            print(f"{len(verdicts):3} {verdict.word:9} {verdict.seconds:5.1f} s  {verdict.mutant.bug}", flush=True)
            if verdict.word != "killed":
                print(verdict.by)
    survivors = [verdict for verdict in verdicts if verdict.word != "killed"]
    print(f"\n{len(verdicts)} mutants, {len(verdicts) - len(survivors)} killed, {len(survivors)} not")
    if arguments.table is not None:
        arguments.table.write_text(table(verdicts))
    return 1 if survivors else 0


def _check_selections(mutants: list[Mutant], jobs: int) -> str:
    """Run all selections without a mutant; the output if they do not pass."""
    with _copy() as source:
        selections = sorted({word for mutant in mutants for word in mutant.tests.split()})
        done = _pytest(source, ["-n", str(jobs), *selections], timeout_seconds=None)
    return "" if done.returncode == PASSED else f"without a mutant:\n{done.stdout}{done.stderr}"


def _try(mutant: Mutant) -> Verdict:
    began = time.monotonic()
    verdict = partial(Verdict, mutant)
    with _copy() as source:
        file = source / mutant.path.relative_to("src")
        file.write_text(mutant.apply(file.read_text()))
        try:
            done = _pytest(source, ["-x", *mutant.tests.split()])
        except subprocess.TimeoutExpired:
            return verdict("killed", "it does not end", time.monotonic() - began)
    seconds = time.monotonic() - began
    if done.returncode == PASSED:
        return verdict("SURVIVED", "", seconds)
    if done.returncode != FAILED:
        return verdict("ERROR", f"{done.stdout}{done.stderr}", seconds)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return verdict("killed", failed[0].split()[1] if failed else "", seconds)


@contextmanager
def _copy() -> Iterator[Path]:
    """A copy of the source that can be imported instead of it."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        source = Path(directory) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        yield source


def _pytest(
    source: Path, arguments: list[str], timeout_seconds: float | None = TIMEOUT_SECONDS
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(source), str(ROOT)]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )


def table(verdicts: list[Verdict]) -> str:
    """The result as a page."""
    killed = sum(verdict.word == "killed" for verdict in verdicts)
    lines = [
        "# Mutants",
        "",
        "Made by `make mutants`. Each is the source with one change that a reader would call a bug, and beside it the",
        "first test that noticed. The list is `tools/mutants/mutants.toml`.",
        "",
        f"{len(verdicts)} mutants, {killed} killed.",
        "",
        "| bug | where | verdict | by |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {verdict.mutant.bug} | `{verdict.mutant.file}` | {verdict.word} | {_shown(verdict.by)} |"
        for verdict in verdicts
    ]
    return "\n".join([*lines, ""])


def _shown(test: str) -> str:
    return f"`{test.removeprefix('tests/')}`" if "::" in test else test


if __name__ == "__main__":
    sys.exit(main())
