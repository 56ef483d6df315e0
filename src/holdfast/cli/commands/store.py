"""`holdfast store`: check the store of a stopped server, and salvage a damaged one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from holdfast.cli.support.numbers import plural
from holdfast.cli.support.options import config_file, output_format
from holdfast.cli.support.output import show_note, show_one_line, show_rows
from holdfast.config import load
from holdfast.errors import InvalidArgument

# RocksDB is imported by the commands that need it: the others start quickly.

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="The data directory of a stopped server. [default: the setting node.data_dir]",
)


@click.group()
def store() -> None:
    """Check the store of a stopped server, and salvage a damaged one."""


@store.command()
@data_dir_option
@config_file
@output_format
def check(data_dir: Path | None, config_path: Path | None, output: str) -> None:
    """Read the whole store and compare every checksum. Nothing is changed.

    Exit code 1 if something is damaged. The end of a log that a crash of the machine has torn is no damage: what was
    synced is before it.
    """
    from holdfast.store.directory import Directory  # noqa: PLC0415
    from holdfast.store.rocks_check import check_store  # noqa: PLC0415

    path = _data_dir(data_dir, config_path) / "store"
    if not path.is_dir():
        raise InvalidArgument(field="--data-dir", problem=f"{path.parent} has no store")
    directory = Directory(path)
    try:
        findings = list(check_store(directory))
    finally:
        directory.release()
    if output == "table":
        for finding in findings:
            show_one_line(
                "ok" if finding.ok else "problem",
                "green" if finding.ok else "bold red",
                finding.part,
                finding.found,
                "",
            )
    else:
        show_rows(output, [], [finding._asdict() for finding in findings])
    if not all(finding.ok for finding in findings):
        show_note(
            f"{path} is damaged. Restore it from a backup, or make a new data directory of what can be read: "
            "holdfast store salvage"
        )
        raise click.exceptions.Exit(1)
    show_note("No damage found.")


@store.command()
@data_dir_option
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The new data directory; it must be empty or not exist.",
)
@config_file
@output_format
def salvage(data_dir: Path | None, target: Path, config_path: Path | None, output: str) -> None:
    """Make a new data directory of what can be read in a damaged one, which is not changed.

    If the log is damaged, the new directory has everything up to the damage, and a server can be started on it.
    Messages that were stored after the damage are in files, one for each queue, to be sent again. If a table is
    damaged, all messages that can be read are in files, and there is no store.
    """
    from holdfast.broker.salvage import salvage as salvage_store  # noqa: PLC0415

    done = salvage_store(_data_dir(data_dir, config_path), target, time.time_ns() // 1_000)
    rows: list[dict[str, object]] = [{**each._asdict(), "path": str(each.path)} for each in done.files]
    if output != "table":
        show_rows(output, [], rows)
    elif rows:
        show_rows(output, ["namespace", "queue", "messages", "path"], rows)
    if done.kept is None:
        show_note(f"A table is damaged: there is no store in {target}. Start a server on an empty directory.")
    else:
        show_note(f"{target} has a store with {plural(done.kept, 'message')}: everything up to the damage.")
        if done.settled:
            show_note(f"{plural(done.settled, 'message')} of these had been settled later and will be delivered again.")
    if rows:
        show_note("Send what is in the files again with: holdfast send QUEUE --as message --lines FILE")
    if done.unreadable:
        show_note(f"{plural(done.unreadable, 'place')} could not be read, and what was stored there is lost.")


def _data_dir(given: Path | None, config_path: Path | None) -> Path:
    return given if given is not None else load(config_path, os.environ, {}).node.data_dir
