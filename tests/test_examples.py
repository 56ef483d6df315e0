"""The examples run, and what the README shows of them is what they print."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_in_process_example_prints_what_the_readme_says() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples" / "in_process.py"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    printed = [line for line in done.stdout.splitlines() if "[info" not in line]
    assert printed == [
        "stored as fsync",
        "attempt 1: resize 4711.png",
        "attempt 2: resize 4711.png",
        "dead after 2 attempts: max_retries, out of memory",
    ]
    readme = (ROOT / "README.md").read_text()
    assert "\n".join(printed) in readme
