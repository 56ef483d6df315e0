"""Push: members of groups, what each may have in flight, and which partitions each serves.

A member is a consumer that is sent deliveries as they become ready, up to its credit. Members of one group share its
partitions evenly; when one joins or leaves, as few partitions as possible move, immediately. A member with a
`heartbeat_timeout` that sends no heartbeat is removed, and its deliveries in flight fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush

from holdfast.broker.dispatch.assignment import assign
from holdfast.core.commands import Leased, Settlement, Verb
from holdfast.core.queue import Ordering
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.engine import Engine
from holdfast.timers import Timers
from holdfast.units import NEVER

TIDY_MIN = 1_000
"""Entries of a group's holders above which stale ones are removed: some 100 KiB."""

STALE_MAX = 64
"""Deadlines of settled deliveries that a member has, beside as many as it has in flight: some 14 KiB."""

HEARTBEATS_MAX = 1_000
"""Members that are looked at in one turn when their heartbeats may be overdue: some 2 ms."""

GroupName = tuple[QueueName, str]
Deliver = Callable[[list[Leased]], None]
Removed = Callable[[], None]
End = Callable[[str], None]


def _ignore_removal() -> None:
    """For a member without a callback."""


def _ignore_end(reason: str) -> None:
    """For a member that lives inside the server."""


class Member:
    """One push consumer of a group."""

    __slots__ = (
        "credit",
        "deadlines",
        "deliver",
        "end",
        "group",
        "heartbeat_timeout",
        "in_flight",
        "last_seen",
        "lease_timeout",
        "max_bytes",
        "name",
        "partitions",
        "protocol",
        "removed",
        "size_bytes",
        "with_queue",
    )

    def __init__(
        self,
        group: GroupName,
        name: str,
        protocol: str,
        credit: int,
        lease_timeout: int,
        heartbeat_timeout: int,
        deliver: Deliver,
        now: int,
        removed: Removed = _ignore_removal,
    ) -> None:
        self.group = group
        self.name = name
        self.protocol = protocol
        self.credit = credit
        self.lease_timeout = lease_timeout
        self.heartbeat_timeout = heartbeat_timeout  # 0: none, it lives as long as its connection
        self.deliver = deliver
        self.removed = removed  # called when its group is deleted
        self.end: End = _ignore_end  # ends its connection, and tells it why
        self.max_bytes = 0  # payloads it may have in flight; 0: the limit of the node
        self.with_queue = False  # it is removed with its queue
        self.last_seen = now
        self.partitions: list[int] = []
        self.size_bytes = 0  # of the payloads in flight
        self.in_flight: dict[int, tuple[int, int, int]] = {}  # id -> (token, partition, payload bytes)
        self.deadlines: list[tuple[int, int, int]] = []  # heap of (deadline, id, token)

    @property
    def overdue_at(self) -> int:
        """When it must have sent its next heartbeat."""
        return self.last_seen + self.heartbeat_timeout

    def add_in_flight(self, deliveries: list[Leased]) -> None:
        for leased in deliveries:
            message = leased.message
            size_bytes = len(message.payload)
            self.forget(message.id)  # of an earlier lease
            self.in_flight[message.id] = (leased.token, leased.partition, size_bytes)
            self.size_bytes += size_bytes
            heappush(self.deadlines, (leased.deadline, message.id, leased.token))
        if len(self.deadlines) > 2 * len(self.in_flight) + STALE_MAX:
            self.deadlines = [entry for entry in self.deadlines if self._holds(entry[1], entry[2])]
            heapify(self.deadlines)

    def _holds(self, message_id: int, token: int) -> bool:
        """Whether a delivery is in flight under this token."""
        held = self.in_flight.get(message_id)
        return held is not None and held[0] == token

    def forget(self, message_id: int) -> None:
        known = self.in_flight.pop(message_id, None)
        if known is not None:
            self.size_bytes -= known[2]

    def forget_all(self) -> None:
        self.in_flight, self.deadlines, self.size_bytes = {}, [], 0

    def free(self, queue: Queue, now: int) -> int:
        """How many more it may be sent. Leases that have expired no longer count."""
        heap = self.deadlines
        while heap and heap[0][0] <= now:
            _, message_id, token = heappop(heap)
            held = self.in_flight.get(message_id)
            if held is None or held[0] != token:
                continue
            deadline = queue.lease_deadline(self.group[1], held[1], message_id, token)
            if deadline is not None:
                heappush(heap, (max(deadline, now + 1000), message_id, token))
            else:
                self.forget(message_id)
        return self.credit - len(self.in_flight)


class MemberGroup:
    """The members of one group, and which of them holds each delivery."""

    __slots__ = ("holders", "members", "partitions", "prune_at", "rotation")

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.holders: dict[int, Member] = {}  # by message id
        self.partitions = 0  # of the queue when they were last assigned; 0: they are to be assigned again
        self.prune_at = TIDY_MIN
        self.rotation = 0

    def in_turn(self) -> list[Member]:
        """All members, one after the other the first."""
        members = list(self.members.values())
        if len(members) > 1:
            self.rotation = first = (self.rotation + 1) % len(members)
            members = members[first:] + members[:first]
        return members

    def rebalance(self, queue: Queue) -> None:
        before = {name: member.partitions for name, member in self.members.items()}
        for name, partitions in assign(queue.partitions, list(self.members), before).items():
            self.members[name].partitions = partitions
        self.partitions = queue.partitions

    def forget(self, ids: Iterable[int]) -> None:
        """Deliveries that have ended free their members' credit."""
        for message_id in ids:
            member = self.holders.pop(message_id, None)
            if member is not None:
                member.forget(message_id)

    def hold(self, member: Member, leased: list[Leased]) -> None:
        """A member holds these. Holders of deliveries that were dead-lettered or whose lease expired, which are never
        settled, are forgotten now and then."""
        holders = self.holders
        for item in leased:
            holders[item.message.id] = member
        if len(holders) > self.prune_at:
            self.holders = {one: holder for holder in self.members.values() for one in holder.in_flight}
            self.prune_at = 2 * len(self.holders) + TIDY_MIN


class Members:
    """All members of all groups of a node. `lease_bytes_max` bounds the payloads that one has in flight."""

    def __init__(self, lease_bytes_max: int) -> None:
        self._lease_bytes_max = lease_bytes_max
        self._groups: dict[GroupName, MemberGroup] = {}
        self._of_queue: dict[QueueName, dict[GroupName, None]] = {}
        self._heartbeats: Timers[Member] = Timers()  # of those with a timeout; a heartbeat itself moves nothing

    @property
    def overdue_at(self) -> int:
        """No heartbeat is overdue before."""
        return NEVER if self._heartbeats.due is None else self._heartbeats.due

    def of(self, group: GroupName) -> list[Member]:
        found = self._groups.get(group)
        return [] if found is None else list(found.members.values())

    def get(self, group: GroupName, name: str) -> Member | None:
        found = self._groups.get(group)
        return None if found is None else found.members.get(name)

    def groups_of(self, queue: QueueName) -> Iterable[GroupName]:
        return self._of_queue.get(queue, ())

    def all_members(self) -> list[Member]:
        return [member for group in self._groups.values() for member in group.members.values()]

    def held(self, group: GroupName) -> int:
        """How many deliveries are known to be held by members of a group."""
        return len(self._groups[group].holders)

    def join(self, member: Member, queue: Queue) -> None:
        """Add a member; it replaces one of the same name."""
        name = member.group
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = MemberGroup()
            self._of_queue.setdefault(name[0], {})[name] = None
        before = group.members.get(member.name)
        if before is not None:
            # The same consumer again, on a new connection: it still holds its deliveries.
            member.in_flight, member.deadlines, member.partitions, member.size_bytes = (
                before.in_flight,
                before.deadlines,
                before.partitions,
                before.size_bytes,
            )
            self._heartbeats.cancel(before)
        group.members[member.name] = member
        group.holders.update(dict.fromkeys(member.in_flight, member))
        if member.heartbeat_timeout:
            self._heartbeats.set(member, member.overdue_at)
        group.rebalance(queue)

    def leave(self, member: Member, queue: Queue | None) -> bool:
        """Remove a member; its partitions go to the others. Returns whether it was there."""
        name = member.group
        group = self._groups.get(name)
        if group is None or group.members.get(member.name) is not member:
            return False
        del group.members[member.name]
        self._heartbeats.cancel(member)
        if group.members:
            group.partitions = 0  # to be assigned again, now or when the queue exists again
            if queue is not None:
                group.rebalance(queue)
            return True
        del self._groups[name]
        del self._of_queue[name[0]][name]
        if not self._of_queue[name[0]]:
            del self._of_queue[name[0]]
        return True

    def rebalance(self, queue: Queue) -> None:
        """The queue has more partitions than before."""
        for group in self.groups_of(queue.name):
            self._groups[group].rebalance(queue)

    def queue_deleted(self, queue: QueueName) -> None:
        """Nothing is in flight any more. The members stay, for a queue of this name that may be created."""
        for group in self.groups_of(queue):
            self._groups[group].holders.clear()
            for member in self._groups[group].members.values():
                member.forget_all()

    def adopt(self, member: Member, leased: Leased) -> None:
        """A member has reconnected and still holds this delivery."""
        member.add_in_flight([leased])
        self._groups[member.group].holders[leased.message.id] = member

    def settled(self, group: GroupName, settlements: list[Settlement], results: Sequence[object]) -> None:
        """Deliveries that were settled, by any client, free their members' credit."""
        found = self._groups.get(group)
        if found is not None:
            ended = zip(settlements, results, strict=True)
            found.forget([one.id for one, result in ended if result is None and one.verb is not Verb.EXTEND])

    def acked(self, group: GroupName, ids: list[int], results: Sequence[object]) -> None:
        """`settled` where all were acked."""
        found = self._groups.get(group)
        if found is not None:
            found.forget([message_id for message_id, result in zip(ids, results, strict=True) if result is None])

    def serve(
        self, engine: Engine, queue: Queue, name: GroupName, limit: int, now: int
    ) -> list[tuple[Member, list[Leased]]]:
        """Lease what is ready, up to `limit`, to members that have credit left. Each is first in turn."""
        group = self._groups.get(name)
        if group is None:
            return []
        if group.partitions != queue.partitions:  # the queue was deleted and created again
            group.rebalance(queue)
        anywhere = queue.config.ordering is Ordering.NONE
        members = group.in_turn()
        sent: list[tuple[Member, list[Leased]]] = []
        for member in members:
            if limit <= 0:
                break
            room = min(member.free(queue, now), limit)
            if room <= 0 or not (anywhere or member.partitions):
                continue
            if anywhere and len(members) > 1:
                room = min(room, max(queue.config.batch_size, -(-member.credit // len(members))))
            all_partitions = anywhere or len(members) == 1
            leased = self._lease(engine, queue, member, room, now, None if all_partitions else member.partitions)
            if leased:
                group.hold(member, leased)
                sent.append((member, leased))
                limit -= len(leased)
        return sent

    def _lease(
        self, engine: Engine, queue: Queue, member: Member, room: int, now: int, partitions: list[int] | None
    ) -> list[Leased]:
        """Up to `room` deliveries, while there are fewer bytes in flight than may be, but at least one."""
        left = (member.max_bytes or self._lease_bytes_max) - member.size_bytes
        if left <= 0:
            return []
        # A lease that is bounded by size costs more; most queues fit as a whole.
        max_bytes = 0 if queue.size_bytes <= left else left
        group, timeout, consumer = member.group[1], member.lease_timeout, member.name
        leased = engine.lease_in(queue, group, room, timeout, consumer, member.protocol, now, partitions, max_bytes)
        if leased:
            member.add_in_flight(leased)
        return leased

    def next_timed_out(self, now: int) -> Member | None:
        """A member whose heartbeat is overdue, which is to be removed. None: there is none, or others have been looked
        at for one turn; then one may be overdue still."""
        for _ in range(HEARTBEATS_MAX):
            member = self._heartbeats.pop(now)
            if member is None or member.overdue_at <= now:
                return member
            self._heartbeats.set(member, member.overdue_at)
        return None
