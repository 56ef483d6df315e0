"""The exporter: the lake holds every row of the journal once, whenever the process dies."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from holdfast.broker.export.exporter import STEPS, removal_of
from holdfast.core.commands import Draft, Verb
from holdfast.core.effects import DeleteRun, DeleteUntil
from holdfast.core.journal import Row
from holdfast.core.records import Extra, Table, journal_key, message_key
from holdfast.errors import LakeDamaged, LakeUnavailable, StoreCorrupt, StoreUnavailable
from holdfast.journal.manifest import NO_ENTRY, TAIL_BYTES, manifest_path, parse, seal
from holdfast.journal.reader import PAGE_BLOCKS, RANGE_ROWS
from holdfast.journal.segment import COLUMNS
from holdfast.journal.verify import Flaw, verify
from holdfast.store import FaultyStore, MemoryStore, RocksStore, open_store
from holdfast.store.faulty import Fault, queued
from holdfast.units import DAY, parse_instant
from tests.broker.export.lake import NODE, NOON, Life

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Killed(BaseException):
    """The process died here."""


def die_at(step: str) -> Callable[[str], None]:
    def reached(now: str) -> None:
        if now == step:
            raise Killed

    return reached


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


def as_read(row: Row) -> dict[str, Any]:
    """A row as pyarrow gives it back."""
    fields = msgspec.structs.asdict(row)
    for name in ("at", "deliver_at"):
        if fields[name] is not None:
            fields[name] = EPOCH + timedelta(microseconds=fields[name])
    if row.properties is not None:
        fields["properties"] = [{"name": name, "value": value} for name, value in row.properties]
    return fields


# --- what a segment holds -------------------------------------------------------------------------------------------


def test_segments_hold_exactly_the_rows_of_the_journal(life: Life) -> None:
    life.every_event()
    expected = [as_read(row) for row in life.journal()]
    assert {row["event"] for row in expected} >= {
        *("enqueued", "duplicate", "leased", "acked", "failed", "extended", "released", "dead")
    }

    life.export_all(life.exporter())

    assert life.lake_rows() == expected
    assert life.lake_lsns() == list(range(1, life.engine.record.next_lsn))


def test_an_enqueued_row_shows_what_was_enqueued_also_after_edits(life: Life) -> None:
    first, second, third = life.enqueue(3)
    extra = life.enqueue(extra=Extra(correlation_id="c"))[0]
    life.edit(first, priority=7)
    life.edit(second, deliver_at=life.now + DAY)
    life.edit(second, priority=9)
    life.edit(extra, priority=3)
    expected = [as_read(row) for row in life.journal()]

    life.export_all(life.exporter())

    found = life.lake_rows()
    assert found == expected
    enqueued = [(row["message_id"], row["priority"], row["deliver_at"]) for row in found if row["event"] == "enqueued"]
    assert enqueued == [(message_id, 128, None) for message_id in (first, second, third, extra)]
    assert [row["priority"] for row in found if row["event"] == "edited"] == [7, 128, 9, 3]


def test_an_enqueued_row_keeps_the_time_that_was_asked_for(life: Life) -> None:
    asked = life.now + DAY
    delayed = life.engine.enqueue(("default", "tasks"), [Draft(b"later", 5, asked)], "http", life.now).ids[0]
    life.write()
    life.edit(delayed, priority=200, deliver_at=life.now)

    life.export_all(life.exporter())

    enqueued, edited = life.lake_rows()
    assert (enqueued["priority"], enqueued["deliver_at"]) == (5, EPOCH + timedelta(microseconds=asked))
    assert (edited["priority"], edited["deliver_at"]) != (5, enqueued["deliver_at"])


def test_a_property_that_is_there_twice_stays_twice_and_in_order(life: Life) -> None:
    properties = (("tenant", "a"), ("color", "red"), ("tenant", "b"))
    life.enqueue(extra=Extra(properties=properties))

    life.export_all(life.exporter())

    [row] = life.lake_rows()
    assert [(each["name"], each["value"]) for each in row["properties"]] == list(properties)


def test_columns_have_the_types_that_readers_are_promised(life: Life) -> None:
    life.enqueue()
    life.export_all(life.exporter())

    file = pq.ParquetFile(life.segments()[0])
    assert file.schema_arrow.equals(COLUMNS)
    assert file.schema_arrow.field("at").type == pa.timestamp("us", tz="UTC")
    group = file.metadata.row_group(0)
    columns = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert columns["queue"].statistics.min == "tasks"
    assert (columns["lsn"].statistics.min, columns["lsn"].statistics.max) == (1, 1)
    assert columns["payload"].statistics is None


def test_a_reader_that_takes_the_directory_for_a_table_sees_segments_only(life: Life) -> None:
    life.every_event()
    life.export_all(life.exporter(rows=4))

    table = ds.dataset(life.lake / "journal", format="parquet", partitioning="hive").to_table()

    assert sorted(table["lsn"].to_pylist()) == list(range(1, life.engine.record.next_lsn))
    assert set(table["date"].to_pylist()) == {"2026-03-01"}


def test_segments_are_named_by_day_node_and_lsn(life: Life) -> None:
    life.enqueue(3)
    life.export_all(life.exporter())

    [path] = life.segments()
    name = "0007-0000000000000000001-0000000000000000003.parquet"
    assert path == life.lake / "journal" / "date=2026-03-01" / name


def test_journals_of_many_small_commits_and_of_large_ones_are_read_whole(life: Life) -> None:
    for _ in range(PAGE_BLOCKS + 2):
        life.enqueue()
    life.enqueue(RANGE_ROWS)
    life.settle(Verb.ACK, 5)
    expected = [row.message_id for row in life.journal()]

    life.export_all(life.exporter())

    assert [row["message_id"] for row in life.lake_rows()] == expected
    assert len(life.segments()) == 1


def test_between_block_ranges_the_exporter_may_be_made_to_rest(life: Life) -> None:
    for _ in range(3):
        life.enqueue(RANGE_ROWS)
    rests: list[float] = []
    life.export_all(life.exporter(throttle=rests.append))
    assert len(rests) == 2
    assert all(seconds > 0 for seconds in rests)
    assert len(life.lake_rows()) == 3 * RANGE_ROWS


def test_a_message_that_the_journal_refers_to_and_the_store_lacks_stops_the_export(life: Life) -> None:
    life.enqueue(3)
    key = life.messages()[0]
    life.store.write(life.engine.epoch, [(Table.MESSAGES, key, None)])

    with pytest.raises(StoreCorrupt, match="lacks messages"):
        life.exporter().export(0, True)
    assert life.segments() == []


# --- when a segment is closed ---------------------------------------------------------------------------------------


def test_nothing_is_exported_before_there_is_enough(life: Life) -> None:
    exporter = life.exporter(rows=10)
    assert exporter.export(0, True) is None
    life.enqueue(4)
    assert exporter.export(0, False) is None
    life.enqueue(4)
    assert exporter.export(0, False) is None
    life.enqueue(4)

    exported = exporter.export(0, False)

    assert exported is not None
    assert (exported.rows, exported.last_block, exported.last_lsn) == (12, 3, 12)


def test_force_exports_what_there_is(life: Life) -> None:
    life.enqueue(4)

    exported = life.exporter(rows=10).export(0, True)

    assert exported is not None
    assert exported.rows == 4


def test_a_segment_takes_no_more_blocks_once_it_has_its_rows(life: Life) -> None:
    for _ in range(7):
        life.enqueue(2)

    exported = life.export_all(life.exporter(rows=4))

    assert [each.rows for each in exported] == [4, 4, 4, 2]
    assert life.lake_lsns() == list(range(1, 15))


def test_a_segment_is_closed_at_its_size_before_compression(life: Life) -> None:
    for _ in range(6):
        life.enqueue(100)  # about 1000 bytes of payload

    exported = life.export_all(life.exporter(size_bytes=1500))

    assert [each.rows for each in exported] == [200, 200, 200]


def test_a_segment_holds_rows_of_one_day_only(life: Life) -> None:
    life.enqueue(2)
    life.now += DAY
    life.enqueue(3)
    exporter = life.exporter()

    first = exporter.export(0, False)  # yesterday's is complete without force
    assert first is not None
    assert first.rows == 2
    assert exporter.export(first.last_block, False) is None
    second = exporter.export(first.last_block, True)

    assert second is not None
    assert [path.parent.name for path in life.segments()] == ["date=2026-03-01", "date=2026-03-02"]
    for table, day in zip(life.tables(), ("2026-03-01", "2026-03-02"), strict=True):
        assert {str(at.date()) for at in table["at"].to_pylist()} == {day}


# --- what leaves the store ------------------------------------------------------------------------------------------


def test_exported_blocks_and_messages_that_nobody_needs_leave_the_store(life: Life) -> None:
    life.enqueue(20)
    life.settle(Verb.ACK, 15)
    assert len(life.messages()) == 20

    life.export_all(life.exporter())

    assert life.blocks() == []
    assert len(life.messages()) == 5
    assert life.engine.record.exported_lsn == 60


def test_a_message_leaves_the_store_with_the_block_that_gives_it_up(life: Life) -> None:
    life.enqueue(2)
    exporter = life.exporter()
    life.export_all(exporter)
    assert len(life.messages()) == 2

    life.settle(Verb.ACK, 2)
    life.export_all(exporter)

    assert life.messages() == []


def test_neighbouring_messages_are_removed_as_one_range() -> None:
    assert removal_of(3, 5, {2: [4], 1: [100, 101, 3, 1, 2]}) == [
        (Table.MESSAGES, message_key(1, 1), DeleteRun(range(1, 4))),
        (Table.MESSAGES, message_key(1, 100), DeleteRun(range(100, 102))),
        (Table.MESSAGES, message_key(2, 4), DeleteRun([4])),
        (Table.JOURNAL, journal_key(3), DeleteUntil(journal_key(6))),
    ]


def test_blocks_without_rows_leave_the_store_and_make_no_segment(life: Life) -> None:
    life.every_event()
    exporter = life.exporter()
    life.export_all(exporter)
    entries = life.manifest().read_bytes()
    life.enqueue(3, "silent")
    life.settle(Verb.ACK, 3, queue="silent")
    assert life.blocks() != []

    [exported] = life.export_all(exporter)

    assert (exported.rows, exported.segment) == (0, None)
    assert exported.last_lsn == life.engine.record.next_lsn - 1
    assert life.blocks() == []
    assert life.manifest().read_bytes() == entries
    life.enqueue(2)
    life.export_all(exporter)
    assert life.lake_lsns() == list(range(1, life.engine.record.next_lsn))
    assert verify(life.lake) == []


def test_without_a_lake_blocks_can_be_dropped_and_the_gap_is_on_record(life: Life) -> None:
    life.enqueue(2)
    exporter = life.exporter()
    life.export_all(exporter)
    life.enqueue(3)
    life.settle(Verb.ACK, 5)

    dropped = exporter.drop(life.engine.record.exported_block)
    assert dropped is not None
    life.apply(dropped)

    assert life.blocks() == []
    assert life.messages() == []
    assert exporter.drop(dropped.last_block) is None
    life.enqueue()
    life.export_all(life.exporter())  # the exporter is on again
    assert life.lake_lsns() == [1, 2, 26]
    assert [(problem.flaw, problem.line) for problem in verify(life.lake)] == [(Flaw.GAP, 2)]
    assert "3 to 25" in str(verify(life.lake)[0])
    assert "the exporter knew" in str(verify(life.lake)[0])


# --- the chain ------------------------------------------------------------------------------------------------------


def test_every_entry_carries_the_hash_of_the_line_before(life: Life) -> None:
    for _ in range(3):
        life.enqueue(2)
    life.export_all(life.exporter(rows=2))

    lines = life.manifest().read_bytes().splitlines()
    entries = [parse(line) for line in lines]
    assert [entry.previous for entry in entries] == [NO_ENTRY, seal(lines[0]), seal(lines[1])]
    assert [(entry.first_lsn, entry.last_lsn, entry.rows) for entry in entries] == [(1, 2, 2), (3, 4, 2), (5, 6, 2)]
    assert [(entry.first_block, entry.last_block) for entry in entries] == [(1, 1), (2, 2), (3, 3)]
    assert parse_instant(entries[0].written_at) >= NOON
    assert verify(life.lake) == []


def test_a_restart_goes_on_where_the_chain_ends(life: Life) -> None:
    life.enqueue(2)
    before = life.exporter()
    life.export_all(before)
    life.restart()

    after = life.exporter()

    assert after.position == before.position
    assert after.export(life.engine.record.exported_block, True) is None
    life.enqueue(2)
    life.export_all(after)
    assert life.lake_lsns() == [1, 2, 3, 4]
    assert verify(life.lake) == []


def test_the_end_of_a_long_manifest_is_found(life: Life) -> None:
    exporter = life.exporter(rows=1)
    while not life.manifest().exists() or life.manifest().stat().st_size < TAIL_BYTES + 1000:
        life.enqueue()
        life.export_all(exporter)

    assert life.exporter().position == exporter.position


def test_a_new_lake_starts_where_the_store_stands(life: Life) -> None:
    life.enqueue(2)
    life.export_all(life.exporter())
    life.lake.rename(life.lake.with_name("aside"))
    life.enqueue(2)

    life.export_all(life.exporter())

    assert life.lake_lsns() == [3, 4]
    assert verify(life.lake) == []


def test_nodes_that_share_a_lake_leave_each_other_alone(life: Life) -> None:
    life.enqueue(2)
    life.export_all(life.exporter())
    journal = life.lake / "journal"
    other = manifest_path(journal, 8)
    other.write_bytes(b"")
    stray = journal / "date=2026-03-01" / "0008-0000000000000000001-0000000000000000002.parquet"
    stray.write_bytes(b"theirs")

    life.exporter()

    assert stray.exists()
    assert other.exists()


# --- crashes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [False, True], ids=["killed", "power cut"])
@pytest.mark.parametrize("more", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("step", [*STEPS, "exported"])
@pytest.mark.parametrize("round_", [1, 2])
def test_a_crash_at_any_step_loses_and_doubles_nothing(
    life: Life, step: str, round_: int, more: bool, lost: bool
) -> None:
    for _ in range(round_ - 1):  # so that the crash meets an empty lake and one with a segment
        life.enqueue(3)
        life.export_all(life.exporter())
    life.every_event()
    life.store.sync()
    exporter = life.exporter(die_at(step))
    if step == "exported":  # before the store has been told
        exporter.export(life.engine.record.exported_block, True)
    else:
        with pytest.raises(Killed):
            exporter.export(life.engine.record.exported_block, True)
    if lost:
        life.disk.crash()
    life.restart()
    if more:
        life.enqueue(2)
    messages_needed = len(life.messages())

    life.export_all(life.exporter())

    assert life.lake_lsns() == list(range(1, life.engine.record.next_lsn))
    assert verify(life.lake) == []
    assert life.blocks() == []
    assert len(life.messages()) < messages_needed
    assert list((life.lake / "journal" / "_tmp").iterdir()) == []


def test_a_crash_while_an_entry_is_written_loses_and_doubles_nothing(life: Life) -> None:
    life.enqueue(2)
    life.export_all(life.exporter())
    first = life.manifest().read_bytes()
    life.enqueue(3)
    exporter = life.exporter(die_at("entry written"))
    with pytest.raises(Killed):
        exporter.export(life.engine.record.exported_block, True)
    both = life.manifest().read_bytes()
    for end in (*range(len(first), len(both), 7), len(both) - 1):
        for tail in (both[len(first) : end], bytes(end - len(first)), bytes(max(end - len(first) - 1, 0)) + b"\n"):
            life.manifest().write_bytes(first + tail)

            position = life.exporter().position

            assert position.last_lsn == 2
            assert life.manifest().read_bytes() == first
    life.export_all(life.exporter())
    assert life.lake_lsns() == [1, 2, 3, 4, 5]
    assert verify(life.lake) == []


def test_a_crash_while_the_very_first_entry_is_written_starts_the_chain_anew(life: Life) -> None:
    life.enqueue(2)
    with pytest.raises(Killed):
        life.exporter(die_at("entry written")).export(0, True)
    life.manifest().write_bytes(life.manifest().read_bytes()[:-10])

    life.export_all(life.exporter())

    assert life.lake_lsns() == [1, 2]
    assert verify(life.lake) == []


def test_what_is_in_the_lake_and_still_in_the_store_only_leaves_the_store(life: Life) -> None:
    life.enqueue(3)
    life.settle(Verb.ACK, 2)
    life.exporter().export(0, True)
    life.restart()
    exporter = life.exporter()

    exported = exporter.export(0, True)

    assert exported is not None
    assert (exported.rows, exported.last_block, exported.last_lsn) == (0, 3, 17)  # with ten events of the group
    assert exporter.removal_between(1, 3) == exported.removal
    life.apply(exported)
    assert len(life.messages()) == 1
    assert life.lake_lsns() == list(range(1, 18))


def test_nothing_gets_into_the_lake_that_a_power_cut_takes_out_of_the_store(life: Life) -> None:
    life.enqueue(3)
    assert life.disk.unsynced > 0

    life.exporter().export(0, True)
    life.disk.crash()
    life.restart()

    assert life.engine.record.next_lsn == 4
    life.enqueue(1)
    life.export_all(life.exporter())
    assert life.lake_lsns() == [1, 2, 3, 4]


def test_a_store_that_cannot_sync_exports_nothing_until_it_can(life: Life) -> None:
    life.enqueue(3)
    faulty = FaultyStore(life.store, sync=queued([Fault(StoreUnavailable(problem="no more"))]))
    life.store = faulty
    exporter = life.exporter(rows=2)

    with pytest.raises(StoreUnavailable):
        exporter.export(0, False)
    assert life.segments() == []

    faulty.reopen()
    assert exporter.export(0, False) is not None
    assert life.lake_lsns() == [1, 2, 3]


def test_blocks_that_a_failing_store_lost_meanwhile_are_not_exported(life: Life) -> None:
    life.store.sync()
    life.enqueue(3)

    def lose(step: str) -> None:
        if step == "planned":
            life.disk.crash()
            life.restart()
            life.enqueue(2)  # takes the same block and the same lsn

    exporter = life.exporter(lose)
    exporter._store = MemoryStore(life.disk)

    assert exporter.export(0, True) is None
    assert life.segments() == []
    life.export_all(life.exporter())
    assert life.lake_lsns() == [1, 2]


def test_a_new_store_whose_numbers_follow_the_lake_is_exported_after_it(life: Life, tmp_path: Path) -> None:
    life.enqueue(3)
    life.export_all(life.exporter())
    young = Life(tmp_path, MemoryStore())
    position = young.exporter().position
    young.engine.record.next_block = position.last_block + 1
    young.engine.record.next_lsn = position.last_lsn + 1
    young.enqueue(2)

    young.export_all(young.exporter())

    assert young.lake_lsns() == [1, 2, 3, 4, 5]
    assert verify(young.lake) == []


@pytest.mark.parametrize("kind", ["memory", "rocks"])
def test_the_exporter_reads_while_the_broker_writes(tmp_path: Path, kind: str) -> None:
    life = Life(tmp_path, open_store(kind, tmp_path / "store"))
    exporter = life.exporter(rows=50)
    with ThreadPoolExecutor(1) as thread:
        for _ in range(8):
            export = thread.submit(exporter.export, life.engine.record.exported_block, True)
            for _ in range(20):  # more would give the next export more to do, and that one's writer again more
                life.enqueue(5)
                life.settle(Verb.ACK, 5)
                if export.done():
                    break
            if exported := export.result():
                life.apply(exported)
    life.export_all(exporter)
    life.store.close()

    assert life.lake_lsns() == list(range(1, life.engine.record.next_lsn))
    assert verify(life.lake) == []


def test_an_exporter_that_failed_goes_on_when_the_fault_is_gone(life: Life) -> None:
    life.enqueue(2)
    exporter = life.exporter()
    life.export_all(exporter)
    life.enqueue(2)
    day = life.lake / "journal" / "date=2026-03-01"
    day.rename(day.with_name("hidden"))
    day.write_bytes(b"a file where a directory should be")

    with pytest.raises(LakeUnavailable, match="stays in the store") as caught:
        exporter.export(life.engine.record.exported_block, True)
    assert caught.value.retryable
    assert life.blocks() == [2]

    day.unlink()
    day.with_name("hidden").rename(day)
    life.enqueue(2)
    life.export_all(exporter)
    assert life.lake_lsns() == [1, 2, 3, 4, 5, 6]
    assert verify(life.lake) == []


def test_a_lake_that_cannot_be_reached_at_the_start_is_looked_at_later(life: Life) -> None:
    life.enqueue(2)
    life.export_all(life.exporter())
    life.enqueue(2)
    exporter = life.exporter()
    away = life.lake.with_name("away")
    life.lake.rename(away)
    life.lake.write_bytes(b"not a directory")

    with pytest.raises(LakeUnavailable):
        exporter.recover(life.engine.record.exported_lsn)
    with pytest.raises(LakeUnavailable):
        exporter.export(life.engine.record.exported_block, True)

    life.lake.unlink()
    away.rename(life.lake)
    life.export_all(exporter)
    assert life.lake_lsns() == [1, 2, 3, 4]


@pytest.mark.parametrize("step", STEPS[2:])
def test_an_exporter_that_failed_at_any_step_loses_and_doubles_nothing(life: Life, step: str) -> None:
    life.enqueue(2)
    broken = [step]

    def fail(now: str) -> None:
        if now in broken:
            broken.clear()
            raise OSError(28, "No space left on device")

    exporter = life.exporter(fail)
    with pytest.raises(LakeUnavailable, match="No space left on device"):
        exporter.export(0, True)
    life.enqueue(2)

    life.export_all(exporter)

    assert life.lake_lsns() == [1, 2, 3, 4]
    assert life.blocks() == []
    assert verify(life.lake) == []


# --- damage ---------------------------------------------------------------------------------------------------------


def test_a_torn_entry_that_the_store_knew_of_is_damage_and_nothing_is_removed(life: Life) -> None:
    life.enqueue(2)
    life.export_all(life.exporter())
    torn = life.manifest().read_bytes()[:-5]
    [segment] = life.segments()
    life.manifest().write_bytes(torn)

    with pytest.raises(LakeDamaged, match="torn"):
        life.exporter()

    assert life.manifest().read_bytes() == torn
    assert segment.exists()


def test_a_manifest_with_a_damaged_end_is_refused(life: Life) -> None:
    life.enqueue(2)
    life.export_all(life.exporter())
    life.manifest().write_bytes(b"nonsense\nnonsense\n")
    with pytest.raises(LakeDamaged, match="unreadable"):
        life.exporter()

    life.manifest().write_bytes(b"x" * (TAIL_BYTES + 1))
    with pytest.raises(LakeDamaged, match="not an entry"):
        life.exporter()


def test_a_lake_that_lost_its_last_segment_is_continued(life: Life) -> None:
    life.enqueue(2)
    life.export_all(life.exporter())
    life.segments()[0].unlink()
    life.enqueue(2)

    life.export_all(life.exporter())

    assert [problem.flaw for problem in verify(life.lake)] == [Flaw.MISSING]


def test_a_lake_of_another_store_is_not_taken_for_its_own(life: Life, tmp_path: Path) -> None:
    life.enqueue(5)
    life.export_all(life.exporter())
    stranger = Life(tmp_path, MemoryStore())
    stranger.enqueue(2)
    with pytest.raises(LakeDamaged, match="the store has 2"):
        stranger.exporter().export(0, True)

    stranger.enqueue(2)
    with pytest.raises(StoreCorrupt, match="lsn 6 was expected, 3 found"):
        stranger.exporter().export(1, True)


@pytest.fixture
def checked(life: Life) -> Life:
    """A lake of four sound segments."""
    for _ in range(4):
        life.enqueue(2)
    life.export_all(life.exporter(rows=2))
    assert verify(life.lake) == []
    return life


def found(life: Life) -> list[tuple[Flaw, int]]:
    return [(problem.flaw, problem.line) for problem in verify(life.lake)]


def test_a_changed_segment_is_found(checked: Life) -> None:
    path = checked.segments()[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    assert found(checked) == [(Flaw.CHANGED, 2)]


def test_a_missing_segment_is_found(checked: Life) -> None:
    checked.segments()[2].unlink()

    assert found(checked) == [(Flaw.MISSING, 3)]


def test_a_segment_that_no_entry_names_is_found(checked: Life) -> None:
    path = checked.segments()[0]
    os.link(path, path.with_name("0007-0000000000000000002-0000000000000000003.parquet"))

    assert found(checked) == [(Flaw.UNNAMED, 0)]


def change_line(life: Life, index: int, change: Callable[[list[bytes]], None]) -> None:
    lines = life.manifest().read_bytes().splitlines()
    change(lines)
    life.manifest().write_bytes(b"".join(line + b"\n" for line in lines))


def test_a_changed_entry_breaks_the_chain(checked: Life) -> None:
    def change(lines: list[bytes]) -> None:
        lines[1] = lines[1].replace(b'"written_at":"2026', b'"written_at":"2027')

    change_line(checked, 1, change)

    assert found(checked) == [(Flaw.CHAIN, 3)]


def test_a_dropped_entry_breaks_the_chain_and_leaves_a_gap(checked: Life) -> None:
    change_line(checked, 1, lambda lines: lines.__delitem__(1))

    assert found(checked) == [(Flaw.CHAIN, 2), (Flaw.GAP, 2), (Flaw.UNNAMED, 0)]


def test_dropped_first_entries_break_the_chain(checked: Life) -> None:
    change_line(checked, 0, lambda lines: lines.__delitem__(0))

    assert found(checked) == [(Flaw.CHAIN, 1), (Flaw.GAP, 1), (Flaw.UNNAMED, 0)]


def test_a_doubled_entry_is_found(checked: Life) -> None:
    change_line(checked, 1, lambda lines: lines.insert(1, lines[0]))

    assert found(checked) == [(Flaw.CHAIN, 2), (Flaw.DOUBLED, 2), (Flaw.DOUBLED, 2)]


def test_an_entry_with_a_wrong_count_is_found(checked: Life) -> None:
    def change(lines: list[bytes]) -> None:
        lines[3] = lines[3].replace(b'"rows":2', b'"rows":3')

    change_line(checked, 3, change)

    assert found(checked) == [(Flaw.COUNT, 4)]


def test_lines_that_are_no_entries_are_found(checked: Life) -> None:
    change_line(checked, 1, lambda lines: lines.__setitem__(1, b"\xff{"))
    with checked.manifest().open("ab") as file:
        file.write(b"{")

    assert found(checked) == [
        (Flaw.UNREADABLE, 2),
        (Flaw.CHAIN, 3),
        (Flaw.GAP, 3),
        (Flaw.UNREADABLE, 5),
        (Flaw.UNNAMED, 0),
    ]


def test_problems_read_as_a_line(checked: Life) -> None:
    checked.segments()[0].unlink()
    assert str(verify(checked.lake)[0]).startswith("_manifest-0007.jsonl:1: missing: date=2026-03-01/0007-")


# --- the real store -------------------------------------------------------------------------------------------------


def test_the_embedded_store_is_exported_the_same_way(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "store")
    life = Life(tmp_path, store)
    life.every_event()
    expected = [as_read(row) for row in life.journal()]

    life.export_all(life.exporter())

    assert life.lake_rows() == expected
    assert life.blocks() == []
    store.close()
    assert {row["node"] for row in expected} == {NODE}
