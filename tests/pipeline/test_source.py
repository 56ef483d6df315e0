"""The data source `holdfast`, against a real broker."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import DataType, LongType, MapType, StringType, StructField, StructType

from holdfast.auth import keys, tokens
from holdfast.client import SyncClient
from holdfast.client.drafts import draft
from holdfast.config import Config
from holdfast.config.secret import SecretText
from holdfast.config.settings import AuthSettings, HttpSettings, NodeSettings
from holdfast.testing import Broker
from pyspark_holdfast import lag
from pyspark_holdfast.options import OPTIONS, Options
from pyspark_holdfast.ranges import Range, assign_ranges, split
from pyspark_holdfast.schema import VIEWS
from pyspark_holdfast.streams import StreamReader, advance
from pyspark_holdfast.wire import Refused, Server
from pyspark_holdfast.writing import _row_slices, check_writing
from tests.waiting import PATIENCE_SECONDS, SPARK_SECONDS

DOCS = Path(__file__).parents[2] / "docs"


class Scene:
    def __init__(self, broker: Broker, client: SyncClient, spark: SparkSession) -> None:
        self.broker, self.client, self.spark = broker, client, spark

    def rows(self, count: int) -> DataFrame:
        return self.spark.range(count).selectExpr(
            "concat('n', id) AS value", "concat('k', id % 7) AS key", "CAST(id % 5 AS int) AS priority"
        )

    def send(self, count: int, queue: str = "in", partitions: int = 3) -> None:
        """Messages n0, n1, … without Spark's help."""
        self.client.create_queue(queue, {"partitions": partitions})
        drafts = [draft(f"n{n}", key=f"k{n % 7}", priority=n % 5) for n in range(count)]
        self.client.send_many(queue, drafts)

    def write(self, frame: DataFrame, **options: str) -> None:
        frame.write.format("holdfast").options(url=self.broker.url, **options).mode("append").save()

    def read(self, **options: str) -> DataFrame:
        return self.spark.read.format("holdfast").options(url=self.broker.url, **options).load()

    def stored(self, queue: str) -> Counter[bytes]:
        return Counter(message.body() for message in self.client.browse(queue))

    def stream(self, path: Path, **options: str) -> list[dict[str, object]]:
        """Read all that is there into files; the progress of each batch."""
        source = self.spark.readStream.format("holdfast").options(
            **{"url": self.broker.url, "queue": "in", "group": "spark", **options}
        )
        sink = source.load().selectExpr("CAST(payload AS string) AS text", "sequence", "partition").writeStream
        query = (
            sink.format("parquet")
            .option("path", str(path / "out"))
            .option("checkpointLocation", str(path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(SPARK_SECONDS)
        return [json.loads(progress.json) for progress in query.recentProgress if progress.numInputRows]

    def texts(self, path: Path) -> Counter[str]:
        return Counter(row[0] for row in self.spark.read.parquet(str(path / "out")).select("text").collect())

    def committed(self) -> bool:
        """Whether the broker has let go of everything: the cursor group is the queue's only one."""
        return not self.stored("in")


@pytest.fixture
def scene(spark: SparkSession) -> Iterator[Scene]:
    with Broker() as broker, broker.sync_client() as client:
        yield Scene(broker, client, spark)


# --- batch writes ---------------------------------------------------------------------------------------------------


def test_a_written_frame_is_there_once_however_often_the_job_runs(scene: Scene) -> None:
    scene.write(scene.rows(500).repartition(3), queue="in", transactionId="job-1", batchRows="100")
    scene.write(scene.rows(500).repartition(3), queue="in", transactionId="job-1", batchRows="100")
    assert scene.stored("in") == Counter(f"n{number}".encode() for number in range(500))
    one = next(iter(scene.client.browse("in")))
    assert one.key == f"k{int(one.body()[1:]) % 7}"
    assert one.priority == int(one.body()[1:]) % 5
    scene.write(scene.rows(9).selectExpr("value", "concat('q', key) AS queue"))
    assert [sum(scene.stored(f"qk{number}").values()) for number in range(4)] == [2, 2, 1, 1]


def test_all_columns_of_a_message_can_be_written(scene: Scene) -> None:
    frame = scene.spark.range(1).selectExpr(
        "CAST('x' AS binary) AS payload",
        "'k' AS key",
        "3 AS priority",
        "TIMESTAMP '2200-01-01T00:00:00Z' AS deliver_at",
        "INTERVAL '1' HOUR AS ttl",
        "'m' AS message_id",
        "map('a', 'b') AS properties",
        "'c' AS correlation_id",
        "'text/plain' AS content_type",
        "'back' AS reply_to",
    )
    scene.write(frame, queue="in")
    one = next(iter(scene.client.browse("in")))
    assert (one.key, one.priority, one.message_id, one.correlation_id, one.reply_to) == ("k", 3, "m", "c", "back")
    assert (one.properties, one.content_type) == ({"a": "b"}, "text/plain")
    row = scene.read(queue="in").collect()[0]
    assert row.deliver_at.replace(tzinfo=UTC) == datetime(2200, 1, 1, tzinfo=UTC)
    assert bytes(row.payload) == b"x"
    assert row.properties == {"a": "b"}
    assert row.expires_at is not None


def test_without_a_transaction_rows_are_known_again_by_their_id_or_not_at_all(scene: Scene) -> None:
    rows = scene.spark.range(20).selectExpr("concat('n', id) AS value", "CAST(id AS string) AS message_id").coalesce(1)
    for _ in range(2):
        scene.write(rows, queue="known", delivery="idempotent", batchRows="7")
        scene.write(rows.drop("message_id"), queue="unknown", delivery="atLeastOnce", ratePerSecond="1000")
    assert scene.stored("known") == Counter(f"n{number}".encode() for number in range(20))
    assert scene.stored("unknown") == Counter({f"n{number}".encode(): 2 for number in range(20)})


def test_what_cannot_be_written_is_said_before_anything_is(scene: Scene) -> None:
    with pytest.raises(Exception, match="no message has a 'amount'; columns are payload, value"):
        scene.write(scene.spark.range(1).selectExpr("'a' AS value", "1 AS amount"), queue="in")
    with pytest.raises(Exception, match="added, not overwritten"):
        scene.rows(1).write.format("holdfast").options(url=scene.broker.url, queue="in").mode("overwrite").save()


# --- batch reads ----------------------------------------------------------------------------------------------------


def test_a_queue_is_read_as_a_frame_and_nothing_is_leased(scene: Scene) -> None:
    scene.send(2500)
    frame = scene.read(queue="in", minPartitions="5")
    found = frame.selectExpr(
        "count(*)", "count(DISTINCT id)", "max(CAST(payload AS string))", "max(size_bytes)", "max(priority)"
    ).collect()[0]
    assert tuple(found) == (2500, 2500, "n999", 5, 4)
    assert frame.select(F.spark_partition_id()).distinct().count() >= 5
    assert sum(scene.stored("in").values()) == 2500


def test_deliveries_and_dead_letters_are_views_of_their_own(scene: Scene) -> None:
    scene.client.create_queue("in", {"partitions": 2})
    assert scene.read(queue="in", view="dead_letters").count() == 0, "nothing has died yet"
    scene.client.send_many("in", [f"n{n}" for n in range(4)])
    first, second = scene.client.receive("in", limit=2)
    first.reject("cannot be")
    rows = scene.read(queue="in", view="deliveries").collect()
    assert Counter(row.state for row in rows) == {"ready": 2, "leased": 1}
    (leased,) = [row for row in rows if row.state == "leased"]
    assert (leased.group, leased.attempt, leased.id) == ("default", 1, int(second.id))
    assert leased.consumer
    assert leased.lease_deadline > leased.enqueued_at
    (dead,) = scene.read(queue="in", view="dead_letters").collect()
    assert (dead.reason, dead.error, dead.source_queue, dead.attempts) == ("rejected", "cannot be", "in", 1)
    assert bytes(dead.payload) == first.body
    assert scene.read(queue="dlq/in", view="dead_letters").count() == 1


def test_columns_are_asked_of_the_server_by_option_or_by_schema(scene: Scene) -> None:
    scene.send(10)
    assert scene.read(queue="in", columns="sequence, key").columns == ["sequence", "key"]
    assert "properties" not in scene.read(queue="in", includeProperties="false").columns
    repeated = "array(named_struct('name', 'a', 'value', '1'), named_struct('name', 'a', 'value', '2')) AS properties"
    scene.write(scene.spark.range(1).selectExpr("'x' AS value", repeated), queue="listed")
    (listed,) = scene.read(queue="listed", includeProperties="array").select("properties").collect()
    assert [(one.name, one.value) for one in listed.properties] == [("a", "1"), ("a", "2")], "no name is lost"
    assert scene.read(queue="listed").collect()[0].properties == {"a": "2"}
    nameless = "array(named_struct('name', CAST(NULL AS string), 'value', '1')) AS properties"
    with pytest.raises(Exception, match="a property has no name"):
        scene.write(scene.spark.range(1).selectExpr("'x' AS value", nameless), queue="listed")
    given = (
        scene.spark.read.format("holdfast").options(url=scene.broker.url, queue="in").schema("priority int, id bigint")
    )
    assert {row.priority for row in given.load().collect()} == {0, 1, 2, 3, 4}
    with pytest.raises(Exception, match="column priority is int, not string"):
        scene.spark.read.format("holdfast").options(url=scene.broker.url, queue="in").schema(
            "priority string"
        ).load().collect()
    with pytest.raises(Exception, match="has no column 'group'; it has id, sequence"):
        scene.read(queue="in", columns="group")


def test_conditions_are_checked_by_the_server(scene: Scene) -> None:
    scene.send(300)
    scene.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = scene.read(queue="in", pushdown="true", columns="sequence,partition,priority,key,enqueued_at,id")
        wanted = frame.where(
            "priority >= 3 AND key IN ('k0', 'k1', 'k2', 'k3', 'k4') AND partition = 1 AND sequence < 90"
        )
        plan = wanted._jdf.queryExecution().toString()
        assert "Filter " not in plan.split("== Physical Plan ==")[1], "nothing is left for Spark to check"
        plain = scene.read(queue="in").where(
            "priority >= 3 AND key IN ('k0', 'k1', 'k2', 'k3', 'k4') AND partition = 1 AND sequence < 90"
        )
        assert wanted.count() == plain.count() > 0
        one = plain.select("id", "enqueued_at").collect()[0]
        assert frame.where(F.col("id") == one.id).select("id").collect() == [(one.id,)]
        same = frame.where(F.col("enqueued_at") == one.enqueued_at).count()
        assert same == scene.read(queue="in").where(F.col("enqueued_at") == one.enqueued_at).count() > 0
        assert frame.where(F.col("enqueued_at") < one.enqueued_at).count() == 0
        assert frame.where("key IS NULL OR length(key) > 2").count() == 0, "what the server cannot check, Spark does"
        states = scene.read(queue="in", view="deliveries", pushdown="true")
        assert states.where("state = 'leased' AND group = 'default'").count() == 0
    finally:
        scene.spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_offsets_bound_a_batch_by_sequence_or_by_time(scene: Scene) -> None:
    scene.send(10, partitions=1)
    assert scene.read(queue="in", startingOffsets='{"0": 4}', endingOffsets='{"0": 7}').count() == 3
    assert scene.read(queue="in", startingOffsets="2026-01-01T00:00:00Z").count() == 10
    assert scene.read(queue="in", endingOffsets="2026-01-01T00:00:00Z").count() == 0
    for wrong in ({"startingOffsets": "latest"}, {"endingOffsets": "earliest"}, {"startingOffsets": "{1: 2}"}):
        with pytest.raises(Exception, match="Offsets"):
            scene.read(queue="in", **wrong).collect()


# --- streams --------------------------------------------------------------------------------------------------------


def test_a_stream_reads_each_message_once_in_bounded_batches_and_commits_the_last(scene: Scene, tmp_path: Path) -> None:
    scene.send(300)
    batches = scene.stream(tmp_path, maxMessagesPerTrigger="100")
    assert [batch["numInputRows"] for batch in batches] == [100, 100, 100]
    assert [sum(lag(batch).values()) for batch in batches] == [200, 100, 0], "the query's progress shows its lag"
    assert scene.committed(), "also the last batch: Spark itself commits it only with the next data"
    scene.client.send_many("in", [f"n{n}" for n in range(300, 350)])
    assert len(scene.stream(tmp_path, maxMessagesPerTrigger="100", minPartitions="6")) == 1
    assert scene.texts(tmp_path) == Counter(f"n{number}" for number in range(350))
    assert scene.committed()


def test_a_stream_is_written_in_a_transaction_for_each_batch(scene: Scene, tmp_path: Path) -> None:
    scene.send(120, partitions=2)
    source = scene.spark.readStream.format("holdfast").options(
        url=scene.broker.url, queue="in", group="copy", maxMessagesPerTrigger="50"
    )
    query = (
        source.load()
        .select("payload", "key")
        .writeStream.format("holdfast")
        .options(url=scene.broker.url, queue="out", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SPARK_SECONDS)
    assert scene.stored("out") == Counter(f"n{number}".encode() for number in range(120))
    assert scene.committed()


# --- what needs no Spark --------------------------------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def filled(broker: Broker, count: int, partitions: int = 1) -> SyncClient:
    client = broker.sync_client()
    client.create_queue("in", {"partitions": partitions})
    client.send_many("in", [f"n{n}" for n in range(count)])
    return client


def reader(broker: Broker, **options: str) -> StreamReader:
    given = {"url": broker.url, "queue": "in", "group": "spark", **options}
    return StreamReader(Options(given), {"sequence": "bigint", "payload": "binary"})


def taken(one: StreamReader, start: dict[str, int], end: dict[str, int]) -> list[bytes]:
    """The payloads of a batch."""
    return [
        payload.as_py()
        for work in one.partitions(start, end)
        for batch in one.read(work)
        for payload in batch["payload"]
    ]


def test_a_stream_s_batches_are_bounded_in_bytes(broker: Broker) -> None:
    with filled(broker, 0, 2) as client:
        client.send_many("in", [draft(f"{n:02}" + "x" * 998, key="a") for n in range(12)])
        client.send_many("in", [draft("big" + "x" * 9_997, key="b")])
    one = reader(broker, maxBytesPerTrigger="8k")
    at, batches = one.initialOffset(), []
    everything = one.latestOffset(at, ReadAllAvailable())
    while (end := one.latestOffset(at, one.getDefaultReadLimit())) != at:
        batches.append(taken(one, at, end))
        at = end
    assert sorted(payload for batch in batches for payload in batch) == sorted(
        [b"%02d" % n + b"x" * 998 for n in range(12)] + [b"big" + b"x" * 9_997]
    )
    assert all(
        sum(map(len, batch)) <= 8 << 10 or len(batch) == 1 + sum(len(p) < 9_000 for p in batch) for batch in batches
    )
    assert 2 <= len(batches) <= 5
    assert everything == at, "whoever wants all gets all"


def test_a_stream_begins_where_it_is_told(broker: Broker) -> None:
    with filled(broker, 10):
        assert reader(broker, group="a").initialOffset() == {"0": 1}
        assert reader(broker, group="b", startingOffsets="latest").initialOffset() == {"0": 11}
        assert reader(broker, group="c", startingOffsets='{"0": 8}').initialOffset() == {"0": 8}
        assert reader(broker, group="d", startingOffsets="2199-01-01T00:00:00Z").initialOffset() == {"0": 11}
        assert reader(broker, group="e", startingOffsets="2026-01-01T00:00:00Z").initialOffset() == {"0": 1}
        for _ in range(2):
            assert reader(broker, group="b").initialOffset() == {"0": 11}, "where the group stands"
        for wrong, problem in (('{"0": 17}', "which ends at 11"), ('{"3": 1}', "names partition 3, the queue has 1")):
            with pytest.raises(ValueError, match=problem):
                reader(broker, startingOffsets=wrong).initialOffset()
        one = reader(broker, queue="new", group="f")
        assert one.initialOffset() == {str(partition): 1 for partition in range(10)}, "a queue appears on first use"


def test_what_is_not_kept_fails_the_query_unless_it_may_be_lost(broker: Broker) -> None:
    with filled(broker, 20) as client:
        strict, lax = reader(broker), reader(broker, failOnDataLoss="false")
        limit = strict.getDefaultReadLimit()
        assert strict.latestOffset(strict.initialOffset(), limit) == {"0": 21}
        Server(broker.url, None, 5).commit("in", "spark", {0: 15})
        lost = "sequences 1 to 15 of partition 0 of queue 'in' are not kept for group 'spark'"
        with pytest.raises(RuntimeError, match=lost):
            strict.latestOffset({"0": 1}, limit)
        with pytest.raises(RuntimeError, match=lost):
            taken(strict, {"0": 1}, {"0": 21})
        with pytest.raises(RuntimeError, match="sequences 3 to 15"):
            reader(broker, startingOffsets='{"0": 3}').initialOffset()
        assert lax.latestOffset({"0": 1}, limit) == {"0": 21}
        assert taken(lax, {"0": 1}, {"0": 21}) == [b"n15", b"n16", b"n17", b"n18", b"n19"]
        assert taken(lax, {"0": 1}, {"0": 9}) == []
        client.delete_queue("in")
    with filled(broker, 5), pytest.raises(RuntimeError, match="the queue was deleted and created again"):
        lax.latestOffset({"0": 21}, limit)


def test_a_group_with_a_limit_of_its_own_is_used_and_one_of_another_kind_is_not(broker: Broker) -> None:
    with filled(broker, 3) as client:
        client.create_group("in", "spark", kind="cursor", start="earliest", max_lag_messages=1000)
        assert reader(broker).initialOffset() == {"0": 1}
        client.create_group("in", "work")
        with pytest.raises(Refused, match="work"):
            reader(broker, group="work").initialOffset()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"view": "deliveries"}, "a stream reads messages"),
        ({"group": ""}, "option 'group' is needed"),
        ({"endingOffsets": "2026-01-01"}, "endingOffsets is for batch reads"),
        ({"maxBytesPerTrigger": "much"}, "is a size such as 64m"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss is true or false"),
        ({"startingOffsets": '{"a": 1}'}, "startingOffsets is earliest, latest, an instant"),
        ({"url": "127.0.0.1:8080"}, "url is http://host:port"),
        ({"qeueu": "in"}, "unknown option 'qeueu'; did you mean queue"),
        ({"delivery": "twice"}, "delivery is transactional, idempotent or atLeastOnce"),
        ({"delivery": "atLeastOnce", "transactionId": "x"}, "means nothing with delivery atLeastOnce"),
        ({"minPartitions": "-1"}, "minPartitions is a whole number from 0 to 10000"),
        ({"includeProperties": "yes"}, "includeProperties is true, array or false"),
        ({"asyncProgressTrackingEnabled": "true"}, "asyncProgressTrackingEnabled must stay off"),
    ],
)
def test_wrong_options_are_named_with_what_is_right(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        StreamReader(Options({"queue": "in", "group": "g", **options}), {})


def test_a_token_file_may_be_renewed_while_a_stream_runs(tmp_path: Path) -> None:
    secret = SecretText("s" * 40)
    config = Config(
        node=NodeSettings(data_dir=tmp_path),
        http=HttpSettings(listen="127.0.0.1:0"),
        auth=AuthSettings(token_secret=secret),
    )
    file = tmp_path / "token"

    def renew(expires: int) -> None:
        claims = tokens.Claims(sub="spark", exp=expires, scope="consume:#")
        file.write_text(tokens.sign(claims, keys.from_secret(secret)) + "\n")

    with Broker(config=config) as guarded:
        server = Options({"queue": "in", "url": guarded.url, "tokenFile": str(file), "retryTimeout": "0"}).server
        with pytest.raises(ValueError, match=r"tokenFile .* cannot be read here"):
            server.namespace("in")
        renew(1)
        with pytest.raises(Refused) as refused:
            server.namespace("in")
        assert refused.value.status == 401
        renew(int(time.time()) + 3_600)
        assert server.namespace("in") is None
        assert pickle.loads(pickle.dumps(server)).namespace("in") is None
    with pytest.raises(ValueError, match="cannot be given together"):
        Options({"queue": "in", "token": "t", "tokenFile": str(file)})


def test_a_namespace_that_the_token_is_not_for_is_refused(broker: Broker) -> None:
    with filled(broker, 1), pytest.raises(ValueError, match="the token is for namespace 'default', not 'other'"):
        reader(broker, namespace="other").initialOffset()


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        ({"value": LongType()}, {"queue": "in"}, "column value is binary or string, not bigint"),
        ({"value": StringType(), "payload": StringType()}, {"queue": "in"}, "one column must be named payload"),
        (
            {"value": StringType(), "properties": MapType(StringType(), LongType())},
            {"queue": "in"},
            "properties is map<string,string>",
        ),
        ({"value": StringType()}, {}, "option 'queue' is needed"),
        ({"value": StringType()}, {"queue": "in", "delivery": "idempotent"}, "needs a column message_id"),
    ],
)
def test_columns_of_a_wrong_kind_are_named(columns: dict[str, DataType], options: dict[str, str], problem: str) -> None:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(ValueError, match=problem):
        check_writing(Options(options), schema, False)


def test_batches_take_an_even_share_of_each_partition_and_never_more_than_their_room() -> None:
    assert advance({"0": 1, "1": 1}, {"0": 100, "1": 100}, 10) == {"0": 6, "1": 6}
    assert advance({"0": 1, "1": 1}, {"0": 3, "1": 100}, 10) == {"0": 3, "1": 9}
    assert advance({"0": 5}, {"0": 5, "1": 4}, 10) == {"0": 5, "1": 4}, "a partition that is new"
    assert advance({"0": 9}, {"0": 5}, 10) == {"0": 9}, "never back"


def test_ranges_are_split_as_wished_and_put_together_where_there_is_little() -> None:
    shuffle_files = split([Range(0, 1, 11), Range(1, 1, 3)], 6)
    assert len(shuffle_files) >= 6
    assert sorted(n for one in shuffle_files if one.partition == 0 for n in range(one.first, one.until)) == list(
        range(1, 11)
    )
    little = [Range(partition, 1, 3) for partition in range(10)]
    assert [len(work.ranges) for work in assign_ranges(little, 0)] == [10]
    much = [Range(partition, 1, 10_001) for partition in range(10)]
    assert [len(work.ranges) for work in assign_ranges(much, 0)] == [1] * 10
    assert assign_ranges([Range(0, 5, 5)], 0) == []


def test_requests_are_neither_too_many_rows_nor_too_many_bytes() -> None:
    import pyarrow as pa

    small = pa.table({"payload": [b"x"] * 25})
    assert list(_row_slices(small, 10)) == [(0, 10), (10, 20), (20, 25)]
    large = pa.table({"payload": [b"x" * (3 << 20)] * 5})
    assert list(_row_slices(large, 10)) == [(0, 2), (2, 4), (4, 5)]
    assert list(_row_slices(small.slice(0, 0), 10)) == []


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(Refused, match=r"http://127\.0\.0\.1:9 did not respond"):
        Server("http://127.0.0.1:9", None, 0).ends("in", "g")


def test_every_option_and_column_is_documented() -> None:
    page = (DOCS / "how-to" / "use-queues-from-spark.md").read_text()
    assert [name for name in OPTIONS if f"| `{name}` |" not in page] == []
    columns = {name for view in VIEWS.values() for name in view}
    assert [name for name in sorted(columns) if f"`{name}`" not in page] == []


EXECUTOR = """
import pickle, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("holdfast", "pyspark_holdfast", "msgspec", "httpx"):
            raise ImportError(f"{name} is not there on an executor")

sys.meta_path.insert(0, Blocker())
reader, writer = pickle.load(sys.stdin.buffer)
work = reader.partitions({"0": 1}, {"0": 4})
rows = [row for one in work for batch in reader.read(one) for row in batch.to_pylist()]
print([row["payload"].decode() for row in rows], type(writer).__name__)
assert not [name for name in sys.modules if name.split(".")[0] in ("holdfast", "pyspark_holdfast")]
"""


def test_readers_and_writers_come_along_to_executors_that_have_nothing_of_ours() -> None:
    from pyspark import cloudpickle

    from pyspark_holdfast import DefaultSource

    with Broker() as broker, broker.sync_client() as client:
        client.create_queue("in", {"partitions": 1})
        client.send_many("in", [f"n{n}" for n in range(5)])
        source = DefaultSource({"url": broker.url, "queue": "in", "group": "g"})
        writer = source.writer(StructType([StructField("payload", StringType())]), False)
        sent = cloudpickle.dumps((source.streamReader(source.schema()), writer))  # type: ignore[no-untyped-call]
        done = subprocess.run(
            [sys.executable, "-c", EXECUTOR], input=sent, capture_output=True, check=False, timeout=PATIENCE_SECONDS
        )
    assert done.stdout.decode().strip() == "['n0', 'n1', 'n2'] BatchWriter", done.stderr.decode()
