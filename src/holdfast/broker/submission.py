"""The one way in which submitted work is answered.

A call of a part that changes something applies it to the engine, or raises if it is refused, and returns a
`Submission`. Its result is known but may not be given to a client before the submission's moment has come: **durable**
(synced) for most, **written** (in the store) for leases and for queues with durability `buffered`.

HTTP awaits it or uses `on_done`. MQTT reads `result` immediately and uses neither: it holds its answers until the whole
turn is durable (`GroupCommit.on_durable`), because all that a connection is sent is one ordered stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from enum import Enum
from functools import partial
from typing import Generic, TypeVar

from holdfast.broker.commit.admission import Inbox
from holdfast.broker.commit.group_commit import DoneCallback, GroupCommit, notify, resolve
from holdfast.errors import HoldfastError

T_co = TypeVar("T_co", covariant=True)


class Moment(Enum):
    """When a submission may be answered."""

    WRITTEN = "written"
    DURABLE = "durable"


class Submission(Generic[T_co]):
    """Work that was applied and waits for its commit. `await` it for the result, or have a callback called.

    It counts its `messages` and `size_bytes` into the inbox until it is done.
    """

    __slots__ = (
        "_callbacks", "_commit", "_done", "_error", "_future", "_inbox", "_messages", "_size_bytes", "moment", "result",
    )  # fmt: skip

    def __init__(
        self,
        commit: GroupCommit,
        inbox: Inbox,
        result: T_co,
        moment: Moment = Moment.DURABLE,
        messages: int = 0,
        size_bytes: int = 0,
    ) -> None:
        self.result = result
        self.moment = moment
        self._commit = commit
        self._inbox = inbox
        self._messages = messages
        self._size_bytes = size_bytes
        self._callbacks: list[DoneCallback] | None = None
        self._future: asyncio.Future[None] | None = None  # of the first that awaits it
        self._done = False
        self._error: HoldfastError | None = None
        inbox.messages += messages
        inbox.size_bytes += size_bytes
        if moment is Moment.DURABLE:
            commit.on_durable(self._finish)
        else:
            commit.on_written(self._finish)

    def _finish(self, error: HoldfastError | None) -> None:
        self._done = True
        self._error = error
        self._inbox.messages -= self._messages
        self._inbox.size_bytes -= self._size_bytes
        if self._callbacks is not None:
            notify(self._callbacks, error)
            self._callbacks = None
        if self._future is not None:
            resolve(self._future, error)

    def on_done(self, callback: DoneCallback) -> None:
        """Call back when the moment has come, or with the error because of which it will not; now, if it has."""
        if self._done:
            callback(self._error)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def on_written(self, callback: DoneCallback) -> None:
        """Call back when it is written, which is before it is durable: time to prepare an answer while the disk
        works. Called before an `await` of this submission returns."""
        self._commit.on_written(callback)

    def __await__(self) -> Generator[object, None, T_co]:
        if not self._done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._future is None:
                self._future = future
            else:
                self.on_done(partial(resolve, future))
            yield from future
        if self._error is not None:
            raise self._error
        return self.result
