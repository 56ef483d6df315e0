"""What clients have been promised: facts that no crash may undo once they are confirmed."""

from __future__ import annotations

Stored = tuple[str, int]
Ended = tuple[str, int, int]


class Facts:
    """Facts gather as operations are answered; `confirm` is the sync after which they hold for ever."""

    def __init__(self) -> None:
        self.ids: dict[int, str] = {}  # confirmed messages, and their queue
        self.ends: dict[Ended, str] = {}  # (queue, id, group number): how it ended; number -1: with no group
        self.groups: set[tuple[str, int]] = set()
        self.groups_gone: set[tuple[str, int]] = set()
        self.gone: set[int] = set()
        self.failures: dict[tuple[int, int], int] = {}
        self.etags: dict[tuple[int, int], int] = {}  # workflow states, by message and group number
        self.doubtful: set[int] = set()  # messages of operations that were cut short: seen in the store only
        self.unseen: dict[str, int] = {}  # by queue, sequences that such operations took, and that are gone again
        self.new_ids: dict[int, str] = {}
        self.new_ends: dict[Ended, str] = {}
        self._new_groups: set[tuple[str, int]] = set()
        self.new_groups_gone: set[tuple[str, int]] = set()
        self._new_gone: set[int] = set()
        self._new_failures: dict[tuple[int, int], int] = {}
        self._new_etags: dict[tuple[int, int], int] = {}

    def stored(self, queue: str, message_id: int) -> None:
        self.new_ids[message_id] = queue

    def ended(self, queue: str, message_id: int, group: int, kind: str) -> None:
        self.new_ends[queue, message_id, group] = kind

    def removed(self, message_id: int) -> None:
        self._new_gone.add(message_id)

    def failed(self, message_id: int, group: int, failures: int) -> None:
        self._new_failures[message_id, group] = failures

    def kept(self, message_id: int, group: int, etag: int) -> None:
        self._new_etags[message_id, group] = etag

    def group_added(self, queue: str, number: int) -> None:
        self._new_groups.add((queue, number))

    def group_removed(self, queue: str, number: int) -> None:
        self.new_groups_gone.add((queue, number))

    def confirm(self) -> None:
        """Everything answered so far is durable."""
        self.ids.update(self.new_ids)
        self.ends.update(self.new_ends)
        self.groups |= self._new_groups
        self.groups_gone |= self.new_groups_gone
        self.gone |= self._new_gone
        self.failures.update(self._new_failures)
        self.etags.update(self._new_etags)
        self.forget()

    def forget(self) -> None:
        """What was not confirmed may or may not have happened."""
        self.new_ids, self.new_ends = {}, {}
        self._new_groups, self.new_groups_gone, self._new_gone = set(), set(), set()
        self._new_failures = {}
        self._new_etags = {}
