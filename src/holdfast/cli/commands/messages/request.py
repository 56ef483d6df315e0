"""`holdfast request`: send a message and wait for its reply."""

from __future__ import annotations

import sys

import click

from holdfast.cli.support.connection import connected
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_one
from holdfast.cli.support.queue_names import QUEUE
from holdfast.cli.support.times import DURATION


@click.command()
@click.argument("queue", type=QUEUE)
@click.argument("payload", default="")
@click.option(
    "--wait", "timeout", type=DURATION, default="30s", show_default=True, help="How long to wait for the reply."
)
@click.option("--key", help="Messages of one key are delivered one after another.")
@click.option(
    "--priority", type=click.IntRange(0, 255), default=128, show_default=True, help="A lower value is delivered sooner."
)
@click.option("--content-type", help="What PAYLOAD is, as application/json. [default: text/plain]")
@output_format
def request(
    queue: str, payload: str, timeout: str, key: str | None, priority: int, content_type: str | None, output: str
) -> None:
    """Send PAYLOAD to QUEUE and print the reply to it. PAYLOAD `-` is standard input.

    Exit code 1 if no reply comes in time: the message stays in the queue then, unless it was worked on.
    """
    body = sys.stdin.buffer.read() if payload == "-" else payload.encode(errors="surrogateescape")
    with connected() as client:
        reply = client.request(
            queue, body, timeout=timeout, key=key, priority=priority, content_type=content_type or "text/plain"
        )
    if output == "table":
        sys.stdout.buffer.write(reply.body)
        if sys.stdout.isatty() and not reply.body.endswith(b"\n"):
            click.echo()
        sys.stdout.flush()
    else:
        show_one(output, {"request": reply.request_id, "content_type": reply.content_type, "payload": reply.body})
