"""`holdfast consumer`: who consumes a queue."""

from __future__ import annotations

import click
import msgspec

from holdfast.cli.support.connection import connected
from holdfast.cli.support.numbers import plural
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_note, show_rows
from holdfast.cli.support.queue_names import QUEUE


@click.group()
def consumer() -> None:
    """Show who consumes a queue."""


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
