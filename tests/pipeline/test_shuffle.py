"""Events sorted into pieces and cut into shares: each event is in one share, with all of its message."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from holdfast.pipeline.build.fold import NARROW
from holdfast.pipeline.build.fold_task import CODED
from holdfast.pipeline.build.shuffle import id_ranges, read_segment, read_shuffle_files, write_shuffle_file
from tests.pipeline.traffic import Traffic


@pytest.mark.parametrize("seed", range(4))
def test_shares_have_every_event_once_and_messages_whole(seed: int, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, seed)
    traffic.go(120)
    events = traffic.export(rows=Random(seed).randrange(30, 200))
    assert len(traffic.segments()) > 1
    shuffle_files = [
        write_shuffle_file(read_segment(str(path), NARROW, CODED), str(tmp_path))["shuffle_file"]
        for path in traffic.segments()
    ]
    ids = sorted(event["message_id"] for event in events)
    cuts = sorted(Random(seed).sample(ids, 5))
    found: Counter[tuple[int, str, str | None, str]] = Counter()
    for low, high in zip([None, *cuts], [*cuts, None], strict=True):
        share = read_shuffle_files(shuffle_files, low, high)
        for row in share.to_pylist():
            assert low is None or row["message_id"] >= low
            assert high is None or row["message_id"] < high
            found[row["lsn"], row["event"], row.get("group"), row["queue"]] += 1
    assert found == Counter((event["lsn"], event["event"], event["group"], event["queue"]) for event in events)


@pytest.mark.parametrize("count", [0, 1, 3, 500, 5_000])
@pytest.mark.parametrize("parallelism", [1, 2, 7])
def test_ranges_follow_each_other_without_a_gap(count: int, parallelism: int) -> None:
    random = Random(count)
    sample = [random.randrange(1 << 62) for _ in range(count)]
    found = id_ranges(sample, parallelism)
    assert found[0][0] is None
    assert found[-1][1] is None
    assert [low for low, _ in found[1:]] == [high for _, high in found[:-1]]
    sizes = [sum((low or 0) <= one < (high or 1 << 63) for one in sample) for low, high in found]
    assert sum(sizes) == count
    assert max(sizes) - min(sizes) <= len(sample) // len(found) / 4 + 2
    assert len(found) == 1 or len(found) % parallelism == 0 or len(sample) <= parallelism


def test_equal_ids_are_never_cut_apart() -> None:
    assert id_ranges([7] * 5_000, 2) == [(None, 7), (7, None)]
    assert read_shuffle_files([], None, None).num_rows == 0
