"""Checks a lake: every segment exists once and is unchanged, and the manifest's chain of hashes is unbroken.

The pipeline's `reconcile` is based on it. Nothing here needs the broker or its store.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from holdfast.journal.generations import ends_generation
from holdfast.journal.manifest import NO_ENTRY, SegmentEntry, manifests, parse, seal, segment_files
from holdfast.journal.present import PresentSegments
from holdfast.journal.segment import digest


class Flaw(StrEnum):
    UNREADABLE = "unreadable"  # a line of the manifest is not an entry
    CHAIN = "chain"  # an entry does not carry the hash of the line before
    GAP = "gap"  # rows are missing between two segments, or before the first one
    DOUBLED = "doubled"  # rows, or a segment, occur twice
    COUNT = "count"  # an entry's number of rows is not that of its lsn
    MISSING = "missing"  # a segment that an entry names is missing
    CHANGED = "changed"  # a segment was changed after it was written
    UNNAMED = "unnamed"  # a segment that no entry names


class Problem(msgspec.Struct, frozen=True):
    """A problem: in which file, and, in a manifest, in which line (1-based)."""

    flaw: Flaw
    path: str
    detail: str
    line: int = 0

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        return f"{place}: {self.flaw}: {self.detail}"


def verify(directory: Path, *, hashes: bool = True, proved: Mapping[str, int] | None = None) -> list[Problem]:
    """All problems of a lake, in the chains of all nodes. Reads every segment once; without `hashes` none. `proved`: of
    each manifest, the number of entries whose segments need not be there."""
    journal = directory / "journal"
    problems: list[Problem] = []
    named: set[str] = set()
    for path in manifests(journal):
        chain = _Chain(journal, path.name, hashes=hashes, proved=(proved or {}).get(path.name, 0))
        lines = path.read_bytes().split(b"\n")
        rest = lines.pop()
        for number, line in enumerate(lines, 1):
            chain.follow(number, line)
        if rest:
            chain.report(Flaw.UNREADABLE, "the last line has no end", len(lines) + 1)
        chain.check_files(path)
        problems += chain.problems
        named |= chain.named
    for _, file in segment_files(journal):
        segment = str(file.relative_to(journal))
        if segment not in named:
            problems.append(Problem(Flaw.UNNAMED, segment, "no manifest entry names it"))
    return problems


class _Chain:
    """Checks one manifest, from its first line."""

    def __init__(self, journal: Path, name: str, *, hashes: bool, proved: int) -> None:
        self._hashes = hashes
        self._proved = proved
        self.problems: list[Problem] = []
        self.named: set[str] = set()
        self._journal = journal
        self._name = name
        self._head = NO_ENTRY
        self._last_lsn = 0
        self._present = PresentSegments()

    def report(self, flaw: Flaw, detail: str, line: int) -> None:
        self.problems.append(Problem(flaw, self._name, detail, line))

    def follow(self, number: int, line: bytes) -> None:
        """Check the next line against those before."""
        previous, self._head = self._head, seal(line)
        try:
            entry = parse(line)
        except ValueError as error:
            self.report(Flaw.UNREADABLE, str(error), number)
            self._present.skip()
            return
        if entry.previous != previous:
            self.report(Flaw.CHAIN, "it does not carry the hash of the line before", number)
        self._check_lsn(entry, number)
        self._present.add(entry)
        if entry.change is None:
            if entry.segment in self.named:
                self.report(Flaw.DOUBLED, f"{entry.segment} is named twice", number)
            self.named.add(entry.segment)
        elif entry.change.removed_to > self._last_lsn:
            problem = f"rows up to lsn {entry.change.removed_to} are removed, which no segment had"
            self.report(Flaw.COUNT, problem, number)

    def _check_lsn(self, entry: SegmentEntry, number: int) -> None:
        if entry.rows != entry.last_lsn - entry.first_lsn + 1:
            self.report(Flaw.COUNT, f"{entry.rows} rows from lsn {entry.first_lsn} to {entry.last_lsn}", number)
        wanted = self._last_lsn + 1
        if not self._last_lsn and entry.missing_from == 1:
            wanted = entry.first_lsn  # the exporter was switched on here
        if entry.missing_from == wanted and ends_generation(entry.first_lsn - 1):
            pass  # a restore began here: nothing says how many rows there were before it
        elif entry.first_lsn > wanted:
            known = "; the exporter knew" if entry.missing_from == wanted else ""
            self.report(Flaw.GAP, f"lsn {wanted} to {entry.first_lsn - 1} are in no segment{known}", number)
        elif entry.first_lsn < wanted:
            last = min(wanted - 1, entry.last_lsn)
            self.report(Flaw.DOUBLED, f"lsn {entry.first_lsn} to {last} are in an earlier segment too", number)
        self._last_lsn = max(self._last_lsn, entry.last_lsn)

    def check_files(self, manifest: Path) -> None:
        """Check the files that are there now. Retention removes some meanwhile, and says so before."""
        flawed = self._flawed(self._present)
        if flawed:
            lines = manifest.read_bytes().split(b"\n")[self._present.lines : -1]
            try:
                for line in lines:
                    self._present.add(parse(line))
            except ValueError:
                pass  # the next check reports it
            flawed = self._flawed(self._present)
        self.problems += flawed

    def _flawed(self, present: PresentSegments) -> list[Problem]:
        """What is wrong with files, of lines that are not `proved`."""
        found: list[Problem] = []
        for entry in [present.groups, *present.entries]:
            if entry is None or (entry.number <= self._proved and entry.change is None):
                continue
            try:
                as_written = self._is_as_written(entry, self._journal / entry.segment)
            except FileNotFoundError:
                found.append(Problem(Flaw.MISSING, self._name, f"{entry.segment} is not there", entry.number))
                continue
            if not as_written:
                problem = f"{entry.segment} is not as it was written"
                found.append(Problem(Flaw.CHANGED, self._name, problem, entry.number))
        return found

    def _is_as_written(self, entry: SegmentEntry, path: Path) -> bool:
        size_bytes = path.stat().st_size
        return not self._hashes or (size_bytes == entry.size_bytes and digest(path) == entry.sha256)
