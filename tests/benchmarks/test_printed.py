"""What benchmarks print, each run for a moment: that they work, not how fast anything is."""

from __future__ import annotations

import pytest

from benchmarks import one, start, steady
from benchmarks.one import Setting


def test_steady_prints_a_line_for_each_interval(capsys: pytest.CaptureFixture[str]) -> None:
    steady.main(["--rate", "200", "--minutes", "0.02", "--every", "0.6"])
    lines = capsys.readouterr().out.splitlines()
    header = next(number for number, line in enumerate(lines) if line.startswith("minute"))
    intervals = [[float(field.replace(",", "")) for field in line.split()] for line in lines[header + 1 : -1]]
    assert len(intervals) == 2
    assert all(len(fields) == 13 and 0 < fields[1] < 210 and fields[2] > 10 for fields in intervals)
    assert lines[-1].startswith("the server's second half: ")


def test_one_prints_the_cost_of_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    one.by_step(rate=200, seconds=1)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    costs = {row[0]: float(row[1]) for row in rows if row[0] not in ("loop", "sync", "others")}
    assert list(costs) == ["read", "decode", "enqueue", "turn", "lease", "write", "encode", "send", "ack", "total"]
    assert all(cost > 1 for cost in costs.values())


def test_one_delivers_to_every_group_of_every_queue(capsys: pytest.CaptureFixture[str]) -> None:
    one.plain([Setting(connections=3, queues=2, groups=2, partitions=1)], rate=100, seconds=1)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.lstrip().startswith("3 connections, 2 queues, 2 groups, 1 partitions ")
    assert all(float(field) >= 0 for field in line.split()[8:])


def test_growth_covers_connections_queues_groups_and_partitions() -> None:
    grown = one.growth()
    assert {setting.connections for setting in grown} == {1, 10, 100, 1_000}
    assert {setting.queues for setting in grown} == {1, 10, 100, 1_000, 10_000}
    assert {setting.groups for setting in grown} == {1, 10, 64}
    assert {setting.partitions for setting in grown} == {1, 10, 100}


def test_start_prints_a_line_for_each_kind_of_data_and_of_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(start, "SETTLE_SECONDS", 0.0)
    start.main(["--queues", "3", "--messages", "1000"])
    lines = capsys.readouterr().out.splitlines()[2:]
    kinds = [
        f"{data}, {end} before" for data in ("nothing", "3 queues", "1,000 messages") for end in ("killed", "stopped")
    ]
    assert [line[:34].strip() for line in lines] == kinds
    assert all(float(line[34:].split()[0]) > 0.1 and float(line[34:].split()[2]) > 20 for line in lines)
