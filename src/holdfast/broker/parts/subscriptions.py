"""Push: calls of a node for consumers that are sent deliveries as they become ready."""

from __future__ import annotations

from abc import abstractmethod

from holdfast.broker.dispatch.dispatcher import Dispatcher, releases
from holdfast.broker.dispatch.members import Deliver, Member, Removed
from holdfast.broker.parts.part import Calls
from holdfast.core.commands import Leased, Settlement, Verb
from holdfast.core.queue import GroupKind
from holdfast.engine import admin
from holdfast.engine.catalog import QueueName
from holdfast.errors import InvalidArgument, LimitExceeded


class PushCalls(Calls):
    """See the module."""

    dispatcher: Dispatcher

    @abstractmethod
    def _settle_ignoring_missing(self, name: QueueName, group: str, settlements: list[Settlement]) -> None:
        """Settle for somebody who is no longer there to hear of it."""

    async def subscribe(
        self,
        name: QueueName,
        group: str,
        member: str,
        deliver: Deliver,
        *,
        credit: int = 1,
        lease_timeout: int = -1,
        heartbeat: bool = False,
        protocol: str = "",
        max_bytes: int = 0,
        removed: Removed | None = None,
        with_queue: bool = False,
    ) -> Subscription:
        """Join a group as a member that is sent deliveries, at most `credit` unsettled at a time, and no further ones
        while `max_bytes` of payload are (0: `limits.lease_bytes`).

        `deliver` is called on the loop with each batch; it must not block. With `heartbeat` the member must call
        `Subscription.heartbeat` within `members.heartbeat_timeout`, else it is taken for dead.
        """
        joined = self.join(
            name,
            group,
            member,
            deliver,
            credit=credit,
            lease_timeout=lease_timeout,
            heartbeat=heartbeat,
            protocol=protocol,
            max_bytes=max_bytes,
            removed=removed,
            with_queue=with_queue,
        )
        await self._durable()
        return joined

    def join(
        self,
        name: QueueName,
        group: str,
        member: str,
        deliver: Deliver,
        *,
        credit: int = 1,
        lease_timeout: int = -1,
        heartbeat: bool = False,
        protocol: str = "",
        max_bytes: int = 0,
        removed: Removed | None = None,
        with_queue: bool = False,
    ) -> Subscription:
        """As `subscribe`, but it does not wait: a group that is new is durable with the next sync.

        `removed` is called when the group is deleted under the member. When its queue is, the member stays for one of
        the same name that may come, or is removed too: `with_queue`."""
        settings = self.config.members
        if not 1 <= credit <= settings.max_prefetch:
            raise InvalidArgument(field="credit", problem=f"is 1 to {settings.max_prefetch}, not {credit}")
        now = self.clock()
        with self._guard() as engine:
            queue = engine.queue(name, now, create=True)
            engine.ensure_group(queue, group, GroupKind.LEASE, now)
        target = (name, group)
        existing = self.dispatcher.members.get(target, member)
        if existing is None and len(self.dispatcher.members.of(target)) >= settings.max_members_per_group:
            raise LimitExceeded(
                what="The number of members of a group",
                limit=settings.max_members_per_group,
                advice="Use more groups or queues",
            )
        timeout = settings.heartbeat_timeout if heartbeat else 0
        joined = Member(target, member, protocol, credit, lease_timeout, timeout, deliver, now)
        joined.max_bytes = max_bytes
        joined.with_queue = with_queue
        if removed is not None:
            joined.removed = removed
        self.dispatcher.members.join(joined, queue)
        self.mark_dirty(name)
        return Subscription(self, joined)

    def _release_in_flight(self, member: Member, verb: Verb) -> None:
        """End the leases of a member that is going: released, or failed if it vanished."""
        settlements = [
            Settlement(message_id, token, verb, partition=partition)
            for message_id, (token, partition, _) in member.in_flight.items()
        ]
        member.forget_all()
        if settlements:
            self._settle_ignoring_missing(*member.group, settlements)

    def release_deliveries(self, member: Member, deliveries: list[Leased]) -> None:
        """Release some of what a member holds."""
        if deliveries:
            self._settle_ignoring_missing(*member.group, releases(deliveries))

    def remove_member(self, member: Member, verb: Verb | None) -> None:
        engine = self.commit.engine
        queue = engine.queues.get(member.group[0]) if engine is not None else None
        if not self.dispatcher.members.leave(member, queue):
            return
        if verb is not None:
            self._release_in_flight(member, verb)
        if engine is not None:
            engine.dirty_queues.add(member.group[0])
            self.commit.schedule()

    def leases_of(self, name: QueueName, group: str, consumer: str, protocol: str) -> list[Leased]:
        """What a consumer has under lease, in the order it was leased: for one that must be sent it again."""
        with self._guard() as engine:
            return admin.leases_of(engine, name, group, consumer, protocol, self.clock())

    def of_token(self, name: QueueName, group: str, token: int) -> tuple[int, int] | None:
        """Message id and partition of the delivery that a lease token is or was for: for a consumer that knows the
        message by the producer's identifier only."""
        with self._guard() as engine:
            return admin.of_token(engine, name, group, token)

    def mark_dirty(self, name: QueueName) -> None:
        """Look again whether somebody can be served in a queue."""
        engine = self.commit.engine
        if engine is not None:
            engine.dirty_queues.add(name)
            self.commit.schedule()


class Subscription:
    """A member's hold on its membership."""

    def __init__(self, node: PushCalls, member: Member) -> None:
        self._node = node
        self._member = member

    @property
    def partitions(self) -> list[int]:
        return list(self._member.partitions)

    @property
    def joined(self) -> bool:
        """Whether it is still a member: it is not when its group was deleted or another of its name took its place."""
        return self._node.dispatcher.members.get(self._member.group, self._member.name) is self._member

    @property
    def in_flight(self) -> int:
        return len(self._member.in_flight)

    def heartbeat(self) -> None:
        """Show that the member is alive."""
        self._member.last_seen = self._node.clock()

    def set_credit(self, credit: int) -> None:
        """How many deliveries it may have unsettled from now on; 0 pauses it."""
        self._member.credit = credit
        self._node.mark_dirty(self._member.group[0])

    def adopt(self, leased: Leased) -> None:
        """The member holds this delivery since before it joined: it counts against its credit."""
        self._node.dispatcher.members.adopt(self._member, leased)

    def release_deliveries(self, deliveries: list[Leased]) -> None:
        """Release deliveries that the member will not work on after all."""
        self._node.release_deliveries(self._member, deliveries)

    def leave(self, verb: Verb | None = Verb.RELEASE) -> None:
        """Leave the group. Its leases are released, failed (`DISCONNECT`), or kept until their deadline (None)."""
        self._node.remove_member(self._member, verb)
