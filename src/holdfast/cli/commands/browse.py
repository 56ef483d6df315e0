"""`holdfast browse`: show messages without leasing them."""

from __future__ import annotations

import click

from holdfast.cli.support.connection import connected
from holdfast.cli.support.deliveries import document, row
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_note, show_one, show_rows
from holdfast.cli.support.queue_names import QUEUE


@click.command()
@click.argument("queue", type=QUEUE)
@click.argument("message_id", metavar="[ID]", required=False)
@click.option(
    "--state", type=click.Choice(["ready", "scheduled", "leased", "settled"]), help="Only those in this state."
)
@click.option("-g", "--group", default="", help="The state in this group. [default: in any]")
@click.option("-n", "--limit", type=click.IntRange(1), default=20, show_default=True, help="How many at most.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@output_format
def browse(
    queue: str, message_id: str | None, state: str | None, group: str, limit: int, everything: bool, output: str
) -> None:
    """Show the live messages of QUEUE, oldest first, or the one with ID. Nothing is leased or changed."""
    with connected() as client:
        if message_id is not None:
            fields = document(client.message(queue, message_id))
            show_one(output, fields)
            return
        found = client.browse(queue, state=state or "", group=group, limit=None if everything else limit)
        if output == "jsonl":  # streamed: there may be millions
            for each in found:
                show_rows(output, [], [document(each)])
            return
        messages = list(found)
        depth = client.queue(queue).depth
    if output == "json":
        show_rows(output, [], [document(each) for each in messages])
        return
    if messages:
        show_rows(output, ["id", "age", "prio", "key", "state", "payload"], [row(each) for each in messages])
    if len(messages) < depth:
        show_note(f"{len(messages):,} of {depth:,} messages shown; --all shows all, --limit more.")
    elif not messages:
        show_note(f"{queue} is empty.")
