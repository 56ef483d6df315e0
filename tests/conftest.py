"""How the tests run: what they have in common, and how `make test` spreads them over processes.

Those of the pipeline stay in one process, since Spark takes longer to start than most of them take to run; they begin
first, then what is slow, and what is short fills up the end, so that no process is idle while another has minutes to
go. Markers of xdist for groups would say the same, but xdist writes a group into a field that pytest no longer reads.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from pytest_cov.engine import DistMaster
from xdist.scheduler import LoadScopeScheduling

# Hypothesis measures the time of an example; on a busy machine that says nothing about the code.
settings.register_profile("steady", deadline=None)
settings.load_profile("steady")

SPARK = "tests/pipeline/"
OWN_SPARK = ("tests/pipeline/test_example.py", "tests/pipeline/test_follow.py::test_following_a_live_server")
"""They start one of their own, so they need not wait for the others."""

ARCHIVE = Path(sys.prefix) / "spark.jsa"
"""Spark's classes, made ready by tests/pipeline/archive.py. Java passes over one that does not fit, and is to do so
without a word: what the commands print is looked at."""
if ARCHIVE.exists() and ARCHIVE.stat().st_size:
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-XX:SharedArchiveFile={ARCHIVE} -Xshare:auto -Xlog:disable")

UNCOVERED = (
    *("tests/crash/", "tests/pipeline/", "tests/simulation/", "tests/test_examples", "tests/test_tutorial"),
    *("tests/mqtt/codec/test_fuzz", "tests/mqtt/codec/test_oracles", "tests/mqtt/codec/test_roundtrip"),
    *("tests/auth/", "tests/behaviour/", "tests/cli/", "tests/client/", "tests/store/"),
)
"""They run the core or the codec for long, or in other processes, and cover nothing that the others do not: measuring
makes them take half as long again, and some three times as long."""


class Together(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Tests one by one to whoever is free, but those that share Spark to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) and not nodeid.startswith(OWN_SPARK) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Together:
    return Together(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """In a process of xdist pytest-cov measures twice, once for nobody; `no_cover` would end only the other."""
    measuring = config.pluginmanager.getplugin("_cov")
    if hasattr(config, "workerinput") and isinstance(getattr(measuring, "cov_controller", None), DistMaster):
        measuring.cov_controller.cov.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(UNCOVERED):
            item.add_marker("no_cover")
    items.sort(key=lambda item: not any(item.get_closest_marker(name) for name in ("slow", "crash")))
