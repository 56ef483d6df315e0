"""What the code of a job can know without being told: the message that is handled, and the client of its worker."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from holdfast.client.client import Client
from holdfast.client.messages import Message
from holdfast.client.portal import Portal
from holdfast.client.sync import SyncClient

Loop = asyncio.AbstractEventLoop

_handled: ContextVar[Message | None] = ContextVar("holdfast_handled", default=None)
_client: ContextVar[tuple[Client, Loop] | None] = ContextVar("holdfast_client", default=None)
_sync_client: ContextVar[SyncClient | None] = ContextVar("holdfast_sync_client", default=None)
_clients: weakref.WeakKeyDictionary[Loop, Client] = weakref.WeakKeyDictionary()
_sync_clients: dict[int, SyncClient] = {}  # by process: a client does not survive a fork


def handled_message() -> Message | None:
    """The message that this code handles, for logs; None outside of a worker."""
    return _handled.get()


async def report_progress(percent: float, text: str = "") -> None:
    """Say how far the job is that this code works on: to its sender (`job.progress()`), and to everybody who looks at
    its message, since it is the message's workflow state."""
    message = _handled.get()
    if message is None:
        raise RuntimeError("report_progress is for the function of a worker, while it handles a message")
    await message.put_state({"percent": percent, "text": text})


def report_progress_sync(percent: float, text: str = "") -> None:
    """`report_progress` for an ordinary function."""
    found = _client.get()
    if found is None:
        raise RuntimeError("report_progress is for the function of a worker, while it handles a message")
    Portal.of(found[1]).run(report_progress(percent, text))


def client_here() -> Client:
    """The client of the worker or of the block of `use_client` that this code runs in, else one for the event loop, of
    the server that HOLDFAST_URL names."""
    loop = asyncio.get_running_loop()
    used = _client.get()
    if used is not None and used[1] is loop:
        return used[0]
    if loop not in _clients:
        _clients[loop] = Client()
    return _clients[loop]


def client_elsewhere() -> tuple[Client, Loop] | None:
    """The client of the worker whose thread this code runs on, and the loop that it runs in."""
    return _client.get()


def sync_client_here() -> SyncClient:
    """As `client_here`, for code that is not asynchronous."""
    used = _sync_client.get()
    if used is not None:
        return used
    return _sync_clients.get(os.getpid()) or _sync_clients.setdefault(os.getpid(), SyncClient())


@contextmanager
def handling(message: Message, client: Client) -> Iterator[None]:
    """Code of this block handles a message."""
    before = _handled.set(message)
    try:
        with use_client(client):
            yield
    finally:
        _handled.reset(before)


@contextmanager
def use_client(client: Client | SyncClient) -> Iterator[None]:
    """Jobs that are sent in this block, and in tasks that it starts, are sent by this client."""
    if isinstance(client, SyncClient):
        before = _sync_client.set(client)
        try:
            yield
        finally:
            _sync_client.reset(before)
    else:
        used = _client.set((client, asyncio.get_running_loop()))
        try:
            yield
        finally:
            _client.reset(used)
