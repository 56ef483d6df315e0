"""`holdfast consumer`: who consumes a queue."""

from __future__ import annotations

import click
import msgspec

from holdfast.cli.support.confirm import confirm, dry_run_option, yes_option
from holdfast.cli.support.connection import connected
from holdfast.cli.support.numbers import plural
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_note, show_one, show_rows
from holdfast.cli.support.queue_names import QUEUE


@click.group()
def consumer() -> None:
    """Show who consumes a queue, and end connections."""


@consumer.command("list")
@click.argument("queue", type=QUEUE)
@output_format
def list_all(queue: str, output: str) -> None:
    """List the consumers to whom messages of QUEUE are pushed: streams and MQTT clients, and what each has in flight.

    Workers and `holdfast receive` ask for messages instead: of those that wait the number is shown.
    """
    with connected() as client:
        found = client.consumers(queue)
    if output != "table":
        show_rows(output, [], [msgspec.to_builtins(each) for each in found.consumers])
        return
    columns = ["name", "group", "protocol", "partitions", "in_flight", "credit"]
    if found.consumers:
        show_rows(output, columns, [msgspec.to_builtins(each) for each in found.consumers])
    else:
        show_note(f"No messages of {queue} are pushed to anybody.")
    show_note(f"{plural(found.waiting, 'lease request')} {'waits' if found.waiting == 1 else 'wait'} for a message.")


@consumer.command()
@click.argument("queue", type=QUEUE)
@click.argument("name", metavar="CONSUMER")
@click.option("-g", "--group", default="", help="In this group only. [default: in every group of the queue]")
@yes_option
@dry_run_option
@output_format
def disconnect(queue: str, name: str, group: str, yes: bool, dry_run: bool, output: str) -> None:
    """End the connection of CONSUMER, to whom messages of QUEUE are pushed, as `consumer list` names it.

    What it holds is released, or fails, as it asked for. Of an MQTT client the whole connection ends. It may come
    again: take its credential away to keep it out.
    """
    with connected() as client:
        if dry_run:
            found = [
                each
                for each in client.consumers(queue).consumers
                if (each.name, group or each.group) == (name, each.group)
            ]
            show_note(f"Would end {plural(len(found), 'connection')} of {name} to {queue}.")
            return
        confirm(f"End the connection of {name} to {queue}?", yes)
        ended = client.operations.disconnect(queue, name, group=group)
    show_note(f"Ended {plural(ended, 'connection')} of {name} to {queue}.")
    if output != "table":
        show_one(output, {"queue": queue, "consumer": name, "disconnected": ended})
