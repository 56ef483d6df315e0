"""Sends jobs: messages for a worker, written as calls of its function.

    await send_email.send(to="ann@example.com", text="Hello")
    await send_email.key("ann").delay("5m").send(to="ann@example.com", text="Hello")
    await send_email.send_many([send_email.draft(to=each, text="Hello") for each in addresses])

The arguments are checked against the function's signature, by a type checker and again when the job is sent.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast import wire
from holdfast.client.drafts import Properties, draft
from holdfast.client.portal import Portal
from holdfast.client.sent import Sent, SentMany
from holdfast.client.times import Duration, Instant, instant, optional_duration
from holdfast.client.workers.arguments import HandlerCall
from holdfast.client.workers.context import client_elsewhere, client_here, sync_client_here
from holdfast.client.workers.jobs import Job

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

Unique = bool | Callable[..., str]
"""Whether jobs with the same arguments are one, or a function of the arguments that says which are."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of the messages that are sent."""

    key: str | None = None
    priority: int = 128
    delay: wire.Duration | None = None
    deliver_at: wire.Instant | None = None
    ttl: wire.Duration | None = None
    message_id: str | None = None
    properties: Properties | None = None


class Sending(Generic[Parameters, Result]):
    """How jobs of one function are sent. The methods that take an option return another that has it too."""

    def __init__(
        self, queue: str, call: HandlerCall, unique: Unique, options: Options = Options(), group: str = "default"
    ) -> None:
        self.queue = queue
        self.group = group
        self._call = call
        self._unique = unique
        self._options = options

    def _with(self, **changes: Any) -> Sending[Parameters, Result]:
        return Sending(self.queue, self._call, self._unique, replace(self._options, **changes), self.group)

    def key(self, key: str) -> Sending[Parameters, Result]:
        """Jobs of one key are done in order."""
        return self._with(key=key)

    def delay(self, delay: Duration) -> Sending[Parameters, Result]:
        """Not before this time has passed."""
        return self._with(delay=optional_duration(delay), deliver_at=None)

    def at(self, moment: Instant) -> Sending[Parameters, Result]:
        """Not before this instant."""
        return self._with(deliver_at=instant(moment), delay=None)

    def options(
        self,
        *,
        priority: int = 128,
        ttl: Duration | None = None,
        message_id: str | None = None,
        properties: Properties | None = None,
    ) -> Sending[Parameters, Result]:
        """Further fields of the message, as of `Client.send`."""
        return self._with(priority=priority, ttl=optional_duration(ttl), message_id=message_id, properties=properties)

    def draft(self, *args: Parameters.args, **keywords: Parameters.kwargs) -> wire.Draft:
        """The message of a job: for `send_many`, for transactions, for an outbox."""
        return draft(**self._fields(*args, **keywords))

    async def send(self, *args: Parameters.args, **keywords: Parameters.kwargs) -> Job:
        """Send a job: the function will be called with these arguments. It is durable when this returns.

        It is sent by the client of the worker or of the `use_client` block that this runs in, else by one that is made
        for the event loop, of the server that `HOLDFAST_URL` names.
        """
        return self._sent(await client_here().send(self.queue, **self._fields(*args, **keywords)))

    async def send_many(self, messages: Iterable[wire.Draft], *, atomic: bool = False) -> SentMany:
        """Send jobs that `draft` has made, in their order; see `Client.send_many`."""
        return await client_here().send_many(self.queue, messages, atomic=atomic)

    def send_sync(self, *args: Parameters.args, **keywords: Parameters.kwargs) -> Job:
        """`send` for code that is not asynchronous."""
        fields = self._fields(*args, **keywords)
        elsewhere = client_elsewhere()
        if elsewhere is None:
            return self._sent(sync_client_here().send(self.queue, **fields))
        client, loop = elsewhere
        if loop is _running_loop():
            raise RuntimeError("send_sync would block the event loop that sends: await send(...) in asynchronous code")
        return self._sent(Portal.of(loop).run(client.send(self.queue, **fields)))

    def job(self, job_id: str) -> Job:
        """A job that was sent before, by its id: to wait for its result, or to cancel it."""
        return Job(job_id, self.queue, group=self.group)

    def _sent(self, sent: Sent) -> Job:
        return Job(sent.id, self.queue, sent.duplicate, self.group)

    def _fields(self, *args: Parameters.args, **keywords: Parameters.kwargs) -> dict[str, Any]:
        """The fields of the message of a job. Raises TypeError if the function could not be called so."""
        body = self._call.body(args, keywords)
        fields = {name: getattr(self._options, name) for name in self._options.__struct_fields__}
        if self._unique is not False and fields["message_id"] is None:
            plain = draft(body, message_id="")
            same = msgspec.json.encode(plain) if self._unique is True else self._unique(*args, **keywords).encode()
            fields["message_id"] = "unique-" + hashlib.sha256(same).hexdigest()[:32]
        return {"payload": body, **fields}


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
