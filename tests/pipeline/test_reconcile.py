"""The proof holds for honest journals, and every kind of harm is caught and named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from pyspark.sql import SparkSession

from holdfast.broker.snapshot_dump import take
from holdfast.cli.main import main
from holdfast.config import Config
from holdfast.config.settings import HttpSettings, JournalSettings, NodeSettings
from holdfast.core.commands import Draft, Verb
from holdfast.core.queue import GroupKind
from holdfast.core.records import LAST, Table, message_key, ready_key
from holdfast.engine.groups import add_group
from holdfast.errors import InvalidArgument
from holdfast.journal.manifest import NO_ENTRY, Manifest, SegmentEntry, parse, seal, segment_name
from holdfast.journal.segment import digest
from holdfast.journal.verify import verify
from holdfast.pipeline.jobs.checkpoint import read_key
from holdfast.pipeline.jobs.reconcile import Proof, read_snapshot, reconcile
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.stages import Stages
from holdfast.testing import Broker
from tests.broker.export.lake import NODE, TASKS
from tests.pipeline.traffic import Traffic


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Traffic:
    """A journal of several segments, with a tail that is not exported, and messages of all kinds still live."""
    traffic = Traffic(tmp_path_factory.mktemp("honest"), 11)
    for _ in range(4):
        traffic.go(60)
        traffic.export(rows=100)
    traffic.go(20)
    traffic.enqueue(3)
    take(traffic.engine, NODE, traffic.now, traffic.lake / "snapshot")
    return traffic


def prove(spark: SparkSession, lake: Path) -> Proof:
    return reconcile(Lake(lake), spark, Stages(), lake / "snapshot")


def copy_of(honest: Traffic, to: Path) -> Path:
    shutil.copytree(honest.lake, to / "lake")
    return to / "lake"


def test_an_honest_journal_is_proved(spark: SparkSession, honest: Traffic) -> None:
    proof = prove(spark, honest.lake)
    assert (proof.chain, proof.broken) == ([], [])
    assert proof.good
    assert proof.against_broker
    assert proof.last_lsn == {NODE: honest.engine.record.next_lsn - 1}
    workers = next(row for row in proof.balances if (row.queue, row.group) == ("tasks", "workers"))
    assert workers.enqueued == workers.acked + workers.dead + workers.purged + workers.expired + workers.dropped + (
        workers.live + workers.before
    )
    assert {row.unproved for row in proof.balances} == {0}
    assert workers.live > 0
    assert {(row.queue, row.group) for row in proof.balances} >= {
        ("log", "reader"),
        ("dlq/tasks", "operators"),
        ("tasks", "audit"),
        ("tasks", None),
    }
    without = reconcile(Lake(honest.lake), spark, Stages())
    assert without.good
    assert not without.against_broker


def test_a_tampered_segment_is_caught(spark: SparkSession, honest: Traffic, tmp_path: Path) -> None:
    """One that can still be read, with an ack turned into a release: its hash is another, and the ack is missed."""
    lake = copy_of(honest, tmp_path)
    segment = sorted(lake.rglob("00*.parquet"))[1]
    rows = pq.ParquetFile(segment).read()
    last = max(index for index, event in enumerate(rows["event"].to_pylist()) if event == "acked")
    events = ["released" if index == last else event for index, event in enumerate(rows["event"].to_pylist())]
    message = rows["message_id"][last].as_py()
    column = rows.column_names.index("event")
    pq.write_table(rows.set_column(column, rows.schema.field(column), pa.array(events)), segment)
    proof = prove(spark, lake)
    assert not proof.good
    assert [line for line in proof.chain if "changed" in line and segment.name in line]
    assert {(broken.problem, broken.message_id) for broken in proof.broken} == {("lost", message)}


def test_a_segment_that_can_no_longer_be_read_is_caught_and_the_rest_is_followed(
    spark: SparkSession, honest: Traffic, tmp_path: Path
) -> None:
    lake = copy_of(honest, tmp_path)
    segment = min(lake.rglob("00*.parquet"))
    data = segment.read_bytes()
    segment.write_bytes(data[:200] + bytes(len(data) - 200))
    proof = prove(spark, lake)
    assert not proof.good
    assert [line for line in proof.chain if "changed" in line and segment.name in line]
    assert [line for line in proof.chain if "cannot be read" in line and segment.name in line]
    assert {broken.problem for broken in proof.broken} >= {"never enqueued"}
    assert proof.events < honest.engine.record.next_lsn - 1


def test_a_dropped_segment_is_caught_and_its_messages_are_named(
    spark: SparkSession, honest: Traffic, tmp_path: Path
) -> None:
    lake = copy_of(honest, tmp_path)
    segment = min(lake.rglob("00*.parquet"))
    segment.unlink()
    proof = prove(spark, lake)
    assert not proof.good
    assert any("missing" in line and segment.name in line for line in proof.chain)
    assert any(broken.problem == "never enqueued" for broken in proof.broken)


def test_a_segment_that_was_taken_out_of_the_manifest_too_is_caught(
    spark: SparkSession, honest: Traffic, tmp_path: Path
) -> None:
    lake = copy_of(honest, tmp_path)
    manifest = next(lake.rglob("_manifest*"))
    lines = manifest.read_bytes().splitlines(keepends=True)
    (manifest.parent / parse(lines[1].rstrip()).segment).unlink()
    manifest.write_bytes(b"".join([lines[0], *lines[2:]]))
    proof = prove(spark, lake)
    assert not proof.good
    assert any("chain" in line for line in proof.chain)
    assert any("gap" in line for line in proof.chain)


def test_a_doubled_segment_is_caught(spark: SparkSession, honest: Traffic, tmp_path: Path) -> None:
    lake = copy_of(honest, tmp_path)
    manifest = next(lake.rglob("_manifest*"))
    lines = manifest.read_bytes().splitlines()
    entry: SegmentEntry = parse(lines[0])
    copy = entry.segment.replace(f"{entry.last_lsn:019d}", f"{entry.last_lsn + 1:019d}")
    shutil.copy(manifest.parent / entry.segment, manifest.parent / copy)
    manifest.write_bytes(b"\n".join([*lines, lines[0].replace(entry.segment.encode(), copy.encode()), b""]))
    proof = prove(spark, lake)
    assert not proof.good
    assert any("doubled" in line for line in proof.chain)
    assert any(broken.problem == "enqueued twice" for broken in proof.broken)


def test_a_message_that_is_deleted_from_the_store_is_named(
    spark: SparkSession, honest: Traffic, tmp_path: Path
) -> None:
    honest.export()
    lake = copy_of(honest, tmp_path)
    queue = honest.engine.queue(TASKS, honest.now)
    shard = next(shard for shard in queue.shards if shard.head.ready)
    rows = honest.store.scan(Table.READY, ready_key(shard.number, 0, 0), ready_key(shard.number, 255, LAST), 1)
    seq = int.from_bytes(rows[0][1][:8], "big")
    message_id = honest.fetch(shard.number, seq, 1)[0].id
    honest.engine.add([(Table.MESSAGES, message_key(shard.number, seq), None)])
    honest.engine.write()
    take(honest.engine, NODE, honest.now, lake / "snapshot")
    proof = prove(spark, lake)
    assert not proof.good
    assert proof.chain == []
    assert {(broken.problem, broken.message_id, broken.queue) for broken in proof.broken} == {
        ("lost", message_id, "tasks")
    }


def test_a_loss_for_a_group_that_has_not_begun_is_not_certified(spark: SparkSession, tmp_path: Path) -> None:
    """It was: nothing but its first lease said what a group is for."""
    life = Traffic(tmp_path, 1)
    queue = life.engine.queue(TASKS, life.now)
    add_group(life.engine, queue, "workers", GroupKind.LEASE, life.now, earliest=True)
    add_group(life.engine, queue, "idle", GroupKind.LEASE, life.now, earliest=True)
    ids = life.enqueue(20)
    life.settle(Verb.ACK, 20)
    life.export()
    for shard in queue.shards:
        for seq in range(1, 6):
            life.engine.add([(Table.MESSAGES, message_key(shard.number, seq), None)])
    life.write()
    take(life.engine, NODE, life.now, life.lake / "snapshot")
    proof = prove(spark, life.lake)
    assert not proof.good
    assert {(one.problem, one.group) for one in proof.broken} == {("lost", "idle")}
    lost = {one.message_id for one in proof.broken}
    assert lost < set(ids)
    idle = next(row for row in proof.balances if row.group == "idle")
    assert (idle.enqueued, idle.live, idle.before, idle.broken) == (20, 20 - len(lost), 0, len(lost))


def test_a_history_that_was_written_anew_is_not_the_one_the_store_remembers(
    spark: SparkSession, honest: Traffic, tmp_path: Path
) -> None:
    """Every hash is right again, and every lsn is there: only the store knows what the manifest was."""
    lake = copy_of(honest, tmp_path)
    manifest = next(lake.rglob("_manifest*"))
    rewritten: list[bytes] = []
    head = NO_ENTRY
    for line in manifest.read_bytes().splitlines():
        entry = parse(line)
        segment = manifest.parent / entry.segment
        rows = pq.ParquetFile(segment).read()
        names = pa.array([None] * len(rows), pa.string())
        column = rows.column_names.index("consumer")
        pq.write_table(rows.set_column(column, rows.schema.field(column), names), segment)
        entry = replace(entry, sha256=digest(segment), size_bytes=segment.stat().st_size, previous=head)
        rewritten.append(msgspec.json.encode(entry))
        head = seal(rewritten[-1])
    manifest.write_bytes(b"\n".join([*rewritten, b""]))
    assert verify(lake) == []
    proof = prove(spark, lake)
    assert proof.broken == []
    assert [line for line in proof.chain if "the store remembers" in line] == proof.chain
    assert not proof.good


@pytest.mark.parametrize("end", ["first", "last"])
def test_entries_that_were_cut_off_are_missed(spark: SparkSession, honest: Traffic, tmp_path: Path, end: str) -> None:
    lake = copy_of(honest, tmp_path)
    manifest = next(lake.rglob("_manifest*"))
    known = read_snapshot(lake / "snapshot").chain_length
    lines = manifest.read_bytes().splitlines(keepends=True)[:known]
    manifest.write_bytes(b"".join(lines[1:] if end == "first" else lines[:-1]))
    proof = prove(spark, lake)
    assert any(f"it has {known - 1} entries, the store knows of {known}" in line for line in proof.chain)
    assert any(("gap: lsn 1 to" if end == "first" else "has removed rows") in line for line in proof.chain)


def test_a_proof_in_steps_and_one_that_continues_say_what_a_whole_one_says(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever is open between two steps: messages that wait, are leased, come to a late group, belong to no group."""
    traffic = Traffic(tmp_path / "server", 11)
    key, lake = bytes(32), Lake(traffic.lake)
    for number in range(3):
        traffic.go(60)
        traffic.export(rows=100)
        traffic.go(6)
        at = tmp_path / f"snapshot-{number}"
        take(traffic.engine, NODE, traffic.now, at)
        whole = reconcile(lake, spark, Stages(), at)
        assert (whole.chain, whole.broken) == ([], [])
        if not number:
            stepped = reconcile(lake, spark, Stages(), at, step_rows=150)
            assert stepped == whole
        continued = reconcile(lake, spark, Stages(), at, key=key)
        assert bool(continued.continued_from) is bool(number)
        assert replace(continued, continued_from={}, sealed=False) == whole
        assert continued.sealed


def test_what_is_sealed_is_not_read_again(spark: SparkSession, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "server", 13)
    traffic.go(60)
    traffic.export(rows=100)
    lake, key, at = traffic.lake, b"k" * 32, tmp_path / "at"
    take(traffic.engine, NODE, traffic.now, at)
    assert reconcile(Lake(lake), spark, Stages(), at, key=key).sealed
    segments = sorted(lake.rglob("00*.parquet"))
    for segment in segments:
        segment.write_bytes(b"")
    again = reconcile(Lake(lake), spark, Stages(), at, key=key)
    assert again.good
    assert again.continued_from == again.last_lsn
    full = reconcile(Lake(lake), spark, Stages(), at, key=key, full=True)
    assert len([line for line in full.chain if "changed" in line]) == len(segments)
    assert not full.sealed
    # A manifest that is written anew before the checkpoint does not have its head.
    manifest = next(lake.rglob("_manifest*"))
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join([*lines[:-1], lines[-1].replace(b'"rows"', b' "rows"')]))
    assert [line for line in reconcile(Lake(lake), spark, Stages(), key=key).chain if "checkpoint remembers" in line]


def test_a_delivery_that_ended_before_the_checkpoint_and_is_live_again_is_named(
    spark: SparkSession, honest: Traffic, tmp_path: Path
) -> None:
    lake, key = copy_of(honest, tmp_path), b"k" * 32
    assert reconcile(Lake(lake), spark, Stages(), lake / "snapshot", key=key).sealed
    segment = pq.read_table(min(lake.rglob("00*.parquet")))
    over = next(row for row in segment.to_pylist() if (row["event"], row["queue"]) == ("acked", "tasks"))
    live = pq.read_table(lake / "snapshot" / "live.parquet")
    names = ("namespace", "queue", "partition", "group", "message_id")
    undead = {**{name: over[name] for name in names}, "state": "waiting", "attempt": 1}
    pq.write_table(
        pa.concat_tables([live, pa.Table.from_pylist([undead], live.schema)]), lake / "snapshot" / "live.parquet"
    )
    for full in (False, True):
        (broken,) = reconcile(Lake(lake), spark, Stages(), lake / "snapshot", key=key, full=full).broken
        assert (broken.problem, broken.message_id) == ("live after its end", over["message_id"])
        assert broken.detail == f"ended at lsn {over['lsn']}, yet live in the broker"


def test_a_segment_that_is_exported_again_after_the_checkpoint_is_caught(
    spark: SparkSession, honest: Traffic, tmp_path: Path
) -> None:
    """With new row numbers, so that the chain is whole; its messages are summed up in the checkpoint already."""
    lake, key = copy_of(honest, tmp_path), b"k" * 32
    assert reconcile(Lake(lake), spark, Stages(), key=key).sealed
    manifest = next(lake.rglob("_manifest*"))
    entries = [parse(line) for line in manifest.read_bytes().splitlines()]
    rows = pq.read_table(manifest.parent / entries[0].segment)
    again = rows.filter(pc.not_equal(rows["message_id"], 0))
    first = entries[-1].last_lsn + 1
    last = first + len(again) - 1
    again = again.set_column(0, rows.schema.field(0), pa.array(range(first, last + 1)))
    name = f"{Path(entries[0].segment).parent}/{segment_name(NODE, first, last)}"
    pq.write_table(again, manifest.parent / name)
    whole = Manifest(manifest)
    whole.read()
    path = manifest.parent / name
    size = path.stat().st_size
    lsns = {"first_lsn": first, "last_lsn": last, "rows": len(again)}
    whole.append(
        replace(entries[-1], segment=name, size_bytes=size, sha256=digest(path), previous=whole.head, number=0, **lsns)
    )
    assert verify(lake) == []
    wanted = {row["message_id"] for row in again.to_pylist() if row["event"] == "enqueued"}
    proof = reconcile(Lake(lake), spark, Stages(), key=key)
    assert proof.continued_from
    assert {broken.message_id for broken in proof.broken if broken.problem == "enqueued twice"} == wanted
    assert not proof.sealed


def test_a_message_that_breaks_the_proof_in_one_step_is_named_once(
    spark: SparkSession, honest: Traffic, tmp_path: Path
) -> None:
    lake = copy_of(honest, tmp_path)
    min(lake.rglob("00*.parquet")).unlink()
    proof = reconcile(Lake(lake), spark, Stages(), lake / "snapshot", step_rows=150)
    named = [(broken.problem, broken.message_id, broken.group) for broken in proof.broken]
    assert named
    assert len(set(named)) == len(named) == proof.broken_total


def test_a_checkpoint_counts_only_as_it_was_signed(spark: SparkSession, honest: Traffic, tmp_path: Path) -> None:
    lake, key = copy_of(honest, tmp_path), b"k" * 32
    reconcile(Lake(lake), spark, Stages(), key=key)
    path = lake / "proof" / "checkpoint.json"
    with pytest.raises(InvalidArgument, match="not signed with this key"):
        reconcile(Lake(lake), spark, Stages(), key=b"another key that nobody has used")
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"segments":', b'"segments":1'))
    with pytest.raises(InvalidArgument, match="not signed with this key"):
        reconcile(Lake(lake), spark, Stages(), key=key)
    path.write_bytes(data)
    next((lake / "proof").glob("open-*")).write_bytes(b"")
    with pytest.raises(InvalidArgument, match="missing or was changed"):
        reconcile(Lake(lake), spark, Stages(), key=key)
    assert reconcile(Lake(lake), spark, Stages(), key=key, full=True).sealed
    assert reconcile(Lake(lake), spark, Stages(), key=key).continued_from


def test_a_key_is_made_once_and_never_in_the_lake(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    key = read_key(tmp_path / "keys" / "proof.key", lake)
    assert read_key(tmp_path / "keys" / "proof.key", lake) == key
    assert (tmp_path / "keys" / "proof.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidArgument, match="inside the lake"):
        read_key(lake / "proof.key", lake)
    (tmp_path / "short").write_text("abcd")
    with pytest.raises(InvalidArgument, match="holds no key"):
        read_key(tmp_path / "short", lake)


@pytest.mark.usefixtures("spark")
def test_a_server_that_works_is_compared_and_a_record_that_is_gone_is_named(tmp_path: Path) -> None:
    config = Config(
        node=NodeSettings(data_dir=tmp_path),
        journal=JournalSettings(segment_age=3_600_000_000),
        http=HttpSettings(listen="127.0.0.1:0"),
    )

    def reconcile_live(code: int) -> dict[str, object]:
        words = [
            "pipeline",
            "reconcile",
            "--url",
            broker.url,
            "--lake",
            str(tmp_path / "lake"),
            "-o",
            "json",
            "--quiet",
        ]
        result = CliRunner().invoke(main, words, catch_exceptions=False)
        assert result.exit_code == code, result.output
        found: dict[str, object] = json.loads(result.stdout)
        return found

    with Broker(store="rocks", config=config) as broker, broker.sync_client() as client:
        assert broker._portal is not None
        client.create_queue(
            "orders", {"partitions": 1}
        )  # of several, the group may not have come to that of the victim
        for number in range(30):
            client.send("orders", {"order": number})
        for message in client.receive("orders", limit=10):
            message.ack()
        broker._portal.run(broker.node.cell.export())
        for message in client.receive("orders", limit=5):
            message.reject(error="no")
        client.receive("orders", limit=3)
        found = reconcile_live(0)
        assert found["against_broker"]
        assert found["last_lsn"] == {"0": broker.node.cell.engine.record.next_lsn - 1}
        own = next(row for row in found["balances"] if (row["queue"], row["group"]) == ("orders", "default"))  # type: ignore[attr-defined]
        assert (own["enqueued"], own["acked"], own["dead"], own["live"]) == (30, 10, 5, 15)
        # A record goes behind the broker's back.
        name = ("default", "orders")
        victim = max(int(message.id) for message in client.browse("orders", limit=100))
        partition, record, _ = broker._portal.run(broker.node.inspection.find(name, victim))
        shard = broker.node.cell.engine.queues[name].shards[partition]

        async def remove() -> None:
            broker.node.cell.engine.add([(Table.MESSAGES, message_key(shard.number, record.seq), None)])
            await broker.node.messages.enqueue(name, [Draft(b"another")])

        broker._portal.run(remove())
        broken = reconcile_live(1)["broken"]
        named = {(one["problem"], one["message_id"], one["queue"]) for one in broken}  # type: ignore[attr-defined]
        assert named == {("lost", victim, "orders")}
