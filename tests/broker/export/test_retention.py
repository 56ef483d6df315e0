"""Old segments are removed, what is left is still proved, and what is needed stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from holdfast.broker.export.exporter import STEPS as EXPORT_STEPS
from holdfast.broker.export.retention import STEPS, RetentionPolicy
from holdfast.core.commands import Verb
from holdfast.core.queue import GroupKind
from holdfast.engine.groups import add_group, delete_group
from holdfast.engine.queues import create_queue
from holdfast.journal.built import write_built
from holdfast.journal.manifest import SegmentEntry, parse
from holdfast.journal.verify import Flaw, verify
from holdfast.units import DAY, HOUR
from tests.broker.export.lake import NODE, TASKS, Life

OLD = RetentionPolicy(DAY, 0, force=False)
FORCED = RetentionPolicy(DAY, 0, force=True)


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


def shards(life: Life) -> list[int]:
    return [shard.number for queue in life.engine.queues.values() for shard in queue.shards]


def entries(life: Life) -> list[SegmentEntry]:
    return [parse(line) for line in life.manifest().read_bytes().splitlines()]


def files(life: Life) -> list[str]:
    journal = life.lake / "journal"
    return sorted(str(path.relative_to(journal)) for path in journal.rglob("*.parquet"))


def a_day(life: Life) -> None:
    """Messages that come and go, as a segment."""
    life.enqueue(3)
    life.settle(Verb.ACK, 3)
    life.export_all(life.exporter())
    life.now += DAY


def delete(life: Life, group: str) -> None:
    for _ in delete_group(life.engine, TASKS, group, lambda: life.now):
        life.write()
    life.write()


def days(life: Life, count: int) -> None:
    create_queue(life.engine, TASKS, {"partitions": 1}, life.now)
    add_group(life.engine, life.engine.queue(TASKS, life.now), "workers", GroupKind.LEASE, life.now, earliest=True)
    life.write()
    for _ in range(count):
        a_day(life)


def test_segments_that_are_too_old_are_removed_and_the_chain_holds(life: Life) -> None:
    days(life, 3)
    before = entries(life)

    removed = life.exporter(retention=OLD).remove_old(shards(life))

    assert removed.segments == 2
    assert removed.size_bytes == before[0].size_bytes + before[1].size_bytes
    assert files(life) == [f"_groups/{NODE:04d}-{before[1].last_lsn:019d}.parquet", before[2].segment]
    assert entries(life)[:3] == before
    assert verify(life.lake) == []
    [group] = pq.read_table(life.lake / "journal" / files(life)[0]).to_pylist()
    assert (group["event"], group["group"]) == ("group_created", "workers")


def test_the_journal_goes_on_after_segments_were_removed(life: Life) -> None:
    days(life, 3)
    life.exporter(retention=OLD).remove_old(shards(life))
    a_day(life)
    assert entries(life)[-1].first_lsn == entries(life)[-3].last_lsn + 1

    life.exporter(retention=OLD).remove_old(shards(life))

    assert len(files(life)) == 2
    assert verify(life.lake) == []


def test_the_oldest_segments_go_where_all_are_too_large(life: Life) -> None:
    days(life, 4)
    sizes = [entry.size_bytes for entry in entries(life)]

    removed = life.exporter(retention=RetentionPolicy(0, sizes[2] + sizes[3], force=False)).remove_old(shards(life))

    assert removed.segments == 2
    assert verify(life.lake) == []


def test_nothing_is_removed_where_nothing_is_said(life: Life) -> None:
    days(life, 3)
    exporter = life.exporter()
    assert exporter.remove_old(shards(life)) == (0, 0, "", False)
    assert exporter.journal_bytes == sum(entry.size_bytes for entry in entries(life))
    assert len(files(life)) == 3


def test_segments_of_a_live_message_stay_unless_told_otherwise(life: Life) -> None:
    days(life, 1)
    [waiting] = life.enqueue(queue="others")
    a_day(life)
    a_day(life)

    removed = life.exporter(retention=OLD).remove_old(shards(life))

    assert (removed.segments, removed.waits_for) == (1, f"message {waiting} is live")
    forced = life.exporter(retention=FORCED).remove_old(shards(life))
    assert (forced.segments, forced.waits_for) == (1, "")
    assert verify(life.lake) == []


def test_segments_that_the_tables_lack_stay_unless_told_otherwise(life: Life) -> None:
    days(life, 3)
    tables = life.lake / "tables"
    (tables / "events" / "_delta_log").mkdir(parents=True)
    exporter = life.exporter(retention=OLD)

    assert exporter.remove_old(shards(life)) == (0, 0, "the tables lack it: run holdfast pipeline build", False)
    write_built(tables, {NODE: entries(life)[0].last_lsn})
    assert exporter.remove_old(shards(life)).segments == 1
    assert life.exporter(retention=FORCED).remove_old(shards(life)).segments == 1


def test_a_segment_that_is_not_as_it_was_written_stays(life: Life) -> None:
    """Nobody could say any more that it was changed."""
    days(life, 3)
    second = life.lake / "journal" / entries(life)[1].segment
    second.write_bytes(second.read_bytes() + b"x")

    removed = life.exporter(retention=OLD).remove_old(shards(life))

    assert (removed.segments, removed.waits_for) == (1, f"{second} is not as it was written")
    assert [problem.flaw for problem in verify(life.lake)] == [Flaw.CHANGED]


def test_groups_that_were_deleted_are_not_kept(life: Life) -> None:
    days(life, 1)
    queue = life.engine.queue(TASKS, life.now)
    add_group(life.engine, queue, "audit", GroupKind.LEASE, life.now, earliest=True)
    add_group(life.engine, queue, "brief", GroupKind.LEASE, life.now, earliest=True)
    life.write()
    delete(life, "brief")
    life.exporter(retention=OLD).remove_old(shards(life))
    life.enqueue(1)
    life.settle(Verb.ACK)
    delete(life, "audit")
    for _ in range(3):
        a_day(life)
        life.exporter(retention=OLD).remove_old(shards(life))

    groups = pq.read_table(life.lake / "journal" / files(life)[0]).to_pylist()
    assert [group["group"] for group in groups] == ["workers"]
    assert verify(life.lake) == []


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_leaves_a_journal_that_is_whole(life: Life, step: str) -> None:
    days(life, 3)
    with pytest.raises(Killed):
        life.exporter(die_at(step), retention=OLD).remove_old(shards(life))
    assert verify(life.lake) == []
    life.restart()

    life.exporter(retention=OLD).remove_old(shards(life))

    assert len(files(life)) == 2
    assert len([entry for entry in entries(life) if entry.change is not None]) == 1
    assert verify(life.lake) == []
    a_day(life)
    assert verify(life.lake) == []


@pytest.mark.parametrize("step", EXPORT_STEPS)
def test_an_export_that_crashes_after_a_removal_is_done_again(life: Life, step: str) -> None:
    days(life, 2)
    life.exporter(retention=OLD).remove_old(shards(life))
    life.enqueue(2)
    with pytest.raises(Killed):
        life.export_all(life.exporter(die_at(step)))
    life.restart()
    life.export_all(life.exporter())
    assert verify(life.lake) == []
    assert entries(life)[-1].last_lsn == life.engine.record.next_lsn - 1


def test_a_removal_that_no_segment_backs_is_found(life: Life) -> None:
    """A line that takes away more than there was hides what comes next."""
    days(life, 2)
    life.exporter(retention=OLD).remove_old(shards(life))
    lines = life.manifest().read_bytes().splitlines()
    last = entries(life)[-1]
    assert last.change is not None
    lines[-1] = lines[-1].replace(b'"removed_to":%d' % last.change.removed_to, b'"removed_to":999')
    life.manifest().write_bytes(b"\n".join(lines) + b"\n")
    assert Flaw.COUNT in [problem.flaw for problem in verify(life.lake)]


def test_removing_what_is_left_of_removed_segments_is_found(life: Life) -> None:
    days(life, 3)
    life.exporter(retention=OLD).remove_old(shards(life))
    groups = life.lake / "journal" / files(life)[0]
    groups.write_bytes(groups.read_bytes() + b"x")
    assert [problem.flaw for problem in verify(life.lake)] == [Flaw.CHANGED]
    groups.unlink()
    assert [problem.flaw for problem in verify(life.lake)] == [Flaw.MISSING]


def test_an_age_is_that_of_the_segment(life: Life) -> None:
    days(life, 1)
    life.now -= DAY - HOUR
    assert life.exporter(retention=OLD).remove_old(shards(life)).segments == 0
    life.now += DAY
    assert life.exporter(retention=OLD).remove_old(shards(life)).segments == 1
    assert verify(life.lake) == []
