"""What a page says about the form before it: fixed texts, chosen by a word in the address."""

from __future__ import annotations

from typing import Final

from holdfast.console.formats import plural

NOTICES: Final = {
    "created": "The queue was created.",
    "changed": "The configuration was changed.",
    "paused": "The queue is paused: it takes messages and gives none out.",
    "resumed": "The queue gives out messages again.",
    "deleted": "The queue was deleted, with {messages}.",
    "purged": "{messages} removed.",
    "group-deleted": "The group was deleted.",
    "sent": "The message is stored.",
    "repeated": "Nothing was stored: a message with this message id is there already.",
    "edited": "The message was changed.",
    "message-deleted": "The message was deleted.",
    "released": "{messages} released: others may have them now.",
    "disconnected": "The connection is being closed. The client may come again.",
    "retained-deleted": "The retained message was deleted.",
    "schedule-stored": "The schedule is stored.",
    "schedule-paused": "The schedule is paused: its ticks do nothing.",
    "schedule-resumed": "The schedule ticks again.",
    "schedule-run": "Its message was enqueued.",
    "schedule-not-run": "Nothing was enqueued: the newest line below says why.",
    "schedule-deleted": "The schedule was deleted.",
    "redriven": "{messages} moved back.",
    "undone": "{messages} moved to the dead queue again.",
    "redriving": "The redrive has begun; its progress is below.",
    "counted": "Dry run: {messages} would be moved.",
    "cancelled": "The redrive was cancelled. What it has moved stays moved.",
    "dead-purged": "{messages} removed.",
}

_OF_DEAD_LETTERS: Final = {
    **dict.fromkeys(("redriven", "undone", "dead-purged"), ("dead letter was", "dead letters were")),
    "counted": ("dead letter", "dead letters"),
}


def notice(did: str, count: int) -> str:
    """The text, empty if there is none."""
    text = NOTICES.get(did, "")
    if did in _OF_DEAD_LETTERS:
        return text.format(messages=plural(count, *_OF_DEAD_LETTERS[did]))
    if did in ("purged", "released"):
        return text.format(messages=plural(count, "message was", "messages were"))
    return text.format(messages=plural(count, "message"))
