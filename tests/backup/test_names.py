"""Names in a backup become paths: those that would lead out of the directory are refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast.backup.fetch import Known, take
from holdfast.backup.frames import Frame, line
from holdfast.backup.manifest import FORMAT, BackupManifest, Description, FileEntry, JournalPosition, check_path
from holdfast.backup.repository import Repository
from holdfast.errors import BackupDamaged
from holdfast.journal.manifest import SegmentEntry

TAKEN_AT = "2026-01-02T03:04:05.678Z"
LEADING_OUT = ["/etc/x", "../../x", "date=2026-01-02//x", "./x", "a/../x", ""]


def description(taken_at: str = TAKEN_AT) -> Description:
    position = JournalPosition(last_lsn=1, exported_lsn=1)
    return Description(
        taken_at=taken_at, node=0, version="1", store="rocks", store_format=1, position=position, size_bytes=0
    )


def lake_manifest(segment: str) -> bytes:
    entry = SegmentEntry(
        segment=segment,
        rows=1,
        size_bytes=1,
        first_lsn=1,
        last_lsn=1,
        first_block=1,
        last_block=1,
        sha256="0" * 64,
        previous="0" * 64,
        schema=2,
        written_at=TAKEN_AT,
    )
    return msgspec.json.encode(entry) + b"\n"


@pytest.mark.parametrize(
    "name", ["store//etc/x", "store/", "store", "lake/./x", "store/../x", "/store/x", "other/x", ""]
)
def test_names_of_files_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(BackupDamaged):
        check_path(name, "the test")
    check_path("store/db/CURRENT", "the test")


@pytest.mark.parametrize("segment", LEADING_OUT)
def test_names_of_segments_that_lead_elsewhere_are_refused(tmp_path: Path, segment: str) -> None:
    repository = Repository.create(tmp_path / "backups")
    text = lake_manifest(segment)
    added = repository.add([text])
    path = "lake/journal/_manifest-0000.jsonl"
    file = FileEntry(path=path, size_bytes=added.size_bytes, sha256=added.sha256)
    backup = BackupManifest(format=FORMAT, id="1", description=description(), files=[file], lake=True)
    with pytest.raises(BackupDamaged):
        repository.segments(backup)
    parts = [line(Frame(begin=description())), line(Frame(file=path, size_bytes=len(text))), text, line(Frame(end=1))]
    with pytest.raises(BackupDamaged):
        take(repository, Known(), parts, lambda _description, _received: None)
    assert repository.ids() == []


@pytest.mark.parametrize("taken_at", ["../../2026", "2026-01-02T03:04:05.678", "2026-01-02T03:04:05Z/../x", ""])
def test_an_instant_that_is_none_names_no_backup(tmp_path: Path, taken_at: str) -> None:
    repository = Repository.create(tmp_path / "backups")
    parts = [line(Frame(begin=description(taken_at))), line(Frame(end=0))]
    with pytest.raises(ValueError, match="no instant"):
        take(repository, Known(), parts, lambda _description, _received: None)
    parts = [line(Frame(begin=description())), line(Frame(end=0))]
    take(repository, Known(), parts, lambda _description, _received: None)
    assert [name[:20] for name in repository.ids()] == ["20260102T030405.6780"]
