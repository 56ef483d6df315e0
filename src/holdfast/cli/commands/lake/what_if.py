"""`holdfast pipeline what-if`: what would have become of deliveries under another policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.support.connection import connected
from holdfast.cli.support.numbers import count, plural
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_note, show_rows, show_table
from holdfast.cli.support.pipeline_job import instant, namespace_of_server, parsed, running, spark_options
from holdfast.core.queue import QueueConfig, from_fields
from holdfast.errors import InvalidConfig, QueueNotFound, ServerUnreachable
from holdfast.units import format_duration, parse_duration

if TYPE_CHECKING:
    from holdfast.pipeline.jobs.what_if import Played, WhatIf


@click.command("what-if")
@click.option("--queue", required=True, help="The queue.")
@click.option("--group", default="", help="Only this group. [default: each]")
@click.option("--since", help="Messages enqueued from this instant on, or so long ago, as 24h. [default: all]")
@click.option("--until", help="Messages enqueued before this instant, or so long ago.")
@click.option("--retries", help="Failures after which a message is dead (max_retries).")
@click.option("--backoff", help="How long after the first failure, as 10s (initial_backoff).")
@click.option("--max-backoff", help="The longest backoff.")
@click.option("--multiplier", help="The factor by which each backoff is longer than the one before.")
@click.option("--total-timeout", help="A message is dead at the first failure after this time; 0s: no limit.")
@click.option("--lease-time", help="How long a lease lasts, as 1m. [default: leases end as they did]")
@click.option(
    "--consumers", type=click.IntRange(1), help="Deliveries at work at a time. [default: each waits as long as it did]"
)
@spark_options
@output_format
def what_if(
    queue: str,
    group: str,
    since: str | None,
    until: str | None,
    retries: str | None,
    backoff: str | None,
    max_backoff: str | None,
    multiplier: str | None,
    total_timeout: str | None,
    lease_time: str | None,
    consumers: int | None,
    output: str,
    **job_options: Any,
) -> None:
    """Play a queue's past again under other retries, lease times or consumers.

    What is not given is as the server has it for the queue. At worst, attempts that were never made fail, and all
    others end as they did; at best, attempts at another time fail as often as those that were made then.
    """
    given = {
        "retry.max_retries": int(retries) if retries is not None and retries.isdecimal() else retries,
        "retry.initial_backoff": backoff,
        "retry.max_backoff": max_backoff,
        "retry.multiplier": _number(multiplier),
        "retry.total_timeout": total_timeout,
        "delivery_timeout": lease_time,
    }
    lasting = parsed("--lease-time", parse_duration, lease_time) if lease_time is not None else None
    first, last = instant("--since", since), instant("--until", until)
    namespace = namespace_of_server(dry_run=True)
    config = _config(queue, {name: value for name, value in given.items() if value is not None})
    with running("what-if", job_options) as job:
        from holdfast.pipeline.jobs import what_if  # noqa: PLC0415 - Spark

        job.lake.require()
        wanted = what_if.Policy(retry=config.retry, lease_time=lasting, consumers=consumers)
        messages = [file for file in job.lake.messages.files() if file.may_hold("enqueued_at", first, last)]
        events = [file for file in job.lake.events.files() if file.may_hold("at", first, None)]
        with job.stages.stage("play again"):
            found = list(
                what_if.what_if(
                    job.lake.messages.read(job.spark, messages),
                    job.lake.events.read(job.spark, events),
                    wanted,
                    namespace=namespace,
                    queue=queue,
                    group=group,
                    since=first,
                    until=last,
                )
            )
        job.stages.count_read("events", sum(file.rows for file in events))
    if output == "table":
        for one in found:
            _show(one)
        show_note(f"With {_words(config, lasting, consumers)}.")
        return
    rows: list[dict[str, object]] = [msgspec.to_builtins(one) for one in found]
    show_rows(output, [], rows)


def _number(text: str | None) -> float | str | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return text


def _config(queue: str, given: dict[str, object]) -> QueueConfig:
    """The queue's configuration at the server, changed. If it does not say, the defaults are."""
    base: dict[str, object] = {}
    try:
        with connected() as client:
            config = client.queue(queue).config
            base = {"retry": msgspec.to_builtins(config.retry), "delivery_timeout": config.delivery_timeout}
    except (ServerUnreachable, QueueNotFound):
        show_note(f"The server does not say how {queue} is configured: what is not given is as by default.")
    start = from_fields(base)
    if "retry.initial_backoff" in given and "retry.max_backoff" not in given:
        wanted = parsed("--backoff", parse_duration, given["retry.initial_backoff"])
        given = given | {"retry.max_backoff": format_duration(max(wanted, start.retry.max_backoff))}
    if not given:
        raise click.UsageError("Say what would have been different: --retries, --backoff, --lease-time, --consumers, …")
    try:
        return from_fields(given, start)
    except InvalidConfig as error:
        raise click.UsageError(str(error)) from error


def _show(one: WhatIf) -> None:
    from holdfast.pipeline.jobs.charts import show_ms  # noqa: PLC0415

    def column(played: Played) -> list[str]:
        dead = ", ".join(f"{number:,} {reason}" for reason, number in played.dead.items())
        return [
            count(played.acked),
            f"{sum(played.dead.values()):,}" + (f" ({dead})" if dead else ""),
            count(played.attempts),
            count(played.attempts_in_a_minute),
            count(played.at_work),
            *map(show_ms, (played.wait_p50_ms, played.wait_p95_ms, played.total_p50_ms, played.total_p95_ms)),
        ]

    names = ["acked", "dead", "attempts", "attempts in a minute", "at work at a time"]
    names += ["wait p50", "wait p95", "until acked p50", "until acked p95"]
    left_out = f", {one.left_out:,} left out" if one.left_out else ""
    click.echo(f"{one.queue}, {one.group}: {one.deliveries:,} deliveries{left_out}")
    columns = [column(played) for played in (one.was, one.at_worst, one.at_best)]
    show_table(["", "was", "at worst", "at best"], [list(row) for row in zip(names, *columns, strict=True)])


def _words(config: QueueConfig, lease_time: int | None, consumers: int | None) -> str:
    retry = config.retry
    words = f"{retry.max_retries} retries, the first after {format_duration(retry.initial_backoff)}"
    words += f", each {retry.multiplier:g} times as long, at most {format_duration(retry.max_backoff)}"
    words += f", none after {format_duration(retry.total_timeout)}" if retry.total_timeout else ""
    words += f", leases of {format_duration(lease_time)}" if lease_time is not None else ""
    return words + (f", {plural(consumers, 'consumer')}" if consumers is not None else "")
