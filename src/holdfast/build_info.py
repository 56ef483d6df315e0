"""Which build this is: the version, and the commit it was built from."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from holdfast import __version__

HERE = Path(__file__).parent
UNKNOWN = "unknown"


@cache
def commit() -> str:
    """What the build wrote into the package, or the commit of the repository that the code is run from."""
    try:
        return (HERE / "COMMIT").read_text().strip() or UNKNOWN
    except OSError:
        return _of_repository(HERE.parents[1])


def version_line() -> str:
    """As `holdfast --version` shows it."""
    return f"holdfast {__version__} (commit {commit()})"


def _of_repository(root: Path) -> str:
    if not (root / ".git").exists():
        return UNKNOWN
    command = ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    return done.stdout.strip() or UNKNOWN
