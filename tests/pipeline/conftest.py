"""One Spark for all tests of the pipeline, and the journals they run on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark", reason="the extra [spark] is not installed")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Spark's own imports
    from pyspark.sql import SparkSession

from holdfast.pipeline.session import Where, open_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that use Spark run in one process, also when tests are spread over several: starting it takes longer than
    most of them."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.timeout(300))  # the first of them starts Spark, on a machine that may be busy


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = open_session(Where(master="local[2,4]", memory=1 << 30, quick=True))
    yield session
    session.stop()
