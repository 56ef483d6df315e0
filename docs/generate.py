"""Writes the reference pages that are made from the code, so that they cannot say anything else than it does.

    python -m docs.generate            write them (`make docs`)
    python -m docs.generate --check    change nothing; exit code 1 and a list if any is stale (a test does this)

To add a page: write a function that returns its text, and add a line to PAGES.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from docs.client_reference import client_reference
from docs.diagrams import state_diagram
from docs.grpc_reference import grpc_api
from docs.http_reference import http_api, metrics
from holdfast.cli.main import main as root_command
from holdfast.config import all_fields
from holdfast.config.fields import sections
from holdfast.core import states
from holdfast.errors import all_errors
from holdfast.pipeline.lake.tables import QUARANTINE, TABLES

DOCS = Path(__file__).parent

HELP_OPTIONS: list[str] = root_command.context_settings["help_option_names"]

CONFIGURATION_INTRO = """\
# Configuration

Settings come from four places, and a later one overrides an earlier: the defaults, a TOML file (`--config`, or the file
that `HOLDFAST_CONFIG` names), environment variables, flags. `holdfast config show --origin` shows where each value is
from. Unknown names and values out of range are refused. Paths are relative to the directory the server was started in,
unless said otherwise.

Durations are `250ms`, `5s`, `2m`, `1h`, `7d` or a number of seconds; sizes are bytes or `64KiB`, `64MiB`, `1GiB`.

```toml
[node]
data_dir = "/var/lib/holdfast"

[limits]
max_wait = "5m"
```"""


def configuration() -> str:
    """Every setting, from `holdfast.config.settings`."""
    lines = [CONFIGURATION_INTRO]
    for section, owner in sections().items():
        lines += ["", f"## {section}", "", inspect.getdoc(owner) or ""]
        for field in all_fields():
            if field.section != section:
                continue
            facts = [
                f"default `{field.kind.show(field.default)}`",
                f"allowed: {field.kind.allowed()}",
                f"`{field.variable}`",
            ]
            if field.kind.flag:
                facts.append(f"`{field.kind.flag}`")
            lines += ["", f"### `{field.dotted}`", "", " · ".join(facts), "", field.doc]
    return "\n".join(lines) + "\n"


def command_line() -> str:
    """Every command with its help, from `holdfast.cli`."""
    lines = ["# Command line", "", *_indented_docstring("holdfast.cli.main")]
    for path, command in _commands("holdfast", root_command):
        with click.Context(command, info_name=path, terminal_width=100, help_option_names=HELP_OPTIONS) as context:
            lines += ["", f"## `{path}`", "", "```text", command.get_help(context), "```"]
    return "\n".join(lines) + "\n"


def errors() -> str:
    """Every error, from `holdfast.errors`."""
    lines = [
        "# Errors",
        "",
        "Every error has a stable code, the same on every front. *Retry* says whether the same call may succeed later",
        "without a change. Words in braces are replaced when the error occurs.",
        "",
        "| code | retry | HTTP | MQTT | gRPC | message |",
        "|---|---|---|---|---|---|",
    ]
    for kind in sorted(all_errors(), key=lambda kind: kind.code):
        message = " ".join((inspect.getdoc(kind) or "").split()).replace("!r}", "}").replace("|", "\\|")
        retry = "yes" if kind.retryable else "no"
        lines.append(f"| `{kind.code}` | {retry} | {kind.http} | 0x{kind.mqtt:02X} | {kind.grpc} | {message} |")
    return "\n".join(lines) + "\n"


def life_of_a_delivery() -> str:
    """The states of a delivery and what leads from one to another, from `holdfast.core.states`."""
    title, _, prose = (inspect.getdoc(states) or "").partition("\n\n")
    lines = [f"# {title.removesuffix(', as one table.')}", "", prose, ""]
    lines += ["```mermaid", state_diagram(states.TRANSITIONS), "```", ""]
    lines += ["| in | on | to | in the journal |", "|---|---|---|---|"]
    for row in states.TRANSITIONS:
        journalled = f"`{row.journal}`" if row.journal else "not journalled: it follows from the time"
        lines.append(f"| {row.state} | {row.event} | {row.to} | {journalled} |")
    lines += ["", "Reasons in the journal: " + ", ".join(f"`{reason}`" for reason in states.Reason) + "."]
    return "\n".join(lines) + "\n"


def lake() -> str:
    """Every table of the lake and its columns, from `holdfast.pipeline.lake.tables`."""
    lines = [
        "# The lake",
        "",
        "`holdfast pipeline build` makes these Delta tables in `LAKE/tables` from the journal's segments.",
    ]
    for table in (*TABLES.values(), QUARANTINE):
        lines += ["", f"## `{table.name}`", "", table.doc, "", "| column | type | meaning |", "|---|---|---|"]
        lines += [f"| `{column.name}` | {column.kind} | {column.doc} |" for column in table.columns]
    return "\n".join(lines) + "\n"


def dbt_sources() -> str:
    """The lake's tables as sources of dbt, in the schema that the variable `holdfast_schema` names."""
    schema = "{{ var('holdfast_schema', 'holdfast') }}"
    lines = ["version: 2", "", "sources:", "  - name: holdfast", f'    schema: "{schema}"']
    lines += ["    description: What happened to every message, as Delta tables", "    tables:"]
    for table in TABLES.values():
        lines += [f"      - name: {table.name}", f"        description: {json.dumps(table.doc)}", "        columns:"]
        for column in table.columns:
            lines += [f"          - name: {column.name}", f"            description: {json.dumps(column.doc)}"]
            lines += [f"            data_type: {json.dumps(column.kind)}"]
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "reference/configuration.md": configuration,
    "reference/cli.md": command_line,
    "reference/client.md": client_reference,
    "reference/errors.md": errors,
    "reference/lake.md": lake,
    "reference/http.md": http_api,
    "reference/grpc.md": grpc_api,
    "reference/metrics.md": metrics,
    "explanation/life-of-a-delivery.md": life_of_a_delivery,
    "../examples/dbt/models/holdfast.yml": dbt_sources,
}


def render(page: str) -> str:
    """A page as it should be, with the note that keeps people from editing it by hand."""
    make = PAGES[page]
    source = f"{make.__name__} in docs/{Path(inspect.getfile(make)).name}"
    note = f"Made from the code by `make docs` ({source}). Change it there."
    return (f"# {note}\n\n" if page.endswith(".yml") else f"<!-- {note} -->\n\n") + make()


def stale() -> list[str]:
    """Pages that differ from what the code says, or are missing."""
    return [page for page in PAGES if not (DOCS / page).exists() or (DOCS / page).read_text() != render(page)]


def _commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, child in sorted(command.commands.items()):
            yield from _commands(f"{path} {name}", child)


def _indented_docstring(module: str) -> list[str]:
    """A module's docstring, its indented parts as a block of their own."""
    lines: list[str] = []
    inside = False
    for line in (inspect.getdoc(sys.modules[module]) or "").splitlines():
        indented = line.startswith("    ") or (inside and not line)
        if indented != inside:
            lines.append("```text" if indented else "```")
            inside = indented
        lines.append(line.removeprefix("    "))
    return [*lines, "```"] if inside else lines


def main() -> int:
    """Write or check all pages."""
    parser = argparse.ArgumentParser(description="Write the reference pages that are made from the code.")
    parser.add_argument("--check", action="store_true", help="change nothing, fail if a page is stale")
    checking = parser.parse_args().check
    pages = stale()
    for page in pages:
        if checking:
            print(f"docs/{page} is stale: run `make docs`", file=sys.stderr)
        else:
            (DOCS / page).parent.mkdir(parents=True, exist_ok=True)
            (DOCS / page).write_text(render(page))
            print(f"wrote docs/{page}")
    return 1 if checking and pages else 0


if __name__ == "__main__":
    sys.exit(main())
