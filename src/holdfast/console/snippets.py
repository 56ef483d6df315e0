"""How a program sends a message like this one: for the shell with curl, in Python, on the command line."""

from __future__ import annotations

import shlex
from typing import Final
from urllib.parse import quote

import msgspec

from holdfast import wire

SHOWN_BYTES_MAX: Final = 10_000
"""A longer payload is not part of a command that somebody copies."""


class Snippet(msgspec.Struct, frozen=True):
    title: str
    code: str


def snippets(url: str, queue: str, message: wire.Message) -> list[Snippet]:
    """None for a message whose payload is too large for that."""
    if len(message.body()) > SHOWN_BYTES_MAX:
        return []
    draft = wire.Draft(
        payload=message.payload,
        text=message.text,
        base64=message.base64,
        content_type=message.content_type,
        key=message.key,
        priority=message.priority,
        properties=message.properties,
        correlation_id=message.correlation_id,
        reply_to=message.reply_to,
    )
    body = msgspec.json.encode(wire.Enqueue([draft])).decode()
    one = msgspec.json.encode(draft).decode()
    path = "/api/v1/queues/" + quote(queue, safe="") + "/messages"
    return [
        Snippet("curl", f"curl -H 'Content-Type: application/json' -d {shlex.quote(body)} \\\n  {url}{path}"),
        Snippet("Python", _python(url, queue, draft)),
        Snippet("Command line", f"holdfast --url {url} send {shlex.quote(queue)} --as message {shlex.quote(one)}"),
    ]


def _python(url: str, queue: str, draft: wire.Draft) -> str:
    if isinstance(draft.payload, msgspec.Raw):
        payload: object = msgspec.json.decode(draft.payload)
    else:
        payload = (
            draft.text if isinstance(draft.text, str) else draft.base64 if isinstance(draft.base64, bytes) else b""
        )
    options = {
        "key": draft.key,
        "priority": None if draft.priority == 128 else draft.priority,
        "content_type": draft.content_type,
        "properties": draft.properties or None,
        "correlation_id": draft.correlation_id,
        "reply_to": draft.reply_to,
    }
    given = "".join(f", {name}={value!r}" for name, value in options.items() if value is not None)
    return (
        "from holdfast.client import SyncClient\n\n"
        f"with SyncClient({url!r}) as client:\n"
        f"    client.send({queue!r}, {payload!r}{given})"
    )
