"""The data source and the jobs on a real two-worker cluster, by its master's address and by Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.java import java_home
from tests.pipeline.cluster import Cluster
from tests.pipeline.copying import copied, expected, fill
from tests.pipeline.served import HOLDFAST, Served
from tests.pipeline.test_build import check
from tests.pipeline.traffic import Traffic

pytest.importorskip("grpc")

ROOT = Path(__file__).parents[2]
COUNT = 20_000
BATCH = 5_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.spark,
    pytest.mark.timeout(600),
]

CLIENT = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.pipeline.copying import start
from tests.pipeline.faults import FaultySource

remote, url, path, batch = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
spark.dataSource.register(FaultySource)
query = start(spark, url, Path(path), batch=int(batch))
assert query.awaitTermination(300)
frame = spark.read.format("holdfast").options(url=url, queue="out", columns="id,key").load()
print(frame.count(), frame.select("id").distinct().count(), frame.groupBy("key").count().count())
spark.range(10).selectExpr("CAST(id AS string) AS value").write.format("holdfast").options(
    url=url, queue="more").mode("append").save()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.connect()
        yield cluster


def run(command: list[str]) -> str:
    done = subprocess.run(
        command, check=False, timeout=500, cwd=ROOT, capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    return done.stdout


def test_an_executor_killed_while_it_reads_costs_nothing_but_time(cluster: Cluster, tmp_path: Path) -> None:
    """From a Spark Connect client, on executors that have nothing of Holdfast, with the data source that it brings."""
    before = cluster.executors()
    with Served(tmp_path / "broker") as served, served.client() as client:
        fill(client, COUNT)
        (tmp_path / "mid-read").write_text(str(before[0]))
        output = run([sys.executable, "-c", CLIENT, cluster.remote, served.url, str(tmp_path), str(BATCH)])
        assert (tmp_path / "mid-read.done").exists()
        assert before[0] not in cluster.executors()
        assert output.split() == [str(COUNT), str(COUNT), "50"]
        assert copied(client) == expected(COUNT)
        assert not list(client.browse("in"))
        assert sorted(message.body() for message in client.browse("more")) == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize("where", ["--remote", "--master"])
def test_jobs_run_on_the_cluster(cluster: Cluster, tmp_path: Path, where: str) -> None:
    traffic = Traffic(tmp_path, 7)
    lake = Lake(traffic.lake)
    traffic.go(80)
    events = traffic.export(rows=100)
    settings = [word for name, value in cluster.settings.items() for word in ("--conf", f"{name}={value}")]
    at = ["--remote", cluster.remote] if where == "--remote" else ["--master", cluster.master, *settings]

    def job(*words: str) -> str:
        return run([str(HOLDFAST), "pipeline", *words, "--lake", str(lake.path), *at])

    job("build")
    check(Lake(lake.path), events)
    if where == "--master":
        return  # what reads the lake differs in nothing from here on
    report = json.loads(job("report", "--output", "json"))
    assert report
    message = next(event["message_id"] for event in events if event["event"] == "acked")
    steps = json.loads(job("history", str(message), "--output", "json"))
    assert steps


def test_every_command_runs_on_spark_connect(cluster: Cluster, tmp_path: Path) -> None:
    """From a live server's journal, and back into its queues."""
    lake = tmp_path / "broker" / "data" / "lake"
    (tmp_path / "rows.json").write_text('{"a": 1}\n{"a": 2}\n')

    def job(*words: str) -> str:
        return run(
            [str(HOLDFAST), "--url", served.url, "pipeline", *words, "--lake", str(lake), "--remote", cluster.remote]
        )

    with Served(tmp_path / "broker", '[journal]\nsegment_age = "100ms"\n') as served, served.client() as client:
        client.create_queue("orders", {"retry": {"max_retries": 0}})
        client.send_many("orders", [{"order": n} for n in range(50)])
        for message in client.receive("orders", limit=50):
            message.ack() if message.json()["order"] % 5 else message.nack(error=f"no such customer {message.id}")
        served.exported()
        job("build", "--keep", "3650d")
        (cluster_of_deaths,) = json.loads(job("triage", "-o", "json"))
        assert cluster_of_deaths["deaths"] == 10
        redrive_args = ["redrive", "--queue", "dlq/orders", "--where", "payload.order < 25"]
        changed = ["--set", "payload.order = 1000", "--audit", "a1", "--yes", "-o", "json"]
        assert json.loads(job(*redrive_args, *changed))["moved"] == 5
        job("redrive", "--undo", "a1", "--yes")
        every = ["replay", "--queue", "orders", "--where", "payload IS NOT NULL", "--yes", "-o", "json"]
        assert json.loads(job(*every, "--to", "at-once"))["moved"] == 50
        assert json.loads(job(*every, "--to", "paced", "--rate", "1000/s"))["moved"] == 50
        job("load", str(tmp_path / "rows.json"), "--format", "json", "--queue", "loaded", "--yes")
        assert sorted(json.loads(message.body())["a"] for message in client.browse("loaded")) == [1, 2]
        served.exported()
        assert json.loads(job("reconcile", "--live", "-o", "json"))["broken"] == []


def test_spark_runs_the_declarative_pipeline(tmp_path: Path) -> None:
    """Over a Connect server of its own, which `spark-pipelines` starts: there no function may ask Spark anything."""
    traffic = Traffic(tmp_path / "server", 21)
    traffic.go(60)
    events = traffic.export(rows=200)
    (tmp_path / "transformations.py").write_text((ROOT / "examples/declarative/transformations.py").read_text())
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: holdfast\nstorage: file://{tmp_path}/storage\n"
        "libraries:\n  - glob:\n      include: transformations.py\n"
        f"configuration:\n  holdfast.journal: file://{traffic.lake}/journal\n"
    )
    own = {"JAVA_HOME": str(java_home(os.environ)), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    command = [
        str(Path(sys.executable).parent / "spark-pipelines"),
        "run",
        "--spec",
        str(tmp_path / "spark-pipeline.yml"),
    ]
    done = subprocess.run(
        command, check=False, timeout=500, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **own}
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5_000:]
    rows = {
        name: pq.ParquetDataset(tmp_path / "spark-warehouse" / name).read().num_rows
        for name in ("events", "failures", "causes", "payload_shapes")
    }
    assert rows["events"] == len(events)
    assert rows["payload_shapes"] > 0
    assert 0 < rows["causes"] <= rows["failures"]
    assert rows["failures"] == sum(event["event"] in ("failed", "dead", "dropped", "expired") for event in events)
