"""What readers do who lease nothing: cursor groups, browsing, looking for one message."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.commands import CursorRange, DeliveryStatus
from holdfast.engine.browse import browse_messages
from holdfast.engine.cursors import cursor_commit, cursor_read
from holdfast.engine.messages import find_message
from holdfast.errors import CursorOutOfRange
from tests.simulation.machine import NAMESPACE, Machine
from tests.simulation.mail import Group, Is, Mail, Queue, must
from tests.simulation.passing import advance_cursor

LIMITS = (1, 1, 2, 3, 10, 50)


class Readers:
    """Random reads of a machine, and what any operation needs to choose."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.random = machine.random

    def some_group(self, queue: Queue, cursor: bool) -> Group | None:
        groups = queue.cursors() if cursor else queue.leasing()
        return self.random.choice(groups) if groups else None

    def run(self, work: Iterator[int]) -> None:
        """A long piece of work, with commits between its steps or without."""
        for _ in work:
            if self.random.random() < 0.3:
                self.machine.write()

    def some_mail(self, queue: Queue) -> Mail | None:
        return self.random.choice(list(queue.mails.values())) if queue.mails else None

    # --- cursor groups ----------------------------------------------------------------------------------------------

    def read(self, queue: Queue) -> None:
        machine, random = self.machine, self.random
        group = self.some_group(queue, cursor=True)
        if group is None:
            return
        partition = random.randrange(len(queue.next_seq))
        low, high = group.committed[partition] + 1, queue.next_seq[partition]
        first = random.choice((0, low, random.randint(max(low - 2, 1), high + 1)))
        start = first or low
        limit, max_bytes = random.choice(LIMITS), random.choice((1, 50, 10_000))
        until = random.choice((0, 0, start + random.randint(0, 10)))
        what = f"{queue.name}/{group.name}: read at {start} of {low}..{high}"
        try:
            found = cursor_read(
                machine.engine,
                (NAMESPACE, queue.name),
                group.name,
                partition,
                first,
                limit,
                max_bytes,
                machine.now,
                until,
            )
        except CursorOutOfRange:
            must(not low <= start <= high, f"{what}: refused")
            return
        must(low <= start <= high, f"{what}: not refused")
        must(len(found.messages) <= limit, f"{what}: {len(found.messages)}, asked for {limit}")
        self._check_range(what, queue, group, partition, start, until or high, found)

    def _check_range(
        self, what: str, queue: Queue, group: Group, partition: int, start: int, end: int, found: CursorRange
    ) -> None:
        """What was read is all there is, from the start on and without a gap; and what was lost is told."""
        mails = sorted(queue.in_partition(partition), key=_seq)
        seen = [mail.seq for mail in mails if group.sees(mail) and start <= mail.seq < end]
        got = [message.seq for message in found.messages]
        must(got == seen[: len(got)], f"{what}: {got} of {seen}")
        must(bool(got) or not seen, f"{what}: nothing of {seen}")
        between = [seq for seq in seen[len(got) :] if seq < found.next_seq]
        must(not between, f"{what}: reading on at {found.next_seq} would miss {between}")
        must(found.next_seq > start or not got, f"{what}: reading does not get on")
        lost = group.lost[partition]
        covered = all(found.lost_from <= seq <= found.lost_to for seq in lost)
        must(covered and bool(lost) == bool(found.lost_from), f"{what}: lost {lost}, told {found}")

    def commit(self, queue: Queue) -> None:
        random = self.random
        group = self.some_group(queue, cursor=True)
        if group is None:
            return
        partition = random.randrange(len(queue.next_seq))
        high = queue.next_seq[partition] - 1
        self.commit_to(queue, group, partition, random.choice((high, random.randint(0, high + 1))))

    def commit_to(self, queue: Queue, group: Group, partition: int, seq: int) -> None:
        machine = self.machine
        high = queue.next_seq[partition] - 1
        work = cursor_commit(machine.engine, (NAMESPACE, queue.name), group.name, partition, seq, lambda: machine.now)
        try:
            self.run(work)
        except CursorOutOfRange:
            must(seq > high, f"{queue.name}/{group.name}: refused to commit {seq} of {high}")
            return
        must(seq <= high, f"{queue.name}/{group.name}: committed {seq} of {high}")
        if seq > group.committed[partition]:
            advance_cursor(machine.model, queue, group, partition, seq, "acked")
            group.lost[partition] = []

    # --- looking ----------------------------------------------------------------------------------------------------

    def browse_queue(self, queue: Queue) -> None:
        machine = self.machine
        seen: list[int] = []
        cursor = ""
        while True:
            page = browse_messages(
                machine.engine, (NAMESPACE, queue.name), self.random.choice((1, 3, 50)), cursor, "", "", machine.now
            )
            for partition, message, delivery_statuses in page.messages:
                mail = queue.mails[message.id]
                must((partition, message.seq) == (mail.partition, mail.seq), f"{queue.name}: {message.id} misplaced")
                self._check_statuses(mail, delivery_statuses)
                seen.append(message.id)
            cursor = page.cursor
            if not cursor:
                break
        listed = sorted(mail.id for mail in queue.mails.values() if mail.listed)
        must(sorted(seen) == listed, f"{queue.name}: browsed {sorted(seen)}, there are {listed}")
        one = self.some_mail(queue)
        if one is not None and one.listed:
            partition, message, delivery_statuses = find_message(
                machine.engine, (NAMESPACE, queue.name), one.id, machine.now
            )
            must((partition, message.id) == (one.partition, one.id), f"{queue.name}: found {message.id}")
            self._check_statuses(one, delivery_statuses)

    def _check_statuses(self, mail: Mail, delivery_statuses: list[DeliveryStatus]) -> None:
        must(
            {s.group for s in delivery_statuses} == set(mail.lives),
            f"{mail.queue}: {mail.id} stands in {delivery_statuses}",
        )
        for delivery_status in delivery_statuses:
            life = mail.lives[delivery_status.group]
            leased = delivery_status.state == "leased"
            must(leased == (life.state is Is.LEASED), f"{mail.queue}: {mail.id} is {delivery_status}, not {life}")
            must(
                (delivery_status.state == "settled") == life.over,
                f"{mail.queue}: {mail.id} is {delivery_status}, not {life}",
            )


def _seq(mail: Mail) -> int:
    return mail.seq
