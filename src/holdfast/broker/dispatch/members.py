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
from holdfast.units import NEVER

TIDY_MIN = 1_000
"""Entries of a group's holders above which stale ones are removed: some 100 KiB."""

STALE_MAX = 64
"""Deadlines of settled deliveries that a member has, beside as many as it has in flight: some 14 KiB."""

GroupName = tuple[QueueName, str]
Deliver = Callable[[list[Leased]], None]
Removed = Callable[[], None]


def _ignore_removal() -> None:
    """For a member without a callback."""


class Member:
    """One push consumer of a group."""

    __slots__ = (
        "credit",
        "deadlines",
        "deliver",
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
        self.max_bytes = 0  # payloads it may have in flight; 0: the limit of the node
        self.with_queue = False  # it is removed with its queue
        self.last_seen = now
        self.partitions: list[int] = []
        self.size_bytes = 0  # of the payloads in flight
        self.in_flight: dict[int, tuple[int, int, int]] = {}  # id -> (token, partition, payload bytes)
        self.deadlines: list[tuple[int, int, int]] = []  # heap of (deadline, id, token)

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


class Members:
    """All members of all groups of a node. `lease_bytes_max` bounds the payloads that one has in flight."""

    def __init__(self, lease_bytes_max: int) -> None:
        self._lease_bytes_max = lease_bytes_max
        self._sizes: dict[GroupName, int] = {}  # partitions when they were last assigned
        self._groups: dict[GroupName, dict[str, Member]] = {}
        self._of_queue: dict[QueueName, dict[GroupName, None]] = {}
        self._holders: dict[GroupName, dict[int, Member]] = {}  # the member that holds each delivery
        self._watched: dict[Member, None] = {}  # those with a heartbeat timeout
        self._rotations: dict[GroupName, int] = {}
        self._prune_at: dict[GroupName, int] = {}

    def of(self, group: GroupName) -> list[Member]:
        return list(self._groups.get(group, {}).values())

    def get(self, group: GroupName, name: str) -> Member | None:
        return self._groups.get(group, {}).get(name)

    def groups_of(self, queue: QueueName) -> Iterable[GroupName]:
        return self._of_queue.get(queue, ())

    def all_members(self) -> list[Member]:
        return [member for members in self._groups.values() for member in members.values()]

    def join(self, member: Member, queue: Queue) -> None:
        """Add a member; it replaces one of the same name."""
        group = member.group
        members = self._groups.setdefault(group, {})
        before = members.get(member.name)
        if before is not None:
            # The same consumer again, on a new connection: it still holds its deliveries.
            member.in_flight, member.deadlines, member.partitions, member.size_bytes = (
                before.in_flight,
                before.deadlines,
                before.partitions,
                before.size_bytes,
            )
            self._watched.pop(before, None)
        members[member.name] = member
        self._of_queue.setdefault(group[0], {})[group] = None
        self._holders.setdefault(group, {}).update(dict.fromkeys(member.in_flight, member))
        if member.heartbeat_timeout:
            self._watched[member] = None
        self.rebalance(group, queue)

    def leave(self, member: Member, queue: Queue | None) -> bool:
        """Remove a member; its partitions go to the others. Returns whether it was there."""
        group = member.group
        members = self._groups.get(group)
        if members is None or members.get(member.name) is not member:
            return False
        del members[member.name]
        self._watched.pop(member, None)
        if members:
            self._sizes.pop(group, None)  # to be assigned again, now or when the queue exists again
            if queue is not None:
                self.rebalance(group, queue)
            return True
        del self._groups[group], self._holders[group]
        self._sizes.pop(group, None)
        self._rotations.pop(group, None)
        self._prune_at.pop(group, None)
        del self._of_queue[group[0]][group]
        if not self._of_queue[group[0]]:
            del self._of_queue[group[0]]
        return True

    def rebalance(self, group: GroupName, queue: Queue) -> None:
        members = self._groups.get(group, {})
        before = {name: member.partitions for name, member in members.items()}
        for name, partitions in assign(queue.partitions, list(members), before).items():
            members[name].partitions = partitions
        self._sizes[group] = queue.partitions

    def queue_deleted(self, queue: QueueName) -> None:
        """Nothing is in flight any more. The members stay, for a queue of this name that may be created."""
        for group in self.groups_of(queue):
            self._holders[group].clear()
            for member in self._groups[group].values():
                member.forget_all()

    def adopt(self, member: Member, leased: Leased) -> None:
        """A member has reconnected and still holds this delivery."""
        member.add_in_flight([leased])
        self._holders[member.group][leased.message.id] = member

    def settled(self, group: GroupName, settlements: list[Settlement], results: Sequence[object]) -> None:
        """Deliveries that were settled, by any client, free their members' credit."""
        if self._holders.get(group):
            ended = zip(settlements, results, strict=True)
            self._forget(group, [one.id for one, result in ended if result is None and one.verb is not Verb.EXTEND])

    def acked(self, group: GroupName, ids: list[int], results: Sequence[object]) -> None:
        """`settled` where all were acked."""
        if self._holders.get(group):
            ended = zip(ids, results, strict=True)
            self._forget(group, [message_id for message_id, result in ended if result is None])

    def _forget(self, group: GroupName, ids: list[int]) -> None:
        holders = self._holders[group]
        for message_id in ids:
            member = holders.pop(message_id, None)
            if member is not None:
                member.forget(message_id)

    def serve(self, engine: Engine, queue: Queue, group: GroupName, now: int) -> list[tuple[Member, list[Leased]]]:
        """Lease what is ready to members that have credit left. Each is first in turn."""
        members = list(self._groups.get(group, {}).values())
        if not members:
            return []
        if self._sizes.get(group) != queue.partitions:  # the queue was deleted and created again
            self.rebalance(group, queue)
        rotation = self._rotations[group] = self._rotations.get(group, 0) + 1
        first = rotation % len(members)
        anywhere = queue.config.ordering is Ordering.NONE
        self._prune(group)
        sent: list[tuple[Member, list[Leased]]] = []
        for member in members[first:] + members[:first]:
            room = member.free(queue, now)
            if room <= 0 or not (anywhere or member.partitions):
                continue
            if anywhere and len(members) > 1:
                room = min(room, max(queue.config.batch_size, -(-member.credit // len(members))))
            leased = self._lease(engine, queue, member, room, now, None if anywhere else member.partitions)
            if leased:
                self._holders[group].update((item.message.id, member) for item in leased)
                sent.append((member, leased))
        return sent

    def _prune(self, group: GroupName) -> None:
        """Forget holders of deliveries that were dead-lettered or whose lease expired: those are never settled."""
        holders = self._holders[group]
        if len(holders) > self._prune_at.get(group, TIDY_MIN):
            members = self._groups[group].values()
            holders = self._holders[group] = {one: member for member in members for one in member.in_flight}
            self._prune_at[group] = 2 * len(holders) + TIDY_MIN

    def _lease(
        self, engine: Engine, queue: Queue, member: Member, room: int, now: int, partitions: list[int] | None
    ) -> list[Leased]:
        """Up to `room` deliveries, while there are fewer bytes in flight than may be, but at least one."""
        left = (member.max_bytes or self._lease_bytes_max) - member.size_bytes
        if left <= 0:
            return []
        # A lease that is bounded by size costs more; most queues fit as a whole.
        fits = queue.size_bytes <= left
        leased = engine.lease(
            member.group[0],
            member.group[1],
            room,
            member.lease_timeout,
            member.name,
            member.protocol,
            now,
            partitions,
            0 if fits else left,
        )
        member.add_in_flight(leased)
        return leased

    def timed_out(self, now: int) -> list[Member]:
        """Members whose heartbeat is overdue."""
        return [member for member in self._watched if member.last_seen + member.heartbeat_timeout <= now]

    def wake_at(self) -> int:
        """When the next heartbeat is overdue."""
        return min((member.last_seen + member.heartbeat_timeout for member in self._watched), default=NEVER)
