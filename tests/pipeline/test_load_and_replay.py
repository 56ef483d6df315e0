"""Loading files into a queue, and replaying its past, through a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from holdfast import wire
from holdfast.cli.main import main
from holdfast.client import SyncClient
from holdfast.config import Config
from holdfast.config.settings import HttpSettings, JournalSettings, NodeSettings
from holdfast.errors import InvalidArgument
from holdfast.pipeline.jobs.load import read_source, rows_to_load
from holdfast.pipeline.jobs.replay import Replayer, Slice, slices
from holdfast.pipeline.lake.job_runs import JobRun, RunStore
from holdfast.pipeline.lake.lake import Lake
from holdfast.testing import Broker
from tests.pipeline.test_build import build
from tests.waiting import PATIENCE_SECONDS


class Scene:
    def __init__(self, broker: Broker, client: SyncClient, directory: Path, spark: SparkSession) -> None:
        self.broker, self.client, self.directory, self.spark = broker, client, directory, spark

    def ask(self, *words: str, code: int = 0) -> Result:
        command = ["--url", self.broker.url, "pipeline", *words, "--lake", str(self.directory / "lake")]
        result = CliRunner().invoke(main, command, catch_exceptions=False, env={"HOLDFAST_YES": "1"})
        assert result.exit_code == code, result.output
        return result

    def replay(self, *words: str, code: int = 0) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.ask("replay", *words, "--quiet", "-o", "json", code=code).stdout)
        return found

    def build(self) -> None:
        assert self.broker._portal is not None
        self.broker._portal.run(self.broker.node.cell.export())
        build(Lake(self.directory / "lake"), self.spark)

    def waiting(self, queue: str) -> list[wire.MessageView]:
        return list(self.client.browse(queue))

    def stored(self, queue: str) -> Counter[int]:
        return Counter(json.loads(message.body())["n"] for message in self.waiting(queue))


@pytest.fixture(scope="module")
def scene(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("refill")
    config = Config(
        node=NodeSettings(data_dir=directory),
        journal=JournalSettings(segment_age=3_600_000_000),
        http=HttpSettings(listen="127.0.0.1:0"),
    )
    with Broker(config=config) as broker, broker.sync_client() as client:
        yield Scene(broker, client, directory, spark)


def test_a_file_is_loaded_once_and_its_messages_are_replayed(scene: Scene, tmp_path: Path) -> None:
    source = tmp_path / "rows.json"
    source.write_text("".join(json.dumps({"n": n, "who": f"u{n % 3}"}) + "\n" for n in range(20)))
    words = ["load", str(source), "--format", "json", "--queue", "in", "--dedup", "n"]
    assert "Would store 20 messages" in scene.ask(*words, "--dry-run").stderr
    for _ in range(2):
        assert "Stored 20 messages" in scene.ask(*words).stderr
    assert scene.stored("in") == Counter(range(20)), "the same ids are stored once"
    assert "cannot be read" in scene.ask("load", str(tmp_path / "nothing"), "--queue", "in", code=1).stderr
    scene.build()

    chosen = ["--queue", "in", "--to", "again", "--where", "payload.n >= 15"]
    dry = scene.replay(*chosen, "--dry-run")
    assert (dry["chosen"], len(dry["sample"])) == (5, 5)  # type: ignore[arg-type]
    first = scene.replay(*chosen, "--audit", "at-once")
    assert (first["moved"], first["state"]) == (5, "done")
    assert scene.replay("--audit", "at-once")["moved"] == 5
    assert scene.stored("again") == Counter(range(15, 20)), "run again under its id, it is there once"
    sources = {message.id: json.loads(message.body())["n"] for message in scene.waiting("in")}
    for message in scene.waiting("again"):
        assert message.origin is not None
        assert sources[message.origin.source_id] == json.loads(message.body())["n"]
        assert (message.origin.source_queue, message.origin.reason) == ("in", "replayed")
        assert message.properties == {"holdfast-replay": "at-once"}
        assert message.message_id == str(json.loads(message.body())["n"]), "the producer's id stays with it"

    paced = scene.replay(*chosen, "--rate", "500/s")
    assert paced["moved"] == 5
    assert scene.stored("again") == Counter([*range(15, 20)] * 2), "under another id all of them are there again"
    assert Counter(message.message_id for message in scene.waiting("again")) == Counter(map(str, [*range(15, 20)] * 2))
    original = scene.replay(*chosen, "--pace", "original", "--speed", "1000x")
    assert original["moved"] == 5
    finished = scene.ask("replay", *chosen, "--pace", "original", "--dry-run", "--explain")
    assert "in 0s" in finished.stderr
    assert "Physical Plan" in finished.stderr
    assert "read 40 events" in finished.stderr
    listed = RunStore(scene.directory / "lake").all()
    assert {run.id for run in listed} >= {"at-once", str(paced["id"])}

    # A replay that dies and is redriven is one chain with what it came from.
    replayed = {message.id: message.origin for message in scene.waiting("again")}
    [one] = scene.client.receive("again", limit=1)
    one.reject(error="no")
    [dead_letter] = scene.client.dead_letters("again")
    back = scene.client.retry_dead("again", dead_letter.id)
    scene.build()
    life = json.loads(scene.ask("history", back.id, "-o", "json", "--quiet").stdout)
    origin = replayed[one.id]
    assert origin is not None
    chain = {str(row["message_id"]) for row in life["chain"]}
    assert {origin.source_id, one.id, dead_letter.id, back.id} <= chain
    for words in (
        ["--queue", "in", "--where", "no_such = 1"],
        ["--queue", "in", "--rate", "fast"],
        ["--queue", "in", "--speed", "2x"],
        ["--queue", "in", "--pace", "original", "--rate", "3/s"],
        ["--audit", "at-once", "--queue", "in"],
        [],
    ):
        assert (
            CliRunner().invoke(main, ["pipeline", "replay", *words, "--lake", str(scene.directory / "lake")]).exit_code
        )


def test_any_source_that_spark_reads_is_loaded(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,amount,priority\n7,1.5,high\n8,2,low\n")
    table = rows_to_load(read_source(spark, "csv", str(tmp_path / "rows.csv"), {}), dedup="id", key="priority")
    assert [row.asDict() for row in table.orderBy("message_id").collect()] == [
        {"message_id": "7", "key": "high", "payload": '{"id":7,"amount":1.5,"priority":"high"}'},
        {"message_id": "8", "key": "low", "payload": '{"id":8,"amount":2.0,"priority":"low"}'},
    ]
    own = spark.createDataFrame([("text", 5, 17, "x")], "value string, priority bigint, key int, other string")
    own.write.parquet(str(tmp_path / "own"))
    own.createOrReplaceTempView("own")
    for found in (read_source(spark, "parquet", str(tmp_path / "own"), {}), read_source(spark, "table", "own", {})):
        (row,) = rows_to_load(found).collect()
        assert row.asDict() == {"value": "text", "priority": 5, "key": "17"}, "fields by name, in their types"
    java: Any = spark._jvm
    java.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    derby = {"url": f"jdbc:derby:{tmp_path}/db;create=true", "query": "SELECT 3 AS n FROM SYSIBM.SYSDUMMY1"}
    assert [row[0] for row in rows_to_load(read_source(spark, "jdbc", "", derby)).collect()] == ['{"N":3}']
    for words, named in (
        (("jdbc", "", {"url": "jdbc:x"}), "dbtable=TABLE"),
        (("jdbc", "", {"url": "jdbc:nothing:x", "dbtable": "t"}), "cannot be read"),
        (("parquet", "", {}), "PATH"),
        (("table", "no_such_table", {}), "no_such_table"),
        (("no_such_format", "x", {}), "no_such_format"),
    ):
        with pytest.raises(InvalidArgument, match=named):
            read_source(spark, *words)
    with pytest.raises(InvalidArgument, match="it has value, priority"):
        rows_to_load(own, dedup="nothing")


def test_a_past_is_cut_into_slices_by_its_own_pace_or_by_a_rate() -> None:
    past = [0, 10_000, 20_000, 1_000_000, 1_050_000, 60_000_000]
    assert slices(past, speed=1.0) == [Slice(0, 3, 0.0), Slice(3, 5, 1.0), Slice(5, 6, 60.0)]
    assert [part.seconds for part in slices(past, speed=10.0)] == [0.0, 0.1, 6.0]
    assert slices(past, rate=20.0) == [Slice(0, 2, 0.0), Slice(2, 4, 0.1), Slice(4, 6, 0.2)]
    many = slices([0] * 1_200, speed=1.0)
    assert [(part.first, part.end) for part in many] == [(0, 500), (500, 1000), (1000, 1200)]
    assert slices([], rate=1.0) == []


def rows(count: int) -> Iterator[dict[str, object]]:
    for n in range(count):
        yield {
            "at": datetime.fromtimestamp(n, UTC),
            "node": 0,
            "lsn": n + 1,
            "message_id": 1000 + n,
            "client_message_id": f"m{n}",
            "queue": "past",
            "payload": b'{"n": %d}' % n,
            "key": None,
            "priority": 5,
            "correlation_id": "c",
            "properties": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}],
        }


def chosen(count: int) -> pa.Table:
    places = [{name: row[name] for name in ("at", "node", "lsn")} for row in rows(count)]
    return pa.Table.from_pylist(
        places, pa.schema([("at", pa.timestamp("us", "UTC")), ("node", "int32"), ("lsn", "int64")])
    )


CHILD = """
import os, signal, sys
from pathlib import Path
from holdfast.client import SyncClient
from holdfast.pipeline.jobs.replay import Replayer
from holdfast.pipeline.lake.job_runs import RunStore
from tests.pipeline.test_load_and_replay import rows

runs = RunStore(Path(sys.argv[2]))
saved = runs.save
count = 0

def save(run):  # killed when a slice is in the queue, and nobody knows it yet
    global count
    count += 1
    if count == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    saved(run)

runs.save = save
with SyncClient(sys.argv[1]) as client:
    Replayer(client, runs, runs.get("r")).play(rows(8))
"""


def test_a_replay_that_is_killed_goes_on_under_its_id_and_stores_nothing_twice(tmp_path: Path) -> None:
    with Broker() as broker, broker.sync_client() as client:
        runs = RunStore(tmp_path)
        run = JobRun(id="r", job="replay", began_at=datetime.now(UTC), queue="past", to="now", speed=1_000.0, chosen=8)
        runs.begin(run, chosen(8))
        monkey = ["-c", "import holdfast.pipeline.jobs.replay as r; r.SLICE_SECONDS = 0.0005\n" + CHILD]
        killed = subprocess.run([sys.executable, *monkey, broker.url, tmp_path], check=False, timeout=PATIENCE_SECONDS)
        assert killed.returncode == -signal.SIGKILL
        assert runs.get("r").slices_done == 2
        stored = [json.loads(message.body())["n"] for message in client.browse("now")]
        assert stored == [0, 1, 2], "the third slice is there, and the record does not know"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("holdfast.pipeline.jobs.replay.SLICE_SECONDS", 0.0005)
            done = Replayer(client, runs, runs.get("r")).play(rows(8))
        assert (done.moved, done.state, done.slices_done) == (8, "done", 8)
        found = list(client.browse("now"))
        assert Counter(json.loads(message.body())["n"] for message in found) == Counter(range(8))
        assert found[0].properties == {"a": ["1", "2"], "holdfast-replay": "r"}
        assert (found[0].priority, found[0].correlation_id) == (5, "c")
