"""Gives messages that become ready to consumers: long polls that wait, and push members. Nothing here polls.

A turn asks the dispatcher to lease for the waiters and members of the dirty queues; when the batch that holds those
leases is written, `deliver_granted` hands them over. If the batch must be synced first, they are held, and a consumer
may go away or come back meanwhile: leases of a waiter or member that went away are released, those of a member whose
connection was replaced go to the new one.
"""

from __future__ import annotations

from collections import deque
from itertools import chain

import structlog

from holdfast.broker.dispatch.activity import Activity
from holdfast.broker.dispatch.members import GroupName, Member, Members
from holdfast.broker.dispatch.waiters import Waiter, Waiters
from holdfast.core.commands import Leased, Settlement, Verb
from holdfast.core.queue import GroupKind
from holdfast.engine.catalog import Queue, QueueName
from holdfast.engine.engine import Engine
from holdfast.engine.groups import ensure_group
from holdfast.errors import HoldfastError, InternalError, StoreAway, StoreError

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

Grant = tuple[Waiter | Member, list[Leased]]
"""What was leased for whom."""

Unclaimed = list[tuple[GroupName, list[Settlement]]]
"""Releases of what could not be handed over."""

TURN_WORK_MAX = 2_000
"""Groups that a turn serves and deliveries that it leases for them: some 10 ms. The rest is served in the next turn."""


class Dispatcher:
    """Waiters in the order they came, members by credit."""

    def __init__(self, lease_bytes_max: int) -> None:
        self.members = Members(lease_bytes_max)
        self.waiters = Waiters()
        self.activity = Activity()
        self.unread: list[QueueName] = []  # queues that could not be read: the store does not answer
        self.refused: list[tuple[Member, HoldfastError]] = []  # members that cannot be served: the cell removes them
        self._granted: list[Grant] = []  # in this turn
        self._held_grants: deque[list[Grant]] = deque()  # of turns that must be synced before anything is delivered

    def _groups_of(self, queue: QueueName) -> list[GroupName]:
        """Groups of a queue that have waiters or members."""
        groups = self.members.groups_of(queue)
        if self.waiters.count:
            groups = dict.fromkeys([*self.waiters.groups_of(queue), *groups])
        return list(groups)

    def has_consumers(self, queue: QueueName) -> bool:
        """Whether somebody waits for the messages of a queue."""
        return bool(self.members.groups_of(queue) or self.waiters.groups_of(queue))

    def lease(self, engine: Engine, now: int) -> None:
        """Lease for waiters and members in the dirty queues, as far as one turn goes: the others are `unfinished`."""
        left = TURN_WORK_MAX
        for name in engine.take_dirty():
            if left <= 0:
                engine.unfinished.add(name)
                continue
            groups = self._groups_of(name)
            queue = engine.queues.get(name) if groups else None
            if queue is None or queue.record.closing or queue.config.paused:
                continue
            for group in groups:
                before = len(self._granted)
                engine.begin()
                try:
                    left = self._serve(engine, queue, group, left - 1, now)
                except StoreError as error:
                    if not isinstance(error, StoreAway) or not engine.unchanged:
                        raise
                    self.unread.append(name)
                except Exception as error:
                    log.exception("consumers could not be served; what was done for them is undone", queue=name[1])
                    engine.undo(now)
                    self._withdraw(group, before, InternalError(problem=repr(error)))
            if left <= 0:
                engine.unfinished.add(name)

    def _serve(self, engine: Engine, queue: Queue, group: GroupName, left: int, now: int) -> int:
        """Lease for the consumers of a group, `left` deliveries or one consumer's more. Returns how many are left."""
        try:
            ensure_group(engine, queue, group[1], GroupKind.LEASE, now)
        except StoreError:
            raise
        except HoldfastError as error:
            self._refuse(group, error)
            return left
        if left > 0 and engine.has_next(queue, group[1], now):
            before = len(self._granted)
            if self.waiters.count:
                self._serve_waiters(engine, queue, group, left, now)
                left -= sum([len(leased) for _, leased in self._granted[before:]])
            if left > 0:
                served = self.members.serve(engine, queue, group, left, now)
                self._granted += served
                left -= sum([len(leased) for _, leased in served])
        return left

    def _withdraw(self, group: GroupName, before: int, error: HoldfastError) -> None:
        """Leases of a group that were granted from there on are undone by a bug. Its consumers are refused."""
        for taker, _ in self._granted[before:]:
            if isinstance(taker, Waiter) and not taker.future.done():
                taker.future.set_exception(error)
        del self._granted[before:]
        self._refuse(group, error)

    def _refuse(self, group: GroupName, error: HoldfastError) -> None:
        """The queue was deleted and created again, and the group is not a leasing group now or is one too many: that
        concerns its consumers, and nobody else."""
        self.waiters.reject(*group, error)
        self.refused += [(member, error) for member in self.members.of(group)]

    def _serve_waiters(self, engine: Engine, queue: Queue, group: GroupName, left: int, now: int) -> None:
        while left > 0 and (waiter := self.waiters.first(group)) is not None:
            request = waiter.request
            found = engine.lease_in(
                queue,
                group[1],
                request.limit,
                request.timeout,
                request.consumer,
                request.protocol,
                now,
                max_bytes=request.max_bytes,
            )
            if not found:
                return
            self.waiters.remove(waiter)
            self._granted.append((waiter, found))
            left -= len(found)

    @property
    def has_granted(self) -> bool:
        """Whether something was granted in this turn, and not held."""
        return bool(self._granted)

    @property
    def has_held(self) -> bool:
        """Whether grants are held: what is granted later is delivered later."""
        return bool(self._held_grants)

    def hold_until_synced(self) -> None:
        """What was granted in this turn is delivered when it is synced, by `deliver_held`."""
        self._held_grants.append(self._granted)
        self._granted = []

    def held_tokens(self, group: GroupName, name: str) -> set[int]:
        """Tokens of leases that are held for a member of this name: nobody has been sent them."""
        return {
            item.token
            for taker, leased in chain(*self._held_grants)
            if isinstance(taker, Member) and (taker.group, taker.name) == (group, name)
            for item in leased
        }

    def deliver_held(self, engine: Engine) -> Unclaimed:
        """Deliver what was granted in the first turn that is held, if one is."""
        return self._deliver(engine, self._held_grants.popleft()) if self._held_grants else []

    def deliver_granted(self, engine: Engine) -> Unclaimed:
        """Deliver what was granted in this turn."""
        granted, self._granted = self._granted, []
        return self._deliver(engine, granted)

    def _deliver(self, engine: Engine, granted: list[Grant]) -> Unclaimed:
        unclaimed: Unclaimed = []
        for taker, leased in granted:
            if isinstance(taker, Member):
                member, deliveries = self._receiver(engine, taker, leased)
                if member is not None and _delivered(member, deliveries):
                    continue
            elif not taker.future.done():
                taker.future.set_result(leased)
                continue
            unclaimed.append((taker.group, releases(leased)))
        return unclaimed

    def _receiver(self, engine: Engine, taker: Member, leased: list[Leased]) -> tuple[Member | None, list[Leased]]:
        """Who is given what was leased for a member: the member itself, or the one that is in its place now, which is
        given what is still leased."""
        member = self.members.get(taker.group, taker.name)
        if member is None or member is taker:
            return member, leased
        queue = engine.queues.get(taker.group[0])
        group = taker.group[1]
        live = [
            item
            for item in leased
            if queue is not None
            and queue.lease_deadline(group, item.partition, item.message.id, item.token) is not None
        ]
        for item in live:
            self.members.adopt(member, item)
        return member, live

    def fail(self, error: HoldfastError) -> Unclaimed:
        """The store failed or the node stops: long polls end. Returns what was granted and is not delivered any more:
        where the store failed, those leases do not exist."""
        unclaimed: Unclaimed = []
        for taker, leased in chain(*self._held_grants, self._granted):
            unclaimed.append((taker.group, releases(leased)))
            if isinstance(taker, Member):
                for item in leased:
                    taker.forget(item.message.id)
            elif not taker.future.done():
                taker.future.set_exception(error)
        self._granted = []
        self._held_grants.clear()
        self.waiters.reject_all(error)
        return unclaimed


def _delivered(member: Member, leased: list[Leased]) -> bool:
    """Hand a batch to a member. If its callback raises, its deliveries are released; others are not affected."""
    try:
        member.deliver(leased)
    except Exception:
        log.exception("a member could not take its deliveries; they are released", member=member.name)
        return False
    return True


def releases(leased: list[Leased]) -> list[Settlement]:
    return [Settlement(item.message.id, item.token, Verb.RELEASE, partition=item.partition) for item in leased]
