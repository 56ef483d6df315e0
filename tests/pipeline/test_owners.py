"""Rows are in their queue, or the write fails: whatever somebody else does with the id of their transaction."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from holdfast.client import SyncClient
from pyspark_holdfast.options import Options
from pyspark_holdfast.wire import Refused, Server
from pyspark_holdfast.writing import Written, publish
from tests.http_api.tenants import SECRET, token
from tests.pipeline.served import Served

ME, SOMEBODY = token("produce:in", "consume:in", subject="spark"), token("produce:other", subject="other")
ROWS = pa.table({"payload": [b"one", b"two"]})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = f'[auth]\ntoken_secret = "{SECRET}"\n'
    with Served(tmp_path_factory.mktemp("served"), config) as found:
        yield found


def options(served: Served) -> Options:
    return Options({"url": served.url, "token": ME, "queue": "in", "retryTimeout": "0"})


def test_a_job_is_written_though_somebody_else_published_its_id(served: Served, spark: SparkSession) -> None:
    Server(served.url, SOMEBODY, 0).publish("nightly", {})
    frame = spark.range(9).selectExpr("concat('n', id) AS value")
    for _ in range(2):  # the second time it was written by itself
        frame.write.format("holdfast").options(url=served.url, token=ME, queue="in", transactionId="nightly").mode(
            "append"
        ).save()
    with SyncClient(served.url, token=ME) as client:
        assert sorted(message.body() for message in client.browse("in")) == [b"n%d" % number for number in range(9)]


def test_a_transaction_that_was_published_with_other_rows_fails_the_write(served: Served) -> None:
    mine = options(served)
    assert mine.server.stage("t1", "in", ROWS, "0", "a", 0)
    mine.server.publish("t1", {})  # somebody with the same token
    with pytest.raises(RuntimeError, match=r"published by somebody else, with 0 messages .* 2 rows"):
        publish(mine, "t1", [Written("t1", "0", "a", 2), None])


def test_one_that_an_earlier_driver_published_is_done(served: Served) -> None:
    mine = options(served)
    assert mine.server.stage("t2", "in", ROWS, "0", "a", 0)
    publish(mine, "t2", [Written("t2", "0", "a", 2)])
    publish(mine, "t2", [Written("t2", "0", "a", 2)])  # the response to the first was lost
    assert not mine.server.stage("t2", "in", ROWS.slice(1), "0", "b", 0)
    publish(mine, "t2", [Written("t2", "0", "b", 1, done_before=True)])


def test_a_caller_that_may_not_produce_is_refused(served: Served) -> None:
    stranger = Server(served.url, token("consume:#"), 0)
    with pytest.raises(Refused, match="produce") as caught:
        stranger.publish("t3", {})
    assert caught.value.code == "forbidden"
