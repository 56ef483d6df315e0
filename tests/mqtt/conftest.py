"""The JavaScript client, for the tests that speak with clients of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.npm import npm_package


@pytest.fixture(scope="session")
def mqtt_js(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For NODE_PATH: has the npm package `mqtt`."""
    return npm_package(request, tmp_path_factory, "mqtt@5")
