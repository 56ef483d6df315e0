"""`holdfast store`: check the store of a stopped server, salvage a damaged one, and copy one into another."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.support.numbers import plural
from holdfast.cli.support.options import config_file, output_format
from holdfast.cli.support.output import progress_bar, quiet_logs, show_note, show_one, show_one_line, show_rows
from holdfast.config import load
from holdfast.errors import InvalidArgument

if TYPE_CHECKING:
    from holdfast.store.contract import Store

# RocksDB is imported by the commands that need it: the others start quickly.

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="The data directory of a stopped server. [default: the setting node.data_dir]",
)


@click.group()
def store() -> None:
    """Check the store of a stopped server, salvage a damaged one, and copy one into another."""


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


@store.command("copy")
@click.option("--from", "source", required=True, help="rocks:DATA_DIR or postgresql://user:password@host/database")
@click.option("--to", "target", required=True, help="The same; the store there is made, or must have no records.")
@click.option(
    "--node-id", type=click.IntRange(0, 1023), default=0, show_default=True, help="Both servers' node.node_id."
)
@click.option("--replace", is_flag=True, help="Delete what the store of --to has.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@output_format
def copy_store(source: str, target: str, node_id: int, replace: bool, quiet: bool, output: str) -> None:
    """Copy the store of a stopped server into one of any kind: all records, as they are at one moment.

    Queues, messages with their ids, leases, groups, sessions and what of the journal is not in the lake yet. The source
    is not changed, but that nobody who had it open before can write to it. One in an older format is read as it is.
    The journal's lake is not copied: let journal.directory of the new server name it, or copy the directory.
    """
    from holdfast.broker.store_copy import copy_records  # noqa: PLC0415
    from holdfast.cli.support.stores import open_named, refuse_same  # noqa: PLC0415

    refuse_same(source, target)
    with (
        quiet_logs(),
        progress_bar("Copying records", None, hidden=quiet) as advance,
        readable(source, node_id) as opened,
        closing(open_named(target, node_id, "--to", make=True)) as filled,
    ):
        copied = copy_records(opened, filled, replace=replace, advance=advance)
    show_one(output, {"records": copied.records, "size_bytes": copied.size_bytes, "queues": copied.queues})
    if output == "table":
        show_note("Start a server on it; the old one must not be started again, or both would assign the same ids.")


@contextmanager
def readable(source: str, node_id: int) -> Iterator[Store]:
    """The store to copy from. A directory is linked and opened elsewhere, so that it keeps its format."""
    from holdfast.cli.support.stores import open_named  # noqa: PLC0415

    kind, _, rest = source.partition(":")
    if kind != "rocks" or not rest:
        with closing(open_named(source, node_id, "--from", make=False)) as opened:
            yield opened
        return
    from holdfast.store.directory import Directory  # noqa: PLC0415
    from holdfast.store.rocks_salvage import copy_files  # noqa: PLC0415

    path = Path(rest)
    if not (path / "store" / "FORMAT").is_file():
        raise InvalidArgument(field="--from", problem=f"names {rest}, which has no store")
    directory = Directory(path / "store")
    scratch = path / f"copying-{os.getpid()}"
    try:
        copy_files(directory, scratch / "store")
        with closing(open_named(f"rocks:{scratch}", node_id, "--from", make=False)) as opened:
            yield opened
    finally:
        directory.release()
        shutil.rmtree(scratch, ignore_errors=True)


def _data_dir(given: Path | None, config_path: Path | None) -> Path:
    return given if given is not None else load(config_path, os.environ, {}).node.data_dir
