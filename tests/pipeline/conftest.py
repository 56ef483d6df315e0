"""One Spark for all tests of the pipeline, and the journals they run on."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.pipeline.scenes import Built

if importlib.util.find_spec("pyspark") is None:  # the extra [spark] is not installed
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that use Spark are marked. tests/conftest.py keeps them in one process."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
            item.add_marker(pytest.mark.timeout(1800))  # the first of them starts Spark, on a machine that may be busy


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from holdfast.pipeline.spark.session import SparkTarget, open_session

    session = open_session(SparkTarget(master="local[2,4]", memory=1 << 30, quick=True))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def built(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A lake with its tables. Tests that change it make another."""
    from holdfast.pipeline.lake.lake import Lake
    from tests.pipeline.scenes import Built
    from tests.pipeline.test_build import build
    from tests.pipeline.traffic import Traffic

    traffic = Traffic(tmp_path_factory.mktemp("answers"), 21)
    traffic.go(200)
    events = traffic.export(rows=200)
    build(Lake(traffic.lake), spark)
    return Built(traffic, events)
