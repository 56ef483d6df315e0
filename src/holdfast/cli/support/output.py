"""The output of commands: results on standard output, messages about them on standard error."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import CRITICAL

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from holdfast.errors import HoldfastError
from holdfast.escapes import escape_controls

_WIDER_THAN_ANY_LINE = 100_000
_NUMBER = re.compile(r"-|[\d,.]+( ?(ms|s|B|[KMGT]iB|/s))?|\d+[dhm] \d+[hms]")
"""Cells that are right-aligned in a table."""


def show_table(columns: list[str], rows: list[list[str]]) -> None:
    """A table whose cells are never cut: in a pipe or a narrow terminal, lines get longer than the width."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numbers = rows and all(_NUMBER.fullmatch(row[index]) for row in rows)
        table.add_column(column, no_wrap=True, justify="right" if numbers else "left")
    for row in rows:
        table.add_row(*(Text(escape_controls(cell)) for cell in row))
    _print(table)


def _print(table: Table) -> None:
    """Without the blanks that pad the last column."""
    console = Console(file=sys.stdout, width=_WIDER_THAN_ANY_LINE)
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()), color=True)


def show_json(value: object) -> None:
    """Indented JSON."""
    click.echo(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())


def show_rows(output: str, columns: list[str], rows: list[dict[str, object]]) -> None:
    """Rows as a table, as one JSON list, or as one JSON object a line; lists in a cell are joined for people."""
    match output:
        case "json":
            show_json(rows)
        case "jsonl":
            for row in rows:
                click.echo(msgspec.json.encode(row, enc_hook=str).decode())
        case _:
            show_table(columns, [[_cell(row.get(column)) for column in columns] for row in rows])


def show_one(output: str, fields: dict[str, object]) -> None:
    """One object: its fields line by line for people, JSON for programs."""
    match output:
        case "json":
            show_json(fields)
        case "jsonl":
            show_rows(output, [], [fields])
        case _:
            table = Table(box=None, pad_edge=False, show_header=False)
            table.add_column(style="bold", no_wrap=True)
            table.add_column(no_wrap=True)
            for name, value in fields.items():
                table.add_row(Text(name), Text(escape_controls(_cell(value))))
            _print(table)


def _cell(value: object) -> str:
    """A value for people: lists of texts are joined, and what has parts is JSON."""
    if isinstance(value, list | tuple) and all(isinstance(part, str | int | float) for part in value):
        return " ".join(map(str, value)) or "-"
    if isinstance(value, bool | bytes | dict | list | tuple):
        text = msgspec.json.encode(value, enc_hook=str).decode()
        return text.strip('"') if isinstance(value, bytes) else text
    return "-" if value is None or value == "" else str(value)


def show_one_line(word: str, style: str, about: str, text: str, advice: str) -> None:
    """A finding: a coloured word, what it is about, what was found, and below it what to do."""
    console = Console(file=sys.stdout, soft_wrap=True)
    console.print(Text.assemble((f"{word:<8}", style), " ", (f"{about:<16}", "bold"), " ", escape_controls(text)))
    if advice:
        console.print(Text(f"{'':<26}{advice}", style="dim" if word == "ok" else ""))


def show_error(error: HoldfastError) -> None:
    """The message, and the stable code to search the documentation for."""
    message = Text.assemble(("error", "bold red"), f": {escape_controls(str(error))} ", (f"[{error.code}]", "dim"))
    Console(file=sys.stderr, soft_wrap=True).print(message)


def show_note(text: str) -> None:
    """A remark for the person at the terminal."""
    Console(file=sys.stderr, soft_wrap=True).print(Text(escape_controls(text)))


@contextmanager
def progress_bar(what: str, total: int | None, *, hidden: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, if that is a terminal. Yields a function that takes how many are done."""
    console = Console(file=sys.stderr)
    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(),
    ]
    if hidden or not console.is_terminal:
        yield lambda _done: None
        return
    started = time.monotonic()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total, speed="")

        def advance(done: int) -> None:
            elapsed = time.monotonic() - started
            progress.update(task, completed=done, speed=f"{done / elapsed:,.0f}/s" if elapsed > 0.5 else "")

        yield advance


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Without the log lines of the server's code, for a command that says itself what matters."""
    import structlog  # noqa: PLC0415 - most commands do without it

    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
