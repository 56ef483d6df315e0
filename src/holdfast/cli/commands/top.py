"""`holdfast top`: the queues of a server, live."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast import wire
from holdfast.cli.support.connection import connected
from holdfast.cli.support.numbers import age, count, plural, rate, size
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_rows
from holdfast.errors import QueueNotFound

if TYPE_CHECKING:
    from holdfast.client import SyncClient

COLUMNS = ["queue", "depth", "ready", "leased", "later", "size", "in", "out", "acked", "failed", "dead", "oldest"]
OLD_SECONDS = 300.0  # a message that waits longer than this is coloured


@click.command()
@click.argument("prefix", default="")
@click.option(
    "-i",
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two refreshes.",
)
@click.option("-n", "--limit", type=click.IntRange(1, 200), default=30, show_default=True, help="Queues shown.")
@click.option(
    "--sort",
    type=click.Choice(["depth", "name", "in", "out", "failed", "oldest"]),
    default="depth",
    show_default=True,
    help="Which queues come first.",
)
@click.option("--once", is_flag=True, help="Show it once and end; the default when the output is not a terminal.")
@output_format
def top(prefix: str, interval: float, limit: int, sort: str, once: bool, output: str) -> None:
    """Show the busiest queues whose names start with PREFIX, refreshed until Ctrl-C.

    Rates are per second over the last minute: in is enqueued, out is leased.
    """
    with connected() as client:
        if output != "table":
            show_rows(output, [], [msgspec.to_builtins(each) for each in _fetch_stats(client, prefix, limit, sort)])
            return
        console = Console(file=sys.stdout)
        if once or not console.is_terminal:
            rows = [_row(each) for each in _fetch_stats(client, prefix, limit, sort)]
            show_rows("table", COLUMNS, [dict(zip(COLUMNS, row, strict=True)) for row in rows])
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_screen(client.overview(), _fetch_stats(client, prefix, limit, sort)), refresh=True)
                time.sleep(interval)


def _fetch_stats(client: SyncClient, prefix: str, limit: int, sort: str) -> list[wire.QueueStats]:
    """Stats cost a request for each queue, so of very many only the deepest are fetched."""
    queues = sorted(client.queues(prefix), key=lambda queue: -queue.depth)[: max(limit, 200)]
    found: list[wire.QueueStats] = []
    for queue in queues:
        try:
            found.append(client.stats(queue.name))
        except QueueNotFound:
            continue  # deleted meanwhile
    keys = {
        "depth": lambda stats: (-stats.depth, stats.name),
        "name": lambda stats: (0, stats.name),
        "in": lambda stats: (-stats.rates.get("enqueued", 0.0), stats.name),
        "out": lambda stats: (-stats.rates.get("leased", 0.0), stats.name),
        "failed": lambda stats: (-stats.rates.get("failed", 0.0), stats.name),
        "oldest": lambda stats: (-stats.oldest_message_age_seconds, stats.name),
    }
    return sorted(found, key=keys[sort])[:limit]


def _row(stats: wire.QueueStats) -> list[object]:
    return [
        stats.name,
        count(stats.depth),
        count(stats.ready),
        count(sum(group.leased for group in stats.groups)),
        count(stats.scheduled),
        size(stats.size_bytes),
        *(rate(stats.rates.get(name, 0.0)) for name in ("enqueued", "leased", "acked", "failed")),
        count(sum(sum(group.dead.values()) for group in stats.groups)),
        age(stats.oldest_message_age_seconds),
    ]


def _screen(overview: wire.Overview, queues: list[wire.QueueStats]) -> Group:
    head = Text.assemble(
        ("holdfast ", "bold"),
        f"{overview.version}  node {overview.node}  namespace {overview.namespace}  ",
        ("well" if overview.ok else "UNHEALTHY: see holdfast doctor", "green" if overview.ok else "bold red"),
        f"  {overview.now}\n",
        f"{plural(overview.queues, 'queue')}, {plural(overview.depth, 'message')} ({size(overview.size_bytes)}), ",
        f"{count(overview.leased)} leased, {count(overview.dead)} dead; ",
        ", ".join(f"{name} {rate(value)}" for name, value in overview.rates.items()),
        f"; {plural(overview.consumers, 'consumer')}, {count(overview.waiting)} waiting\n",
    )
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "queue" else "right", no_wrap=True)
    for stats in queues:
        cells = [Text(str(cell)) for cell in _row(stats)]
        if stats.rates.get("failed", 0.0) > 0:
            cells[9].stylize("red")
        if stats.oldest_message_age_seconds > OLD_SECONDS:
            cells[11].stylize("yellow")
        table.add_row(*cells)
    return Group(head, table)
