"""The Spark session a job runs in: embedded in this process, on a cluster, or at a Spark Connect server.

Embedded is the default and needs no set-up: `local[*,4]`, all cores, four tries for a task (`local[*]` would have one).
The pipeline uses nothing that Spark Connect lacks (no `sparkContext`, no JVM), so the same jobs run on all three.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from pyspark.sql import SparkSession

from holdfast.errors import InvalidArgument, LakeOutOfReach, SparkMissing
from holdfast.pipeline.lake.delta import spark_path
from holdfast.pipeline.spark.failures import SPARK_ERRORS, summary
from holdfast.pipeline.spark.java import java_home
from holdfast.units import GIB, MIB

EMBEDDED = "local[*,4]"
STANDARD_OUTPUT, STANDARD_ERROR = 1, 2

# A quarter of the machine for the embedded JVM, which leaves the rest to Python and to the file cache it reads from.
MEMORY_SHARE = 4
MEMORY_LOW = GIB
MEMORY_HIGH = 8 * GIB

# Settings that every session needs for correct files in the lake, also one with a configuration of its own.
LAKE_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default, INT96, has no statistics
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",  # properties may hold a name twice, Spark's maps cannot
}

# Further settings of an embedded session: no web page, no progress lines between ours, no metastore.
EMBEDDED_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",  # a job only to list files costs more
    "spark.sql.files.maxPartitionBytes": "64m",
    "spark.sql.files.openCostInBytes": "1m",
    "spark.shuffle.compress": "false",  # shuffles stay on this machine
    "spark.sql.adaptive.coalescePartitions.enabled": "false",  # as many partitions as cores are right
    "spark.sql.execution.sortBeforeRepartition": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

CONNECT_MODULES = ("grpc", "grpc_status", "zstandard")
"""Packages that PySpark needs for a Spark Connect server."""
CONNECT_PORT = 15002
CONNECT_SECONDS = 10.0

# A collector made for throughput, and Arrow without a check of every bound: its buffers are Spark's own.
JVM_OPTIONS = "-XX:+UseParallelGC -Darrow.enable_unsafe_memory_access=true"

# For little data, most of the time would go into compiling code that then runs for a moment: interpret instead.
QUICK_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
QUICK_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Darrow.enable_unsafe_memory_access=true"
QUICK_BYTES = 32 * MIB
"""A journal of at most so many bytes, about two million events, is small."""


class SparkTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job runs. At most one of `master` and `remote`."""

    master: str | None = None
    """A Spark master: `local[2]`, `spark://host:7077`, `yarn`, `k8s://…`."""
    remote: str | None = None
    """A Spark Connect server: `sc://host:15002`."""
    memory: int = 0
    """Bytes for the embedded JVM; 0: a quarter of the machine, 1 to 8 GiB."""
    quick: bool = False
    """For little data: an embedded Spark that starts sooner and runs slower."""
    silent: bool = False
    """No lines of Spark's log on standard error."""
    settings: dict[str, str] = {}
    """Further Spark settings; they win over ours."""


def open_session(where: SparkTarget | None = None, name: str = "holdfast") -> SparkSession:
    """Open a session as `where` says. If this process already has one, it is used again."""
    where = where or SparkTarget()
    if where.master and where.remote:
        raise InvalidArgument(field="--remote", problem="cannot be given together with --master: choose one")
    if where.remote:
        return _remote(where, name)
    master = where.master or EMBEDDED
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's own choice, any python3, may have no pyarrow
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = str(java_home(os.environ))
    builder = SparkSession.builder.master(master).appName(name)
    options = QUICK_JVM_OPTIONS if where.quick else JVM_OPTIONS
    options += " -Dholdfast.spark.log=off" if where.silent else ""
    settings = LAKE_SETTINGS | {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_log_settings()} {options}",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= EMBEDDED_SETTINGS
        settings |= {
            "spark.driver.memory": f"{(where.memory or memory_for()) // MIB}m",
            "spark.sql.shuffle.partitions": str(cores_of(master)),
        }
        settings |= QUICK_SETTINGS if where.quick else {}
    elif where.memory:
        settings["spark.driver.memory"] = f"{where.memory // MIB}m"
    for key, value in {**settings, **where.settings}.items():
        builder = builder.config(key, value)
    with output_on_standard_error():
        return builder.getOrCreate()


@contextmanager
def output_on_standard_error() -> Iterator[None]:
    """Processes that start meanwhile, Spark's JVM and its workers, have standard error as standard output: what they
    print must not get between the lines of a job's result."""
    sys.stdout.flush()
    own = os.dup(STANDARD_OUTPUT)
    os.dup2(STANDARD_ERROR, STANDARD_OUTPUT)
    try:
        yield
    finally:
        os.dup2(own, STANDARD_OUTPUT)
        os.close(own)


def _remote(where: SparkTarget, name: str) -> SparkSession:
    """A session at a server. The server has its own start-up settings; the SQL settings are the session's."""
    assert where.remote is not None
    missing = next((module for module in CONNECT_MODULES if importlib.util.find_spec(module) is None), None)
    if missing is not None:
        raise SparkMissing(missing=missing)
    if not where.remote.startswith("sc://"):
        raise InvalidArgument(field="--remote", problem=f"is sc://host:15002, not {where.remote!r}")
    _check_answers(where.remote)
    spark = SparkSession.builder.remote(where.remote).appName(name).getOrCreate()
    for key, value in {**LAKE_SETTINGS, **where.settings}.items():
        spark.conf.set(key, value)
    return spark


def _check_answers(remote: str) -> None:
    """Fail early: Spark's client would retry for many minutes."""
    address = urlsplit(remote)
    place = (address.hostname or "", address.port or CONNECT_PORT)
    try:
        socket.create_connection(place, timeout=CONNECT_SECONDS).close()
    except OSError as error:
        cause = f"names {place[0]}:{place[1]}, which does not respond ({error})"
        problem = f"{cause}: start the Spark Connect server there, or correct the address"
        raise InvalidArgument(field="--remote", problem=problem) from error


def check_reach(spark: SparkSession, where: SparkTarget, lake: Path) -> None:
    """A remote Spark must see the lake's files at the same path; otherwise what it writes would be lost."""
    place = where.remote or where.master
    segment = next((lake / "journal").glob("date=*/*.parquet"), None)
    if place is None or place.startswith("local") or segment is None:
        return
    try:
        spark.read.format("binaryFile").load(spark_path(segment)).select("length").collect()
    except SPARK_ERRORS as error:
        raise LakeOutOfReach(where=place, path=segment, problem=summary(str(error))) from error


def _log_settings() -> str:
    return (Path(__file__).parent / "log4j2.properties").resolve().as_uri()


def is_small(lake: Path) -> bool:
    """Whether a lake's journal is so small that a quick session takes less time."""
    return sum(file.stat().st_size for file in (lake / "journal").glob("date=*/*.parquet")) <= QUICK_BYTES


def cores_of(master: str) -> int:
    """How many cores `local[…]` names."""
    inside = master.partition("[")[2].rstrip("]").split(",")[0]
    if inside.isdecimal():
        return int(inside)
    return len(os.sched_getaffinity(0)) if inside == "*" else 1


def memory_for() -> int:
    """Bytes for the embedded JVM on this machine."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(whole // MEMORY_SHARE, MEMORY_LOW), MEMORY_HIGH)
