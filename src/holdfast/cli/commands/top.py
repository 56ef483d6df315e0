"""`holdfast top`: the queues of a server, live."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
NARROW = ["queue", "depth", "leased", "in", "out", "failed", "dead", "oldest"]
"""What a terminal of 80 columns has room for, beside a name of 24 characters."""
WIDE_COLUMNS = 120
SORTS = {"d": "depth", "n": "name", "i": "in", "o": "out", "f": "failed", "a": "oldest"}
"""The keys that sort, beside q, which ends."""
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
    type=click.Choice(list(SORTS.values())),
    default="depth",
    show_default=True,
    help="Which queues come first.",
)
@click.option("--once", is_flag=True, help="Show it once and end; the default when the output is not a terminal.")
@output_format
def top(prefix: str, interval: float, limit: int, sort: str, once: bool, output: str) -> None:
    """Show the busiest queues whose names start with PREFIX, refreshed until `q`.

    Rates are per second over the last minute: in is enqueued, out is leased. The keys d, n, i, o, f and a sort by
    depth, name, in, out, failed and the age of the oldest message.
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
        with _keys() as key_within, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_screen(client.overview(), _fetch_stats(client, prefix, limit, sort), sort, console.width))
                live.refresh()
                key = key_within(interval)
                if key == "q":
                    return
                sort = SORTS.get(key, sort)


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds for a key and returns it, or nothing."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)

    def key_within(seconds: float) -> str:
        ready, _, _ = select.select([terminal], [], [], seconds)
        return os.read(terminal, 1).decode(errors="replace").lower() if ready else ""

    try:
        yield key_within
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


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


def _screen(overview: wire.Overview, queues: list[wire.QueueStats], sort: str, width: int) -> Group:
    health = ("well", "green") if overview.ok else ("UNHEALTHY: see holdfast doctor", "bold red")
    rates = ", ".join(f"{name} {rate(value)}" for name, value in overview.rates.items())
    head = Text.assemble(
        ("holdfast ", "bold"),
        f"{overview.version}  node {overview.node}  namespace {overview.namespace}  ",
        health,
        f"\n{plural(overview.queues, 'queue')}, {plural(overview.depth, 'message')} ({size(overview.size_bytes)}), ",
        f"{count(overview.leased)} leased, {count(overview.dead)} dead, {plural(overview.consumers, 'consumer')}\n",
        f"{rates}\n",
        (f"{overview.now[:19]}Z  sorted by {sort}  keys: q quit, sort by d n i o f a\n", "dim"),
        overflow="ellipsis",
        no_wrap=True,
    )
    columns = COLUMNS if width >= WIDE_COLUMNS else NARROW
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for column in columns:
        if column == "queue":
            table.add_column(column, no_wrap=True, overflow="ellipsis", ratio=1, min_width=12)
        else:
            table.add_column(column, justify="right", no_wrap=True)
    for stats in queues:
        cells = {name: Text(str(cell)) for name, cell in zip(COLUMNS, _row(stats), strict=True)}
        if stats.paused:
            cells["queue"].append(" (paused)", "yellow")
        if stats.rates.get("failed", 0.0) > 0:
            cells["failed"].stylize("red")
        if stats.oldest_message_age_seconds > OLD_SECONDS:
            cells["oldest"].stylize("yellow")
        table.add_row(*(cells[name] for name in columns))
    return Group(head, table)
