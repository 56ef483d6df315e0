"""`holdfast audit`: check that the audit log is as it was written."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.support.numbers import plural
from holdfast.cli.support.options import config_file, output_format
from holdfast.cli.support.output import show_one_line, show_rows
from holdfast.config import load
from holdfast.errors import InvalidArgument


@click.group()
def audit() -> None:
    """Check the audit log."""


@audit.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="The data directory of the server, which may run. [default: the setting node.data_dir]",
)
@click.option("--last", metavar="HASH", help="The hash that the log must contain, as noted or shipped before.")
@config_file
@output_format
def verify(data_dir: Path | None, last: str | None, config_path: Path | None, output: str) -> None:
    """Compare every hash of the log's chain: no entry was changed, removed or put in.

    Prints the number and the hash of the last entry. Note them elsewhere and give the hash to --last the next time:
    that shows that the end of the log was not cut off. Exit code 1 if something is not as it was written.
    """
    from holdfast.auth.audit import numbered_files  # noqa: PLC0415
    from holdfast.auth.audit_chain import contains, verify  # noqa: PLC0415

    config = load(config_path)
    path = (data_dir or config.node.data_dir) / config.audit.file
    files = numbered_files(path)[::-1]
    if not files:
        raise InvalidArgument(field="--data-dir", problem=f"there is no audit log at {path}")
    result = verify(files)
    findings = [f"{finding.file}:{finding.line} {finding.problem}" for finding in result.findings]
    if last is not None and not contains(files, last):
        findings.append(f"no entry has the hash {last}: the end of the log was cut off, or it is another log")
    if output == "table":
        for finding in findings:
            show_one_line("problem", "bold red", "audit log", finding, "")
        if not findings:
            torn = f", {plural(result.torn, 'line')} torn by a crash" if result.torn else ""
            found = f"{plural(result.entries, 'line')}, each as it was written{torn}"
            show_one_line("ok", "green", "audit log", found, "")
        show_one_line("last", "cyan", f"entry {result.last.number}", result.last.chain, "")
    else:
        row = {
            "ok": not findings,
            "entries": result.entries,
            "first": result.first.number,
            "last": result.last.number,
            "chain": result.last.chain,
            "torn": result.torn,
            "problems": findings,
        }
        show_rows(output, [], [row])
    if findings:
        raise click.exceptions.Exit(1)
