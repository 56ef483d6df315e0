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
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests import postgres

# Hypothesis measures the time of examples; on a busy machine that says nothing about the code. Its examples are the
# same in every run, so that `make test` never fails by chance; `pytest --hypothesis-profile=explore` tries others.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", PATIENT, derandomize=True)
settings.register_profile("explore", PATIENT, print_blob=True)
settings.load_profile("steady")

SPARK = "tests/pipeline/"
OWN_SPARK = "tests/pipeline/test_follow.py::test_following_a_live_server"
"""It starts one of its own, so it need not wait for the others."""

ARCHIVE = Path(sys.prefix) / "spark.jsa"
"""Spark's classes, made ready by tests/pipeline/archive.py. Java passes over one that does not fit, and is to do so
without a word: what the commands print is looked at."""
if ARCHIVE.exists() and ARCHIVE.stat().st_size:
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-XX:SharedArchiveFile={ARCHIVE} -Xshare:auto -Xlog:disable")

# Servers of tests are many, and some are killed: they keep nothing of the disk for the time when it is full.
os.environ.setdefault("HOLDFAST_STORE_RESERVE_BYTES", "0")

GATED = (
    *("tests/core/", "tests/engine/", "tests/journal/", "tests/transcripts/"),
    *("tests/mqtt/codec/test_conformance", "tests/mqtt/codec/test_encode", "tests/mqtt/codec/test_examples"),
    *("tests/mqtt/sessions/", "tests/mqtt/test_topics"),
    *("tests/mqtt/queues/test_admin", "tests/mqtt/queues/test_consume", "tests/mqtt/queues/test_durability"),
    *("tests/mqtt/queues/test_enqueue",),
    *("tests/mqtt/queues/test_leaving", "tests/mqtt/queues/test_settle", "tests/mqtt/queues/test_shapes"),
)
"""They cover every branch of the core, the engine and the MQTT rules, and do the same in every run: no thread, socket,
process, wall clock or random seed decides what they execute. `make test` measures the coverage of these alone."""


class Together(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Tests one by one to whoever is free, but those that share Spark to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) and not nodeid.startswith(OWN_SPARK) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Together:
    return Together(config, log)


def pytest_configure() -> None:
    postgres.configure()


def pytest_unconfigure() -> None:
    postgres.end()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(GATED) and not _uses_disk_or_sockets(item):
            item.add_marker("gated")
    items.sort(key=_start)


def _uses_disk_or_sockets(item: pytest.Item) -> bool:
    return any(store in item.nodeid.partition("[")[2] for store in ("rocks", "postgres")) or "http" in getattr(
        item, "fixturenames", ()
    )


def _start(item: pytest.Item) -> int:
    """Spark's tests, which are the longest row, then what is slow, then the rest."""
    if item.nodeid.startswith(SPARK):
        return 0
    return 1 if any(item.get_closest_marker(name) for name in ("slow", "crash")) else 2
