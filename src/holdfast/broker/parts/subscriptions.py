"""Push: consumers that are sent deliveries as these become ready."""

from __future__ import annotations

from collections.abc import Callable, Generator

from holdfast.broker.cell import Cell
from holdfast.broker.dispatch.dispatcher import releases
from holdfast.broker.dispatch.members import Deliver, End, Member, Removed
from holdfast.broker.submission import Submission
from holdfast.config.settings import MemberSettings
from holdfast.core.commands import Leased, Verb
from holdfast.core.queue import GroupKind
from holdfast.engine.catalog import QueueName
from holdfast.engine.groups import ensure_group
from holdfast.engine.leases import delivery_of_token, leases_of
from holdfast.errors import InvalidArgument, LimitExceeded


class Subscriptions:
    """See the module."""

    def __init__(self, cell: Cell, settings: MemberSettings) -> None:
        self._cell = cell
        self._settings = settings

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
        end: End | None = None,
        with_queue: bool = False,
        take_over: Callable[[], None] | None = None,
    ) -> Submission[Subscription]:
        """Join a group as a member that is sent deliveries, at most `credit` unsettled at a time, and no further ones
        while `max_bytes` of payload are (0: `limits.lease_bytes`).

        `deliver` is called on the loop with each batch; it must not block. With `heartbeat` the member must call
        `Subscription.heartbeat` within `members.heartbeat_timeout`, else it is removed and its deliveries fail.
        `removed` is called when the group is deleted, `end` with a reason when its connection is to be ended. When its
        queue is deleted, the member stays for one of the same name that may be created, or is removed too:
        `with_queue`.

        A member takes the place of one of the same name, with its deliveries. `take_over` is called before, when
        nothing is wrong with the request any more: in it the other can leave, if its deliveries are not to be this
        one's.
        """
        cell, settings = self._cell, self._settings
        if not 1 <= credit <= settings.max_prefetch:
            raise InvalidArgument(field="credit", problem=f"is 1 to {settings.max_prefetch}, not {credit}")
        now = cell.clock()
        with cell.guard as engine:
            queue = engine.queue(name, now, create=True)
            ensure_group(engine, queue, group, GroupKind.LEASE, now)
        target = (name, group)
        members = cell.dispatcher.members
        if members.get(target, member) is None and len(members.of(target)) >= settings.max_members_per_group:
            raise LimitExceeded(
                what="The number of members of a group",
                limit=settings.max_members_per_group,
                advice="Use more groups or queues",
            )
        if take_over is not None:
            take_over()
        timeout = settings.heartbeat_timeout if heartbeat else 0
        joined = Member(target, member, protocol, credit, lease_timeout, timeout, deliver, now)
        joined.max_bytes = max_bytes
        joined.with_queue = with_queue
        if removed is not None:
            joined.removed = removed
        if end is not None:
            joined.end = end
        members.join(joined, queue)
        cell.mark_dirty(name)
        return _Joining(cell.commit, cell.inbox, Subscription(cell, joined))

    def disconnect(self, name: QueueName, consumer: str, group: str, reason: str) -> int:
        """End the connections of a consumer in a group, or in all groups of the queue if none is named. What it holds
        is released, or fails, as it asked for; it may come again. How many there were."""
        members = self._cell.dispatcher.members
        ended = [
            member
            for of_queue in members.groups_of(name)
            for member in members.of(of_queue)
            if member.name == consumer and group in ("", of_queue[1])
        ]
        for member in ended:
            member.end(reason)
        return len(ended)

    def leases_of(self, name: QueueName, group: str, consumer: str, protocol: str) -> list[Leased]:
        """What a consumer has under lease, in the order it was leased: for one that must be sent it again. What is held
        until it is durable is not part of it: it was never sent, and goes to the member of this name then."""
        held = self._cell.dispatcher.held_tokens((name, group), consumer)
        with self._cell.guard as engine:
            found = leases_of(engine, name, group, consumer, protocol, self._cell.clock())
        return [leased for leased in found if leased.token not in held]

    def delivery_of_token(self, name: QueueName, group: str, token: int) -> tuple[int, int] | None:
        """Message id and partition of the delivery that a lease token is or was for: for a consumer that knows the
        message by the producer's identifier only."""
        with self._cell.guard as engine:
            return delivery_of_token(engine, name, group, token)


class Subscription:
    """A member's hold on its membership."""

    def __init__(self, cell: Cell, member: Member) -> None:
        self._cell = cell
        self._member = member

    @property
    def partitions(self) -> list[int]:
        return list(self._member.partitions)

    @property
    def joined(self) -> bool:
        """Whether it is still a member: it is not when its group was deleted or another of its name took its place."""
        return self._cell.dispatcher.members.get(self._member.group, self._member.name) is self._member

    @property
    def in_flight(self) -> int:
        return len(self._member.in_flight)

    def heartbeat(self) -> None:
        """Show that the member is alive."""
        self._member.last_seen = self._cell.clock()

    def set_credit(self, credit: int) -> None:
        """How many deliveries it may have unsettled from now on; 0 pauses it."""
        self._member.credit = credit
        self._cell.mark_dirty(self._member.group[0])

    def adopt(self, leased: Leased) -> None:
        """The member holds this delivery since before it joined: it counts against its credit."""
        self._cell.dispatcher.members.adopt(self._member, leased)

    def release_deliveries(self, deliveries: list[Leased]) -> None:
        """Release deliveries that the member will not work on after all."""
        if deliveries:
            self._cell.settle_unattended(*self._member.group, releases(deliveries))

    def leave(self, verb: Verb | None = Verb.RELEASE) -> None:
        """Leave the group. Its leases are released, failed (`DISCONNECT`), or kept until their deadline (None)."""
        self._cell.remove_member(self._member, verb)


class _Joining(Submission[Subscription]):
    """A caller that gives up before it is answered, or is answered with an error, has not joined."""

    __slots__ = ()

    def __await__(self) -> Generator[object, None, Subscription]:
        try:
            return (yield from super().__await__())
        except BaseException:
            self.result.leave()
            raise
