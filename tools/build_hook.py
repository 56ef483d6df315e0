"""What hatchling does beside packing files: it writes the commit that a package was built from into the package.

A wheel has it as `holdfast/COMMIT`, an sdist as `src/holdfast/COMMIT`, from where the wheel built of it takes it.
`HOLDFAST_COMMIT` overrides what Git says, for builds without a repository.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILE = "holdfast/COMMIT"


class CommitHook(BuildHookInterface[Any]):
    """Named in pyproject.toml."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before files are packed. An editable install has its repository beside it."""
        root = Path(self.root)
        if version == "editable" or (root / "src" / FILE).exists():
            return
        commit = os.environ.get("HOLDFAST_COMMIT") or commit_of(root)
        if not commit:
            return
        written = Path(tempfile.mkdtemp()) / "COMMIT"
        written.write_text(commit + "\n")
        build_data["force_include"][str(written)] = FILE if self.target_name == "wheel" else f"src/{FILE}"


def commit_of(root: Path) -> str:
    """The commit of a repository, with `-dirty` if files of it were changed; empty where there is none."""
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
