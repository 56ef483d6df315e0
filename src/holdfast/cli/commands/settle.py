"""`holdfast ack`, `nack`, `reject`, `release`, `extend`: settle a message that was received.

Queue, id and lease token come as arguments, or from the variables that `holdfast receive --export` sets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from holdfast.cli.commands.receive import group_option
from holdfast.cli.support.confirm import dry_run_option
from holdfast.cli.support.connection import connected
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_note, show_one
from holdfast.cli.support.queue_names import QUEUE
from holdfast.cli.support.times import DURATION
from holdfast.wire import Settlement

Command = TypeVar("Command", bound=Callable[..., object])


def _which(command: Command) -> Command:
    for option in (
        output_format,
        dry_run_option,
        group_option,
        click.argument("lease_token", envvar="HOLDFAST_LEASE_TOKEN"),
        click.argument("message_id", metavar="ID", envvar="HOLDFAST_ID"),
        click.argument("queue", type=QUEUE, envvar="HOLDFAST_QUEUE"),
    ):
        command = option(command)
    return command


@click.command()
@_which
def ack(queue: str, message_id: str, lease_token: str, group: str, dry_run: bool, output: str) -> None:
    """Ack: the message is done for its group."""
    _settle(queue, group, Settlement(id=message_id, lease_token=lease_token), "Acked", dry_run, output)


@click.command()
@_which
@click.option(
    "--delay", type=DURATION, help="Deliver again after this time, as 10m. [default: as the queue's retry policy says]"
)
@click.option("--error", default="", help="What went wrong; stored with the message.")
def nack(
    queue: str, message_id: str, lease_token: str, group: str, delay: str | None, error: str, dry_run: bool, output: str
) -> None:
    """Nack: the attempt failed; deliver the message again later."""
    settlement = Settlement(id=message_id, lease_token=lease_token, action="nack", delay=delay, error=error)
    _settle(queue, group, settlement, "Nacked", dry_run, output)


@click.command()
@_which
@click.option("--error", default="", help="Why it can never be processed; stored with the message.")
def reject(queue: str, message_id: str, lease_token: str, group: str, error: str, dry_run: bool, output: str) -> None:
    """Reject: move the message to the dead queue now."""
    settlement = Settlement(id=message_id, lease_token=lease_token, action="reject", error=error)
    _settle(queue, group, settlement, "Rejected", dry_run, output)


@click.command()
@_which
@click.option("--delay", type=DURATION, help="Deliver it again after this time, as 10m. [default: immediately]")
def release(
    queue: str, message_id: str, lease_token: str, group: str, delay: str | None, dry_run: bool, output: str
) -> None:
    """Release: return the message to the queue; the attempt does not count."""
    settlement = Settlement(id=message_id, lease_token=lease_token, action="release", delay=delay)
    _settle(queue, group, settlement, "Released", dry_run, output)


@click.command()
@_which
@click.option("--lease", type=DURATION, help="How long from now, as 5m. [default: the queue's delivery_timeout]")
def extend(
    queue: str, message_id: str, lease_token: str, group: str, lease: str | None, dry_run: bool, output: str
) -> None:
    """Extend the lease. Prints the new deadline."""
    settlement = Settlement(id=message_id, lease_token=lease_token, action="extend", timeout=lease)
    _settle(queue, group, settlement, "Extended", dry_run, output)


def _settle(queue: str, group: str, settlement: Settlement, done: str, dry_run: bool, output: str) -> None:
    if dry_run:
        show_note(f"Would {settlement.action} message {settlement.id} of {queue} for group {group}.")
        return
    from holdfast.client.problems import error_of  # noqa: PLC0415

    with connected() as client:
        settled = client.settle(queue, [settlement], group=group)
    if settled.errors:
        raise error_of(settled.errors[0])
    show_note(f"{done} message {settlement.id} of {queue}.")
    deadline = settled.deadlines.get(settlement.id)
    if output != "table":
        act: dict[str, object] = {"queue": queue, "id": settlement.id, "action": settlement.action}
        show_one(output, act | ({"lease_deadline": deadline} if deadline else {}))
    elif deadline:
        click.echo(deadline)
