"""Dead letters chosen by SQL come back, through a real broker, once; and go away again if nobody consumed them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from holdfast.cli.main import main
from holdfast.client import SyncClient
from holdfast.config import Config
from holdfast.config.settings import HttpSettings, JournalSettings, NodeSettings
from holdfast.errors import InvalidArgument
from holdfast.pipeline.jobs.payload_changes import TransformError, put
from holdfast.pipeline.jobs.payload_fields import rewritten
from holdfast.pipeline.jobs.redrive import Redriver, choose, dead_queue_of
from holdfast.pipeline.lake.job_runs import JobRun, RunStore
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.tables import DEAD_LETTERS
from holdfast.pipeline.spark.session import output_on_standard_error
from holdfast.testing import Broker
from tests.pipeline.test_build import build, rows
from tests.waiting import PATIENCE_SECONDS

TRANSFORM = """
print("imported")

def cents(payload, dead_letter):
    print("called")
    assert dead_letter["reason"] == "rejected"
    if payload.startswith(b'{"order":1,'):
        return None
    return {"was": payload.decode(), "of": dead_letter["source_queue"]}

def broken(payload, dead_letter):
    raise KeyError("amount")
"""


QUEUES = {"orders": 12, "changed": 4, "slow": 5, "sick": 3, "alike": 3, "told": 2}
"""For each test a queue of its own, with so many dead letters: one build tells of them all."""


class Scene:
    """A broker with dead letters, and the lake that knows of them."""

    def __init__(self, broker: Broker, client: SyncClient, directory: Path, spark: SparkSession) -> None:
        self.broker, self.client, self.directory, self.spark = broker, client, directory, spark
        self.lake = Lake(directory / "lake")

    def die(self, queue: str, count: int) -> None:
        """So many orders die in a queue of their own."""
        self.client.create_queue(queue)
        for number in range(count):
            self.client.send(queue, {"order": number, "amount": number * 10, "who": {"name": "ab"[number % 2]}})
        for message in self.client.receive(queue, limit=count):
            message.reject(error=f"timeout after {message.attempt} ms")

    def build(self) -> None:
        assert self.broker._portal is not None
        self.broker._portal.run(self.broker.node.cell.export())
        build(self.lake, self.spark)

    def waiting(self, queue: str) -> set[int]:
        return {json.loads(dead_letter.body())["order"] for dead_letter in self.client.dead_letters(queue)}

    def stored(self, queue: str) -> Counter[int]:
        return Counter(json.loads(message.body())["order"] for message in self.client.browse(queue))

    def ask(self, *words: str, code: int = 0) -> Result:
        command = ["--url", self.broker.url, "pipeline", *words, "--lake", str(self.directory / "lake")]
        result = CliRunner().invoke(main, command, catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result

    def redrive(self, *words: str, code: int = 0) -> dict[str, object]:
        found: dict[str, object] = json.loads(
            self.ask("redrive", *words, "--yes", "--quiet", "-o", "json", code=code).stdout
        )
        return found


@pytest.fixture(scope="module")
def scene(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("redrive")
    config = Config(
        node=NodeSettings(data_dir=directory),
        journal=JournalSettings(segment_age=3_600_000_000),
        http=HttpSettings(listen="127.0.0.1:0"),
    )
    with Broker(config=config) as broker, broker.sync_client() as client:
        scene = Scene(broker, client, directory, spark)
        for queue, count in QUEUES.items():
            scene.die(queue, count)
        scene.build()
        yield scene


def test_dead_letters_are_chosen_by_payload_redriven_once_and_undone(scene: Scene) -> None:
    queue = "orders"
    where = "payload.amount >= 60 AND payload.who.name = 'b' AND reason = 'rejected'"
    chosen = ["--queue", f"dlq/{queue}", "--where", where, "--audit", "ops-1"]
    dry = scene.redrive(*chosen, "--dry-run")
    assert (dry["chosen"], dry["dry_run"], len(dry["sample"])) == (3, True, 3)  # type: ignore[arg-type]
    assert scene.waiting(queue) == set(range(12)), "a dry run changes nothing"
    dead_letters = Lake(scene.lake.path).read(scene.spark, "dead_letters")
    assert choose(dead_letters, f"dlq/{queue}", namespace="another").count() == 0
    moved = scene.redrive(*chosen)
    assert (moved["chosen"], moved["moved"], moved["state"]) == (3, 3, "done")
    assert scene.waiting(queue) == set(range(12)) - {7, 9, 11}
    assert {message.properties["holdfast-redrive"] for message in scene.client.browse(queue)} == {"ops-1"}
    again = scene.redrive("--audit", "ops-1")
    assert (again["chosen"], again["moved"]) == (3, 3), "run again, it has done the same and nothing more"
    assert scene.stored(queue) == Counter({7: 1, 9: 1, 11: 1})
    other = scene.ask("redrive", *chosen[:-2], "--audit", "ops-1", "--to", "elsewhere", "--yes", code=1)
    assert "started with another to" in other.stderr

    [delivery] = scene.client.lease(queue, limit=1)
    undone = scene.ask("redrive", "--undo", "ops-1", "--yes", "-o", "json", code=1)
    finished = json.loads(undone.stdout)
    assert (finished["undone"], finished["not_undone"]) == (2, {"leased": 1})
    assert [str(one["message"]) for one in finished["rest"]] == [delivery.id]
    assert scene.waiting(queue) == set(range(12)) - {json.loads(delivery.body())["order"]}
    assert "was undone" in scene.ask("redrive", "--audit", "ops-1", "--yes", code=2).stderr

    # The lake knows the letters under the ids they have now, and they can be redriven anew.
    scene.build()
    dead = [row for row in rows(Lake(scene.lake.path), "dead_letters") if row["source_queue"] == queue]
    assert len(dead) == 12
    assert Counter(row["outcome"] for row in dead) == {None: 11, "purged": 1}
    assert {row["letter_id"] for row in dead if row["outcome"] is None} == {
        int(dead_letter.id) for dead_letter in scene.client.dead_letters(queue)
    }
    more = scene.redrive("--queue", f"dlq/{queue}", "--where", where)
    assert (more["chosen"], more["moved"]) == (2, 2)

    listed = json.loads(scene.ask("runs", "-o", "json").stdout)
    by_id = {run["id"]: run for run in listed}
    assert (by_id["ops-1"]["state"], by_id["ops-1"]["where"], by_id["ops-1"]["moved"]) == ("undone", where, 3)
    assert by_id["ops-1"]["by"] == "anonymous"
    run_record = json.loads(scene.ask("runs", str(more["id"]), "-o", "json").stdout)
    assert run_record["statuses"] == {"waiting": 2}
    assert "ops-1" in scene.ask("runs").stdout
    assert "[run_not_found]" in scene.ask("runs", "nothing", code=1).stderr


def test_payloads_are_changed_on_their_way_and_say_what_they_were(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = "changed"
    sets = ["--set", "payload.amount = payload.amount * 2 + 1", "--set", "payload.who.at = upper(source_queue)"]
    dry = scene.redrive("--queue", f"dlq/{queue}", "--where", "payload.order >= 2", *sets, "--dry-run")
    sample = dry["sample"]
    assert isinstance(sample, list)
    assert json.loads(sample[0]["before"])["amount"] == 20
    assert json.loads(sample[0]["after"]) == {"order": 2, "amount": 41, "who": {"name": "a", "at": queue.upper()}}
    moved = scene.redrive("--queue", f"dlq/{queue}", "--where", "payload.order >= 2", *sets)
    assert moved["moved"] == 2
    for message in scene.client.browse(queue):
        body = json.loads(message.body())
        before = {"order": body["order"], "amount": body["order"] * 10, "who": {"name": "ab"[body["order"] % 2]}}
        assert body["amount"] == body["order"] * 20 + 1
        written = json.dumps(before, separators=(",", ":")).encode()
        assert message.properties["holdfast-original-sha256"] == sha256(written).hexdigest()
        assert message.origin is not None
        assert message.origin.source_queue == queue

    (tmp_path / "fixes.py").write_text(TRANSFORM)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["--queue", queue, "--where", "payload.order < 2", "--transform"]
    dry = scene.redrive(*words, "fixes:cents", "--dry-run")
    assert (dry["queue"], dry["chosen"], dry["moved"], dry["not_moved"]) == (f"dlq/{queue}", 2, 0, {"kept": 1})
    assert [one["problem"] for one in dry["unmoved"]] == ["the function declined it"]  # type: ignore[attr-defined]
    assert scene.redrive(*words, "fixes:broken", "--dry-run")["not_moved"] == {"kept": 2}
    rest = scene.redrive(*words, "fixes:cents", code=1)
    assert (rest["moved"], rest["not_moved"]) == (1, {"kept": 1})
    [made] = [message.body() for message in scene.client.browse(queue) if b"was" in message.body()]
    assert json.loads(made)["of"] == queue
    for words, named in (
        (["--set", "amount = 1"], "payload.FIELD = EXPRESSION"),
        (["--set", "payload.a = no_such + 1"], "--set"),
        (["--transform", "fixes:nothing"], "--transform"),
        (["--where", "payload.no_such = 1"], "no_such"),
        (["--where", "no_such_column = 1"], "--where"),
    ):
        assert named in scene.ask("redrive", "--queue", f"dlq/{queue}", *words, "--dry-run", code=1).stderr


def test_a_canary_that_is_not_done_keeps_the_rest_where_it_is_until_it_is(scene: Scene) -> None:
    queue = "slow"
    words = ["--queue", f"dlq/{queue}", "--canary", "2", "--canary-wait", "100ms", "--audit", "canary"]
    done = scene.redrive(*words, code=1)
    assert (done["chosen"], done["moved"], done["state"]) == (5, 2, "stopped")
    assert "2 were not done" in str(done["stopped"])
    assert len(scene.waiting(queue)) == 3
    for message in scene.client.receive(queue, limit=2):
        message.ack()
    done = scene.redrive("--audit", "canary", "--canary-wait", "10s")
    assert (done["moved"], done["state"]) == (5, "done")
    assert sum(scene.stored(queue).values()) == 3


def test_a_canary_that_dies_again_stops_the_redrive(scene: Scene) -> None:
    queue = "sick"
    words = ["--queue", f"dlq/{queue}", "--canary", "1", "--canary-wait", "0s", "--audit", "sick"]
    scene.redrive(*words, code=1)
    [message] = scene.client.receive(queue, limit=1)
    message.reject(error="again")
    done = scene.redrive("--audit", "sick", "--canary-wait", "60s", code=1)
    assert f"1 died again: {message.id}" in str(done["stopped"])
    assert len(scene.waiting(queue)) == 3


def test_the_command_that_triage_gives_works_as_it_is(scene: Scene) -> None:
    queue = "alike"
    clusters = json.loads(scene.ask("triage", "--queue", queue, "--waiting", "-o", "json").stdout)
    [cluster] = clusters
    words = shlex.split(cluster["redrive"])
    assert words[:3] == ["holdfast", "pipeline", "redrive"]
    moved = scene.redrive(*words[3:])
    assert (moved["moved"], moved["chosen"]) == (3, 3)
    assert sum(scene.stored(queue).values()) == 3


def test_every_job_says_what_it_read_and_wrote_and_explains_itself(scene: Scene) -> None:
    queue = "told"
    finished = scene.ask("redrive", "--queue", f"dlq/{queue}", "--yes", "--explain")
    for words in (
        "Physical Plan",
        "read ",
        "wrote 2 messages",
        "select dead letters",
        "move dead letters",
        "Audit id redrive-",
    ):
        assert words in finished.stderr, words
    assert RunStore(scene.lake.path).all()[0].moved == 2


def test_fields_of_the_payload_are_found_outside_of_quotes_only() -> None:
    assert rewritten("payload.a.b > 1 AND error = 'payload.x'") == "payload_json.a.b > 1 AND error = 'payload.x'"
    assert rewritten("payload.items[0].id = 'it''s payload.y'") == "payload_json.items[0].id = 'it''s payload.y'"
    assert rewritten("length(payload) > 3") == "length(payload) > 3"
    for quoted in ('error = "it is payload.a"', "`payload.a` = 1", 'error = "say ""payload.a"""'):
        assert rewritten(quoted) == quoted


@pytest.mark.parametrize(
    "where",
    [
        "",
        "payload.order >= 60",
        "payload.a.`b c` = 'x' AND payload.items[0].id > 3 OR payload.items[1].name IS NULL",
        "error = 'payload.x'",
    ],
)
def test_an_empty_dead_queue_has_no_dead_letters_whatever_is_asked(spark: SparkSession, where: str) -> None:
    """Fields that no payload shows were refused, as if they were mistyped."""
    assert choose(spark.createDataFrame([], DEAD_LETTERS.ddl), "dlq/orders", where).count() == 0


def test_a_queue_is_named_for_its_dead_queue_unless_that_is_shared(spark: SparkSession) -> None:
    rows = [("default", "dlq/orders", "orders"), ("default", "graveyard", "mail"), ("default", "dlq/mail", "mail")]
    dead_letters = spark.createDataFrame(rows, "namespace string, dead_queue string, source_queue string")
    assert dead_queue_of(dead_letters, "orders") == "dlq/orders"
    assert dead_queue_of(dead_letters, "dlq/orders") == "dlq/orders"
    assert dead_queue_of(dead_letters, "graveyard") == "graveyard"
    assert dead_queue_of(dead_letters, "unknown") == "dlq/unknown"
    with pytest.raises(InvalidArgument, match="--queue graveyard --where \"source_queue = 'mail'\""):
        dead_queue_of(dead_letters, "mail")


def test_what_spark_prints_is_not_in_a_jobs_result(capfd: pytest.CaptureFixture[str]) -> None:
    with output_on_standard_error():
        subprocess.run(["/bin/echo", "from a child"], check=True)
    os.write(1, b"result\n")
    assert capfd.readouterr() == ("result\n", "from a child\n")


@pytest.mark.parametrize(
    "where", ["reason = 'rejected' AND", "reason = 'rejected' or_else", "reason = 'no') OR (1 = 1", "1 = 1 --) OR (2"]
)
def test_a_condition_is_read_whole_or_refused(spark: SparkSession, where: str) -> None:
    """Words after a condition were taken for its name, and what came before selected."""
    dead_letters = spark.createDataFrame([], DEAD_LETTERS.ddl)
    if "--" in where:
        assert choose(dead_letters, "dlq/orders", where).count() == 0  # the rest is a comment
        return
    with pytest.raises(InvalidArgument, match="--where cannot be understood"):
        choose(dead_letters, "dlq/orders", where)


def test_a_value_is_put_where_it_belongs_and_the_rest_stays_as_it_was_written() -> None:
    document = b'{"price": 1.10, "big": 12345678901234567890.12, "list": [ {"a": 1}, 2 ]}'
    assert put(document, ("list", 0, "a"), b"7") == (b'{"price":1.10,"big":12345678901234567890.12,"list":[{"a":7},2]}')
    assert put(b"{}", ("new", "deep"), b'"x"') == b'{"new":{"deep":"x"}}'
    assert put(b'{"new": null}', ("new", "deep"), b"1") == b'{"new":{"deep":1}}'
    for payload, path in ((b"text", ("a",)), (b"[1]", (3,)), (b'{"a": 1}', ("a", "b"))):
        with pytest.raises(TransformError):
            put(payload, path, b"1")


CHILD = """
import os, signal, sys
from pathlib import Path
from holdfast.client import SyncClient
from holdfast.pipeline.jobs import redrive
from holdfast.pipeline.jobs.redrive import Redriver
from holdfast.pipeline.lake.job_runs import RunStore

redrive.DEAD_LETTERS_PER_REQUEST = 3
runs = RunStore(Path(sys.argv[2]))
run = runs.get(sys.argv[3])
dead_letters = runs.chosen(run)["letter_id"].to_pylist()

def progress(done):
    if done >= 9:
        os.kill(os.getpid(), signal.SIGKILL)

with SyncClient(sys.argv[1]) as client:
    Redriver(client, runs, run, progress).go(((dead_letter, None) for dead_letter in dead_letters))
"""


def test_a_redrive_that_is_killed_goes_on_under_its_id_and_counts_right(tmp_path: Path) -> None:
    with Broker() as broker, broker.sync_client() as client:
        client.create_queue("orders")
        client.send_many("orders", [{"order": number} for number in range(20)])
        for message in client.receive("orders", limit=20):
            message.reject()
        dead_letters = [int(dead_letter.id) for dead_letter in client.dead_letters("orders")]
        runs = RunStore(tmp_path)
        run = JobRun(id="r", job="redrive", began_at=datetime.now(UTC), queue="dlq/orders", chosen=20)
        runs.begin(run, pa.table({"letter_id": dead_letters}))
        killed = subprocess.run(
            [sys.executable, "-c", CHILD, broker.url, tmp_path, "r"], check=False, timeout=PATIENCE_SECONDS
        )
        assert killed.returncode == -signal.SIGKILL
        assert (runs.get("r").state, runs.get("r").moved) == ("running", 0), "it could not tell any more"
        assert client.redrive_audit("dlq/orders", "r").moved == 9
        done = Redriver(client, runs, runs.get("r")).go((dead_letter, None) for dead_letter in dead_letters)
        assert (done.moved, done.not_moved, done.state) == (20, {}, "done")
        assert Counter(json.loads(message.body())["order"] for message in client.browse("orders")) == Counter(range(20))
        assert list(client.dead_letters("orders")) == []
