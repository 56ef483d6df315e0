"""What is on disk changes only together with the number of its format."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.journal import EntryKind
from holdfast.core.records import Table
from holdfast.errors import FormatTooOld, FormatUnknown
from holdfast.store.formats import FORMAT
from holdfast.store.rocks import RocksStore
from tests.formats import layouts


def test_every_record_is_what_it_was_when_its_format_got_its_number() -> None:
    kept = layouts.FILE.read_text().splitlines() if layouts.FILE.exists() else ["(no file for this format)"]
    written = list(layouts.lines())
    changed = sorted(set(written) ^ set(kept))
    assert written == kept, (
        f"records are not those of format {FORMAT}: raise FORMAT in store/formats.py, say there what changed, and run "
        f"`python -m tests.formats.layouts`. Changed: {changed}"
    )


def test_no_kind_of_record_or_entry_is_left_out() -> None:
    assert {table for table, _, _ in layouts.samples()} == set(Table)
    assert {line.split()[1] for line in layouts.entries()} == {entry.name for entry in EntryKind}


def test_a_directory_of_a_newer_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    RocksStore(tmp_path).close()
    (tmp_path / "FORMAT").write_text(f"{FORMAT + 1}\n")
    with pytest.raises(FormatUnknown, match=f"in format {FORMAT + 1}; .* up to {FORMAT}. Install a newer Holdfast"):
        RocksStore(tmp_path)
    assert (tmp_path / "FORMAT").read_text() == f"{FORMAT + 1}\n"


def test_a_directory_from_which_no_steps_lead_here_is_refused_with_what_to_do(tmp_path: Path) -> None:
    RocksStore(tmp_path, format_number=1).close()
    taken: list[Path] = []
    with pytest.raises(FormatTooOld, match=r"in format 1; this version reads formats 3 to 5\. .* reads format 1 and"):
        RocksStore(tmp_path, format_number=5, migrations={1: taken.append, 3: taken.append, 4: taken.append})
    assert taken == []
    assert (tmp_path / "FORMAT").read_text() == "1\n"


def test_a_directory_of_the_first_format_is_brought_forward(tmp_path: Path) -> None:
    RocksStore(tmp_path, format_number=1).close()
    RocksStore(tmp_path).close()
    assert (tmp_path / "FORMAT").read_text() == f"{FORMAT}\n"
