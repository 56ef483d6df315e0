"""`holdfast history`: a message's whole life, from the journal of a running server."""

from __future__ import annotations

import click
import msgspec

from holdfast.cli.support.connection import connected
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_note, show_rows
from holdfast.cli.support.queue_names import QUEUE

COLUMNS = ("at", "queue", "message_id", "event", "group", "attempt", "consumer", "protocol", "reason", "error")


@click.command()
@click.argument("queue", type=QUEUE)
@click.argument("message_id", metavar="ID")
@output_format
def history(queue: str, message_id: str, output: str) -> None:
    """Show every step of the life of the message ID of QUEUE, as the journal has it, also when it is long gone.

    Of a message that died or was redriven these are also the steps of its dead letter, of what redrives made of that,
    and so on.
    """
    with connected() as client:
        found = client.history(queue, message_id, related=True)
    rows: list[dict[str, object]] = [msgspec.to_builtins(step) for step in found.steps]
    if output != "table":
        show_rows(output, [], rows)
        return
    alone = {"queue", "message_id"} if len({row["message_id"] for row in rows}) < 2 else set()
    shown = [column for column in COLUMNS if column not in alone and any(row.get(column) for row in rows)]
    if rows:
        show_rows(output, shown, [{name: str(value) for name, value in row.items()} for row in rows])
    else:
        show_note(f"The journal knows no message {message_id} of {queue}.")
    if not found.complete:
        show_note("There may be more: the lake has more segments than were searched (holdfast pipeline build).")
