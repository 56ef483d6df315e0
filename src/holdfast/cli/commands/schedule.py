"""`holdfast schedule`: messages that the server enqueues by the clock."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from holdfast import wire
from holdfast.cli.support.confirm import confirm, yes_option
from holdfast.cli.support.connection import connected
from holdfast.cli.support.numbers import count
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_note, show_one, show_rows
from holdfast.cli.support.queue_names import QUEUE
from holdfast.cli.support.times import DURATION, INSTANT
from holdfast.errors import InvalidArgument

RUNS_SHOWN = 10


@click.group()
def schedule() -> None:
    """Have messages enqueued by the clock: by cron expressions or at intervals."""


@schedule.command("set")
@click.argument("name")
@click.argument("queue", type=QUEUE)
@click.argument("payload", default="")
@click.option("--cron", default="", help="Minute, hour, day of month, month, day of week, as '30 9 * * MON-FRI'.")
@click.option("--every", type=DURATION, help="An interval instead, as 15m.")
@click.option("--timezone", default="UTC", show_default=True, help="The time zone of --cron, as Europe/Berlin.")
@click.option("--starts-at", type=INSTANT, help="No tick before this instant; intervals are counted from it.")
@click.option("--ends-at", type=INSTANT, help="No tick at or after this instant.")
@click.option("--jitter", type=DURATION, default="0s", show_default=True, help="Enqueue up to this much later.")
@click.option(
    "--catch-up",
    type=click.Choice(["skip", "one", "all"]),
    default="skip",
    show_default=True,
    help="Of ticks that the server missed enqueue none, the last, or all.",
)
@click.option(
    "--overlap",
    type=click.Choice(["skip", "queue", "replace"]),
    default="queue",
    show_default=True,
    help="If the message of the tick before is still there: enqueue none, another, or replace it.",
)
@click.option("--json", "as_json", is_flag=True, help="PAYLOAD is JSON, not text.")
@click.option("--key", help="Messages of one key are delivered one after another.")
@click.option(
    "--priority", type=click.IntRange(0, 255), default=128, show_default=True, help="A lower value is delivered sooner."
)
@click.option("--ttl", type=DURATION, help="How long a message may wait. [default: the queue's message_ttl]")
@output_format
def set_one(name: str, queue: str, payload: str, as_json: bool, output: str, **options: Any) -> None:
    """Have PAYLOAD enqueued in QUEUE by the schedule NAME. One that exists is replaced.

    \b
    holdfast schedule set reports/nightly reports '{"kind": "daily"}' --json --cron '30 2 * * *' --timezone Europe/Rome
    holdfast schedule set sweep tasks sweep --every 15m --overlap skip
    """
    with connected() as client:
        stored = client.schedules.put(name, queue, _json(payload) if as_json else payload, **options)
    if output == "table":
        upcoming = f" Next: {stored.next[0]}." if stored.next else ""
        show_note(f"Stored schedule {name}.{upcoming}")
    else:
        show_one(output, _plain(stored))


def _json(payload: str) -> object:
    try:
        return msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise InvalidArgument(field="The payload", problem=f"is not JSON: {error}") from None


@schedule.command("list")
@click.argument("prefix", default="")
@output_format
def list_all(prefix: str, output: str) -> None:
    """List the schedules whose names start with PREFIX, or all, each with its next tick."""
    with connected() as client:
        found = client.schedules.all(prefix)
    if output != "table":
        show_rows(output, [], [_plain(each) for each in found])
    elif not found:
        show_note("There are no schedules" + (f" that start with {prefix!r}." if prefix else " yet."))
    else:
        rows: list[dict[str, object]] = [
            {
                "name": each.name,
                "queue": each.queue,
                "when": _when(each),
                "next": each.next[0] if each.next else "paused" if each.paused else "ended",
                "enqueued": count(each.enqueued),
            }
            for each in found
        ]
        show_rows(output, ["name", "queue", "when", "next", "enqueued"], rows)


@schedule.command()
@click.argument("name")
@output_format
def show(name: str, output: str) -> None:
    """Show the schedule NAME: what it enqueues, its next ten ticks, and what became of the last ones."""
    with connected() as client:
        found = client.schedules.get(name)
    document = _plain(found)
    if output != "table":
        show_one(output, document)
        return
    del document["runs"], document["next"]
    show_one(output, {**document, "when": _when(found)})
    show_note("")
    show_rows(output, ["next ticks"], [{"next ticks": tick} for tick in found.next])
    if found.runs:
        show_note("")
        rows = [msgspec.to_builtins(run) for run in found.runs[:RUNS_SHOWN]]
        show_rows(output, ["tick", "at", "outcome", "message", "error"], rows)


@schedule.command()
@click.argument("name")
def pause(name: str) -> None:
    """Pause the schedule NAME."""
    with connected() as client:
        client.schedules.pause(name)
    show_note(f"Paused {name}.")


@schedule.command()
@click.argument("name")
def resume(name: str) -> None:
    """Resume the schedule NAME. Ticks of the pause are not caught up with."""
    with connected() as client:
        resumed = client.schedules.resume(name)
    show_note(f"Resumed {name}." + (f" Next: {resumed.next[0]}." if resumed.next else ""))


@schedule.command()
@click.argument("name")
def run(name: str) -> None:
    """Enqueue the message of the schedule NAME now. Prints the message's id."""
    with connected() as client:
        click.echo(client.schedules.run(name).message)


@schedule.command()
@click.argument("name")
@yes_option
def delete(name: str, yes: bool) -> None:
    """Delete the schedule NAME. Messages that it enqueued stay."""
    with connected() as client:
        confirm(f"Delete the schedule {name}?", yes)
        client.schedules.delete(name)
    show_note(f"Deleted {name}.")


def _when(found: wire.Schedule) -> str:
    return f"{found.cron} ({found.timezone})" if found.cron else f"every {found.every}"


def _plain(found: wire.Schedule) -> dict[str, Any]:
    plain = msgspec.json.decode(msgspec.json.encode(found), type=dict[str, Any])
    return {"name": found.name, "next": [], "runs": [], **plain}
