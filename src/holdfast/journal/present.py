"""Which segments of a manifest are there, once some were removed by `journal.retention`.

What was removed is known of no message any more; of groups it is, because what they receive follows from when they were
created. So the events of the groups that exist are kept in a file of their own: in its place in the order of segments,
the first.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.journal.manifest import Change, SegmentEntry


class PresentSegments:
    """The entries of a manifest whose segments are there, in their order, and what was removed before them."""

    def __init__(self) -> None:
        self.removed: Change | None = None
        """Up to where."""
        self.entries: list[SegmentEntry] = []
        """Each with the number of its line."""
        self.size_bytes = 0
        """Of all files that are there."""
        self.lines = 0
        self._last_removed = 0  # the line

    @property
    def removed_to(self) -> int:
        return self.removed.removed_to if self.removed is not None else 0

    @property
    def groups(self) -> SegmentEntry | None:
        """What is left of the removed segments, as if it was one: of the lines and rows up to the last of them."""
        removed = self.removed
        if removed is None:
            return None
        return SegmentEntry(
            segment=removed.segment,
            rows=removed.rows,
            size_bytes=removed.size_bytes,
            first_lsn=1,
            last_lsn=removed.removed_to,
            first_block=0,
            last_block=0,
            sha256=removed.sha256,
            previous="",
            schema=0,
            written_at="",
            number=self._last_removed,
            change=removed,
        )

    def add(self, entry: SegmentEntry) -> None:
        """The next line."""
        self.lines += 1
        change = entry.change
        if change is None:
            self.entries.append(replace(entry, number=self.lines))
            self.size_bytes += entry.size_bytes
            return
        kept = self.removed.size_bytes if self.removed is not None else 0
        self.size_bytes += change.size_bytes - kept - change.removed_bytes
        self.removed = change
        count = 0
        while count < len(self.entries) and self.entries[count].last_lsn <= change.removed_to:
            count += 1
        if count:
            self._last_removed = self.entries[count - 1].number
            del self.entries[:count]

    def skip(self) -> None:
        """The next line cannot be read."""
        self.lines += 1


def present(entries: Iterable[SegmentEntry]) -> PresentSegments:
    """The segments that are there, of all lines of a manifest."""
    found = PresentSegments()
    for entry in entries:
        found.add(entry)
    return found
