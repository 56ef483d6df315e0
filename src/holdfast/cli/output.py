"""What commands write: results on standard output, everything said about them on standard error."""

from __future__ import annotations

import sys

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.errors import HoldfastError

_WIDER_THAN_ANY_LINE = 100_000


def show_table(columns: list[str], rows: list[list[str]]) -> None:
    """A table that is never cut: in a pipe or a narrow terminal a line grows past the edge instead."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(file=sys.stdout, width=_WIDER_THAN_ANY_LINE).print(table)


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


def _cell(value: object) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "-" if value is None or value == "" else str(value)


def show_error(error: HoldfastError) -> None:
    """The message, and the stable code to search the documentation for."""
    message = Text.assemble(("error", "bold red"), f": {error} ", (f"[{error.code}]", "dim"))
    Console(file=sys.stderr, soft_wrap=True).print(message)


def show_note(text: str) -> None:
    """A remark for the person at the terminal."""
    Console(file=sys.stderr, soft_wrap=True).print(Text(text))
