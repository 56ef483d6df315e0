"""The JavaScript client, for the tests that speak with clients of others."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.waiting import PATIENCE_SECONDS


@pytest.fixture(scope="session")
def mqtt_js(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For NODE_PATH: has the npm package `mqtt`, fetched once and kept in pytest's cache, if it has one."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    if request.config.pluginmanager.hasplugin("cacheprovider"):
        cache = Path(request.config.cache.mkdir("npm"))
    else:
        cache = tmp_path_factory.mktemp("npm")
    home = cache / "mqtt-5"
    if not home.exists():
        aside = Path(mkdtemp(dir=cache))  # renamed when it is whole: other workers look for it at the same time
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(aside), "mqtt@5"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip("npm cannot install the package mqtt: no answer from its registry")
        if done.returncode:
            pytest.skip(f"npm cannot install the package mqtt: {done.stderr.strip()[-200:]}")
        with suppress(OSError):  # another worker was faster
            aside.rename(home)
    return home / "node_modules"
