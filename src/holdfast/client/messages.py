"""A leased message: its fields, and how to settle it.

`Received` has the fields; `Message` is settled by awaiting, `SyncMessage` in `holdfast.client.sync` by calling.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, overload

from holdfast import wire
from holdfast.client.decoding import as_json, as_text
from holdfast.client.lease_scope import LeaseScope
from holdfast.client.times import Duration, duration, moment, optional_duration
from holdfast.client.workflow_state import State
from holdfast.errors import InvalidArgument, LeaseLost

Value = TypeVar("Value")


class Content:
    """A payload and its metadata."""

    def __init__(self, message: wire.Message) -> None:
        self._content = message
        self.body: bytes = message.body()
        """The payload, byte for byte as it was sent."""

    @property
    def id(self) -> str:
        return self._content.id

    @property
    def properties(self) -> wire.Properties:
        return self._content.properties

    @property
    def content_type(self) -> str | None:
        return self._content.content_type

    @property
    def correlation_id(self) -> str | None:
        return self._content.correlation_id

    def text(self) -> str:
        """The payload as UTF-8 text."""
        return as_text(self.body, "payload", f"of message {self.id} ")

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, kind: type[Value]) -> Value: ...
    def json(self, kind: Any = Any) -> Any:
        """The payload as JSON; with a type, checked and converted to it by msgspec."""
        return as_json(self.body, kind, "payload", f"of message {self.id} ")


class Reply(Content):
    """The reply to a request."""

    def __init__(self, answer: wire.Reply) -> None:
        super().__init__(answer.reply)
        self.request_id = answer.request_id


class Received(Content):
    """The fields of a delivery."""

    def __init__(self, delivery: wire.Delivery) -> None:
        super().__init__(delivery)
        self.delivery = delivery

    @property
    def queue(self) -> str:
        return self.delivery.queue

    @property
    def group(self) -> str:
        return self.delivery.group

    @property
    def attempt(self) -> int:
        """1 the first time it is delivered."""
        return self.delivery.attempt

    @property
    def message_id(self) -> str | None:
        """The producer's own id."""
        return self.delivery.message_id

    @property
    def key(self) -> str | None:
        return self.delivery.key

    @property
    def priority(self) -> int:
        return self.delivery.priority

    @property
    def reply_to(self) -> str | None:
        return self.delivery.reply_to

    @property
    def origin(self) -> wire.Origin | None:
        """Of a dead letter, a redriven or an imported message: where it comes from, and why."""
        return self.delivery.origin

    @property
    def enqueued_at(self) -> datetime:
        return moment(self.delivery.enqueued_at)

    @property
    def lease_token(self) -> str:
        return self.delivery.lease_token

    @property
    def lease_deadline(self) -> datetime:
        """By the server's clock. It moves when the lease is extended."""
        return moment(self.delivery.lease_deadline)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.queue!r} for {self.group!r}, attempt {self.attempt}>"


class LeaseHolder(Protocol):
    """What a message calls on the client that leased it."""

    async def settle_one(self, message: Message, settlement: wire.Settlement) -> str | None:
        """Settle it. Returns the new deadline if it was extended."""

    async def hold(self, message: Message) -> None:
        """Extend its lease from now on, until it is settled or dropped."""

    def abandon(self, message: Message) -> None:
        """Stop extending its lease, which then expires."""

    def lose(self, message: Message) -> None:
        """Its lease is lost."""

    async def state(self, queue: str, message_id: str, *, group: str, lease_token: str) -> State:
        """Its workflow state."""

    async def put_state(
        self, queue: str, message_id: str, data: object, *, lease_token: str, group: str, etag: int | None
    ) -> State:
        """Store a workflow state."""

    async def clear_state(self, queue: str, message_id: str, *, lease_token: str, group: str, etag: int | None) -> None:
        """Delete its workflow state."""


class Message(Received):
    """A delivery. Settle it once: ack, nack, reject or release; a second settlement changes nothing.

    `async with message:` extends its lease while the block runs, and releases it if the block leaves it unsettled. If
    the lease is lost, the block is cancelled and ends with `LeaseLost`.
    """

    def __init__(self, delivery: wire.Delivery, holder: LeaseHolder, lease_seconds: float | None = None) -> None:
        super().__init__(delivery)
        self._holder = holder
        self.lease_seconds = lease_seconds
        """How long a lease lasts, if that is known."""
        self.settled: wire.Action | None = None
        """How it was settled."""
        self.timed_out = False
        """Whether it was worked on for longer than the worker's `timeout`."""
        self._lost = False
        self._on_lost: list[Callable[[], None]] = []
        self._on_stop: list[Callable[[], None]] = []
        self._settling = False
        self._scopes: list[LeaseScope] = []

    @property
    def lost(self) -> bool:
        """True when the lease was lost: another consumer may be working on the message now."""
        return self._lost

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Call this, on the client's event loop, when the lease is lost while the message is not settled."""
        if self._lost:
            callback()
        else:
            self._on_lost.append(callback)

    def lose(self) -> bool:
        """The lease cannot be extended any more: whoever works on the message must stop. Returns False if the message
        is settled, or about to be: then the settlement says what became of it."""
        if self.settled is not None or self._settling:
            return False
        self._lost = True
        self._holder.lose(self)
        callbacks, self._on_lost = self._on_lost, []
        for callback in callbacks:
            callback()
        self._notify_stop()
        return True

    def time_out(self) -> None:
        """A function that cannot be cancelled is told that it should stop; its worker settles the message."""
        self.timed_out = True
        self._notify_stop()

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call this, on the client's event loop, when the lease is lost or the time of the job is over."""
        if self._lost or self.timed_out:
            callback()
        else:
            self._on_stop.append(callback)

    def _notify_stop(self) -> None:
        callbacks, self._on_stop = self._on_stop, []
        for callback in callbacks:
            callback()

    async def ack(self) -> None:
        """Done for this group. Durable when this returns."""
        await self._settle("ack")

    async def nack(self, delay: Duration | None = None, error: str = "") -> None:
        """Failed: deliver again after `delay`, or as the queue's retry policy says; the attempt counts."""
        await self._settle("nack", delay=optional_duration(delay), error=error)

    async def reject(self, error: str = "") -> None:
        """Never processable: move it to the dead queue now."""
        await self._settle("reject", error=error)

    async def release(self, delay: Duration | None = None) -> None:
        """Return it to the queue for other consumers, immediately or after `delay`; the attempt does not count."""
        await self._settle("release", delay=optional_duration(delay))

    async def extend(self, timeout: Duration | None = None) -> datetime:  # noqa: ASYNC109 - how long the lease is for
        """Extend the lease to `timeout` from now, or to the queue's `delivery_timeout`. Returns the new deadline."""
        settlement = self._settlement("extend", timeout=None if timeout is None else duration(timeout))
        try:
            deadline = await self._holder.settle_one(self, settlement)
        except LeaseLost:
            self._lost = self.settled is None and not self._settling  # an extension may overtake an ack
            raise
        if deadline is not None:
            self.delivery.lease_deadline = deadline
        return self.lease_deadline

    async def state(self) -> State:
        """The workflow state of this delivery, as earlier attempts stored it. Each group has its own."""
        return await self._holder.state(self.queue, self.id, group=self.group, lease_token=self.lease_token)

    async def put_state(self, data: object, *, etag: int | None = None) -> State:
        """Store a workflow state for later attempts: bytes, a str, or anything that JSON has.

        With `etag` only if the current state has this ETag (0: there is none). An ack deletes the state; a dead letter
        takes it along.
        """
        return await self._holder.put_state(
            self.queue, self.id, data, lease_token=self.lease_token, group=self.group, etag=etag
        )

    async def clear_state(self, *, etag: int | None = None) -> None:
        """Delete the workflow state. With `etag` only if the state has this ETag."""
        await self._holder.clear_state(self.queue, self.id, lease_token=self.lease_token, group=self.group, etag=etag)

    def abandon(self) -> None:
        """Stop extending the lease, without settling: it expires, and the message is delivered again. The last
        resort."""
        self._holder.abandon(self)

    async def _settle(self, action: wire.Action, *, delay: wire.Duration | None = None, error: str = "") -> None:
        if self.settled is not None:
            if self.settled != action:
                raise InvalidArgument(field="message", problem=f"{self.id} was settled by {self.settled} before")
            return
        self._settling = True
        try:
            await self._holder.settle_one(self, self._settlement(action, delay=delay, error=error))
            self.settled = action
        except LeaseLost:
            self._lost = True
            raise
        finally:
            self._settling = False

    def _settlement(
        self,
        action: wire.Action,
        *,
        delay: wire.Duration | None = None,
        error: str = "",
        timeout: wire.Duration | None = None,
    ) -> wire.Settlement:
        return wire.Settlement(
            id=self.id,
            lease_token=self.lease_token,
            action=action,
            delay=delay,
            error=error,
            timeout=timeout,
            partition=self.delivery.partition,
        )

    async def __aenter__(self) -> Self:
        scope = LeaseScope(self)
        scope.enter()
        self._scopes.append(scope)
        try:
            await self.hold()
        except BaseException as error:
            self._scopes.remove(scope)
            scope.leave(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scopes.pop().leave(error)
        await self.finish()

    async def hold(self) -> None:
        """Extend its lease from now on, until it is settled; what `async with` begins with."""
        await self._holder.hold(self)

    async def finish(self) -> None:
        """Release it if it is neither settled nor lost; what `async with` ends with."""
        if self.settled is None and not self.lost:
            await release_unsettled(self)


async def release_unsettled(message: Message) -> None:
    """Release a message that was not settled. A lease that was lost meanwhile is no error."""
    try:
        await message.release()
    except LeaseLost:
        return
