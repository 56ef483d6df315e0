"""`holdfast tail`: watch what comes into a queue, without consuming it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from holdfast.cli.support.connection import connected
from holdfast.cli.support.deliveries import document, row
from holdfast.cli.support.numbers import plural
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_note, show_rows
from holdfast.cli.support.queue_names import QUEUE
from holdfast.escapes import escape_controls

if TYPE_CHECKING:
    from holdfast.client import SyncClient
    from holdfast.wire import MessageView

LOOK_SECONDS = 0.5
PAGE_MESSAGES = 500
LOOK_MAX = 10 * PAGE_MESSAGES  # of a partition at a time


class _Tail:
    """Where each partition was read to."""

    def __init__(self, client: SyncClient, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._next: dict[int, int] = {}
        self.missed = 0

    def begin(self, count: int) -> None:
        """With the next message, or `count` before it, as near as partitions let it be."""
        partitions = self._client.operations.partitions(self._queue)
        each = -(-count // max(len(partitions), 1))
        self._next = {one.partition: max(one.end - each, one.first, 1) for one in partitions}

    def look(self) -> list[MessageView]:
        """What has come since, by the time it came."""
        found: list[MessageView] = []
        for one in self._client.operations.partitions(self._queue):
            first = self._next.get(one.partition, 1)  # a partition that was added begins at its beginning
            if one.end > first:
                found += self._read(one.partition, first, one.end)
        return sorted(found, key=lambda message: (message.enqueued_at, int(message.id)))

    def _read(self, partition: int, first: int, end: int) -> list[MessageView]:
        found: list[MessageView] = []
        at = first
        while at and len(found) < LOOK_MAX:
            page = self._client.operations.range(self._queue, partition, at, limit=PAGE_MESSAGES, gone=True)
            found += page.messages
            at = page.next
        upto = at or max([end, *[message.sequence + 1 for message in found]])
        self.missed += upto - first - len(found)
        self._next[partition] = upto
        return found


@click.command()
@click.argument("queue", type=QUEUE)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Begin with about so many that came before.",
)
@click.option("--no-follow", is_flag=True, help="Show those and end.")
@output_format
def tail(queue: str, lines: int, no_follow: bool, output: str) -> None:
    """Show messages of QUEUE as they come in. Nothing is leased or changed, and consumers notice nothing.

    Messages that are consumed immediately are shown too. Needs the right to consume. `-o jsonl` is one object a
    message. Ctrl-C ends it.
    """
    shape = "jsonl" if output == "json" else output
    with connected() as client:
        watched = _Tail(client, queue)
        watched.begin(lines)
        header = True
        while True:
            found = watched.look()
            if watched.missed and not no_follow and not header:
                show_note(f"{plural(watched.missed, 'message')} were gone before they could be shown.")
            watched.missed = 0
            for message in found:
                if shape == "jsonl":
                    show_rows(shape, [], [document(message)])
                else:
                    click.echo(_line(message))
            header = False
            if no_follow:
                return
            time.sleep(LOOK_SECONDS)


def _line(message: MessageView) -> str:
    cells = row(message)
    key = f" key={cells['key']}" if cells.get("key") not in {None, "", "-"} else ""
    return escape_controls(f"{message.enqueued_at} {message.id} p{message.priority}{key} {cells['payload']}")
