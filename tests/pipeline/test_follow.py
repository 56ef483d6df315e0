"""`build --follow` beside a running server: killed and stopped, it neither loses nor doubles anything."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from holdfast.client import SyncClient
from holdfast.pipeline.build import follow
from holdfast.pipeline.build.follow import Builder, RefreshOptions, RefreshResult
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.stages import Stages
from tests.pipeline.test_build import rows
from tests.pipeline.traffic import Traffic
from tests.waiting import SPARK_SECONDS

HOLDFAST = Path(sys.executable).parent / "holdfast"


@contextmanager
def running(*words: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process of its own, killed at the end if it is still there."""
    with log.open("ab") as out:
        process = subprocess.Popen([str(HOLDFAST), *words], stdout=out, stderr=out)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def wait_for(condition: Callable[[], object], log: Path) -> None:
    until = time.monotonic() + SPARK_SECONDS
    while not condition():
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.05)


def states(lake: Path) -> Counter[str]:
    """The messages of the queue, as any Delta reader sees them, by state."""
    if not (lake / "tables" / "messages" / "_delta_log").is_dir():
        return Counter()
    return Counter(row["state"] for row in rows(Lake(lake), "messages") if row["queue"] == "work")


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_following_a_live_server_is_exact_over_a_kill_and_ends_when_told(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    config = tmp_path / "holdfast.toml"
    config.write_text('[journal]\nsegment_age = "200ms"\n')
    server = [
        "serve",
        "--config",
        str(config),
        "--data-dir",
        str(data),
        "--http",
        "127.0.0.1:0",
        "--mqtt",
        "127.0.0.1:0",
        "--log-format",
        "json",
    ]
    build = ["pipeline", "build", "--follow", "--interval", "100ms", "--lake", str(data / "lake")]
    with running(*server, log=log):
        wait_for(lambda: "listening" in log.read_text(), log)
        listening = [json.loads(line) for line in log.read_text().splitlines() if "listening" in line]
        with SyncClient(next(line["url"] for line in listening if "url" in line)) as client:
            with running(*build, log=log) as builder:  # before there is anything to build
                client.send_many("work", [{"n": n} for n in range(300)])
                for message in client.receive("work", limit=100):
                    message.ack()
                wait_for(lambda: states(data / "lake") == {"waiting": 200, "acked": 100}, log)
                builder.kill()
            for message in client.receive("work", limit=50):  # late facts of rows that are there already
                message.ack()
            client.send_many("work", [{"n": n} for n in range(300, 400)])
            with running(*build, log=log) as builder:
                wait_for(lambda: states(data / "lake") == {"waiting": 250, "acked": 150}, log)
                builder.send_signal(signal.SIGTERM)
                assert builder.wait(SPARK_SECONDS) == 0, log.read_text()
    assert "the next build continues from here" in log.read_text()
    found = rows(Lake(data / "lake"), "messages")
    assert len({row["message_id"] for row in found}) == len(found) == 400
    lsns = sorted(row["lsn"] for row in rows(Lake(data / "lake"), "events"))
    assert lsns == list(range(1, len(lsns) + 1)), "every event once"


def test_following_joins_files_and_lets_go_of_what_is_old(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "RETAIN_SECONDS", (0.0, 0.0))
    traffic = Traffic(tmp_path, 8)
    lake = Lake(traffic.lake)
    stop, refreshes = Event(), list[RefreshResult]()
    wanted = RefreshOptions(keep_seconds=1e9, small_files=2)

    def on_refresh(refresh: RefreshResult) -> None:
        refreshes.append(refresh)
        if len(refreshes) > 2:
            stop.set()
        else:
            traffic.go(30)
            traffic.export()

    with lake.lock():
        traffic.go(30)
        traffic.export()
        Builder(lake, spark, Stages(), wanted).follow(stop, 0.0, on_refresh)
        assert [refresh.built.batches for refresh in refreshes] == [1, 1, 1]
        assert refreshes[1].compacted["events"] == 2
        assert not any(refresh.expired_rows for refresh in refreshes), "nothing is that old"
        age = (datetime.now(UTC) - rows(lake, "events")[0]["at"]).total_seconds() - 86_400
        done = Builder(lake, spark, Stages(), RefreshOptions(keep_seconds=age)).refresh()
        assert done.expired_rows["events"] > 0
        versions = {table.spec.name: table.version for table in lake.tables}
        again = Builder(lake, spark, Stages(), RefreshOptions(keep_seconds=age)).refresh()
        assert again.expired_rows == {}
    assert {table.spec.name: table.version for table in lake.tables} == versions, "what lives on is left alone"
    left = rows(lake, "messages")
    assert {row["message_id"] for row in left} == {row["message_id"] for row in left if row["outcome"] is None}
    root, version = str(lake.messages.root), lake.messages.version
    traffic.go(30)
    traffic.export()
    with lake.lock():
        Builder(lake, spark, Stages(), RefreshOptions(compact=False, retention_hours=2)).refresh()
        assert DeltaTable(root, version=version).to_pyarrow_table().num_rows == len(left), "as it was"
        traffic.go(30)
        traffic.export()
        Builder(lake, spark, Stages(), RefreshOptions(compact=False, retention_hours=0)).refresh()
    with pytest.raises(FileNotFoundError):
        DeltaTable(root, version=version).to_pyarrow_table()
