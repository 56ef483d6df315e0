"""Every call of the HTTP API as a value: what to send, how to read the answer, and what may be done when none comes.

Nothing here does I/O. A transport performs a `Call`; whoever wants to know what the client puts on the wire reads this
file. A call is `repeatable` if doing it twice is as good as doing it once: messages carry an id of the producer's, a
settlement is answered the second time as the first, and a lease that nobody received falls back by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from holdfast import wire

Answer = TypeVar("Answer")

_encode = msgspec.json.Encoder().encode


class Call(msgspec.Struct, Generic[Answer], frozen=True, kw_only=True):
    """One request. `wait_seconds` is how long the server may take on purpose (a long poll)."""

    method: str
    path: str
    read: Callable[[bytes], Answer]
    body: bytes = b""
    repeatable: bool = False
    wait_seconds: float = 0.0
    refused: Callable[[list[wire.ItemError]], Answer] | None = None
    """A batch of which nothing was taken is answered by a problem with an error for each item: as an answer."""


def _reader(shape: type[Answer]) -> Callable[[bytes], Answer]:
    return msgspec.json.Decoder(shape).decode


def _nothing(_: bytes) -> None:
    return None


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def _path(*names: str, **query: object) -> str:
    path = "/api/v1/" + "/".join(names)
    given = {name: str(value) for name, value in query.items() if value not in {"", None}}
    return f"{path}?{urlencode(given)}" if given else path


def _queue(name: str, *rest: str, **query: object) -> str:
    return _path("queues", segment(name), *rest, **query)


# --- messages -------------------------------------------------------------------------------------------------------

_receipt = _reader(wire.Receipt)
_leased = _reader(wire.Leased)
_settled = _reader(wire.Settled)
_page = _reader(wire.MessagePage)
_view = _reader(wire.MessageView)


def enqueue(queue: str, drafts: Sequence[wire.Draft], *, atomic: bool = False) -> Call[wire.Receipt]:
    count = len(drafts)

    def refused(errors: list[wire.ItemError]) -> wire.Receipt:
        return wire.Receipt(ids=[None] * count, errors=errors)

    return Call(
        method="POST",
        path=_queue(queue, "messages"),
        read=_receipt,
        body=_encode(wire.Enqueue(list(drafts), atomic)),
        repeatable=all(draft.message_id is not None for draft in drafts),
        refused=refused,
    )


def lease(queue: str, wish: wire.Lease, wait_seconds: float) -> Call[wire.Leased]:
    return Call(
        method="POST",
        path=_queue(queue, "leases"),
        read=_leased,
        body=_encode(wish),
        repeatable=True,
        wait_seconds=wait_seconds,
    )


def settle(queue: str, group: str, settlements: Sequence[wire.Settlement]) -> Call[wire.Settled]:
    def refused(errors: list[wire.ItemError]) -> wire.Settled:
        return wire.Settled(settled=0, errors=errors)

    return Call(
        method="POST",
        path=_queue(queue, "settle"),
        read=_settled,
        body=_encode(wire.Settle(group=group, settlements=list(settlements))),
        repeatable=True,
        refused=refused,
    )


def browse(
    queue: str, *, state: str = "", group: str = "", cursor: str = "", limit: int = 100
) -> Call[wire.MessagePage]:
    path = _queue(queue, "messages", state=state, group=group, cursor=cursor, limit=limit, encoding="base64")
    return Call(method="GET", path=path, read=_page, repeatable=True)


def message(queue: str, message_id: str) -> Call[wire.MessageView]:
    path = _queue(queue, "messages", segment(message_id), encoding="base64")
    return Call(method="GET", path=path, read=_view, repeatable=True)


def edit(queue: str, message_id: str, change: wire.MessageEdit) -> Call[wire.Message]:
    return Call(
        method="PATCH",
        path=_queue(queue, "messages", segment(message_id)),
        read=_reader(wire.Message),
        body=_encode(change),
        repeatable=True,
    )


def delete_message(queue: str, message_id: str) -> Call[None]:
    return Call(method="DELETE", path=_queue(queue, "messages", segment(message_id)), read=_nothing)


# --- queues ---------------------------------------------------------------------------------------------------------

_one_queue = _reader(wire.Queue)


def create_queue(queue: str, config: Mapping[str, object]) -> Call[wire.Queue]:
    body = _encode(wire.QueueCreate(queue, dict(config)))
    return Call(method="POST", path=_path("queues"), read=_one_queue, body=body)


def get_queue(queue: str) -> Call[wire.Queue]:
    return Call(method="GET", path=_queue(queue), read=_one_queue, repeatable=True)


def list_queues(*, prefix: str = "", cursor: str = "", limit: int = 1_000) -> Call[wire.QueueList]:
    path = _path("queues", prefix=prefix, cursor=cursor, limit=limit)
    return Call(method="GET", path=path, read=_reader(wire.QueueList), repeatable=True)


def update_queue(queue: str, config: Mapping[str, object]) -> Call[wire.Queue]:
    return Call(
        method="PUT", path=_queue(queue, "config"), read=_one_queue, body=_encode(dict(config)), repeatable=True
    )


def delete_queue(queue: str) -> Call[wire.QueueDeleted]:
    return Call(method="DELETE", path=_queue(queue), read=_reader(wire.QueueDeleted))
