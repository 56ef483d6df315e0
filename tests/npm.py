"""Packages of npm that tests use: fetched once and kept in pytest's cache, if it has one."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.waiting import PATIENCE_SECONDS


def npm_package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """The `node_modules` that has a package, given as `mqtt@5`. Skips the test where that cannot be."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    if request.config.pluginmanager.hasplugin("cacheprovider"):
        cache = Path(request.config.cache.mkdir("npm"))
    else:
        cache = tmp_path_factory.mktemp("npm")
    home = cache / name.replace("@", "-").replace("/", "-")
    if not home.exists():
        aside = Path(mkdtemp(dir=cache))  # renamed when it is whole: other workers look for it at the same time
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(aside), name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm cannot install the package {name}: no answer from its registry")
        if done.returncode:
            pytest.skip(f"npm cannot install the package {name}: {done.stderr.strip()[-200:]}")
        with suppress(OSError):  # another worker was faster
            aside.rename(home)
    return home / "node_modules"
