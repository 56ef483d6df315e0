"""`holdfast backup` and `holdfast restore`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click
from click.core import ParameterSource

from holdfast.cli.support.connection import settings
from holdfast.cli.support.numbers import plural
from holdfast.cli.support.options import config_file, output_format
from holdfast.cli.support.output import progress_bar, quiet_logs, show_note, show_one, show_rows
from holdfast.config import load
from holdfast.units import format_size

if TYPE_CHECKING:
    from holdfast.backup.fetch import Fetched
    from holdfast.backup.manifest import BackupManifest, Description
    from holdfast.config import Config
    from holdfast.store.contract import Store

# What backups need is imported by the commands: the others start quickly.

DIRECTORY = click.Path(path_type=Path, file_okay=False)
MIB = 1 << 20

quiet_option = click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
backup_option = click.option("--backup", "name", default="", help="Which backup. [default: the newest]")


class _Group(click.Group):
    """`holdfast backup DEST` is `holdfast backup create DEST`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["create", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Group)
def backup() -> None:
    """Back up a server, and look after backups. `holdfast backup DEST` is short for `holdfast backup create DEST`."""


@backup.command()
@click.argument("dest", type=DIRECTORY)
@click.option(
    "--data-dir", type=DIRECTORY, help="Of a server that is stopped. [default: back up the running one at --url]"
)
@click.option("--full", is_flag=True, help="Have everything sent, also what earlier backups have.")
@click.option("--no-lake", is_flag=True, help="Leave the journal's segments out.")
@quiet_option
@config_file
@output_format
def create(
    dest: Path, data_dir: Path | None, full: bool, no_lake: bool, quiet: bool, config_path: Path | None, output: str
) -> None:
    """Back up a server into the directory DEST, while it works.

    The backup is of one moment: the store, and the journal's segments up to it. DEST holds many backups, and files that
    have not changed since the last one are neither sent nor kept again. Needs a token with the right `node`; with
    --data-dir the files of a stopped server.
    """
    from holdfast.backup import fetch  # noqa: PLC0415
    from holdfast.backup.repository import Repository  # noqa: PLC0415

    repository = Repository.create(dest)
    with _progress("Backing up", quiet) as progress:
        if data_dir is not None or _is_given("config_path"):
            config = _config(data_dir, config_path)
            done = _of_stopped(repository, config, progress, full=full, lake=not no_lake)
        else:
            wanted = settings()
            done = fetch.fetch(
                wanted.url,
                repository,
                full=full,
                lake=not no_lake,
                progress=progress,
                token=wanted.secret(),
                login=wanted.login(),
                tls=wanted.tls(),
            )
    row = {**_row(done.manifest), "received_bytes": done.received_bytes, "shared_bytes": done.shared_bytes}
    show_one(output, row)
    if output == "table":
        if done.manifest.missing_segments:
            missing = sum(last - first + 1 for first, last in done.manifest.missing_segments)
            show_note(f"{plural(missing, 'segment')} of the lake were not there any more, and are in no backup.")
        show_note(f"Restore it with: holdfast restore {dest} --data-dir DIRECTORY")


def _of_stopped(
    repository: Any, config: Config, progress: Callable[[Description, int], None], *, full: bool, lake: bool
) -> Fetched:
    from holdfast.backup import fetch  # noqa: PLC0415
    from holdfast.backup.source import Lake, stream  # noqa: PLC0415
    from holdfast.broker.node import wall_clock  # noqa: PLC0415

    known = fetch.known_of(repository, full=full)
    scratch = config.node.data_dir / "backups-under-way" / uuid4().hex
    with closing(_open(config, config.node.data_dir / "store")) as store:
        parts = stream(
            store,
            Lake(config.lake_dir / "journal", config.node.node_id),
            scratch,
            fetch.request_of(known, lake=lake),
            wall_clock,
        )
        return fetch.take_stopped(repository, parts, known, progress)


def _open(config: Config, path: Path) -> Store:
    from holdfast.store import Remote, open_store  # noqa: PLC0415

    remote = Remote(config.store.url.reveal(), config.node.node_id).patient()
    return open_store(config.store.kind, path, remote=remote)


def _open_unused(config: Config, path: Path) -> Store:
    """`_open`, unless a server works with it: a directory is locked then, of a database one has to ask."""
    from holdfast.cli.support.stores import refuse_in_use  # noqa: PLC0415

    if config.store.kind == "postgres":
        refuse_in_use(config.store.url.reveal(), config.node.node_id)
    return _open(config, path)


def _is_given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _config(data_dir: Path | None, config_path: Path | None, **flags: object) -> Config:
    if data_dir is not None:
        flags["node.data_dir"] = data_dir
    return load(config_path, os.environ, {name: value for name, value in flags.items() if value is not None})


@contextmanager
def _progress(what: str, quiet: bool) -> Iterator[Callable[[Any, int], None]]:
    """A bar in MiB, which begins when it is known how many they are."""
    with progress_bar(f"{what}, MiB", None, hidden=quiet) as advance:
        yield lambda _description, size_bytes: advance(size_bytes // MIB)


def _row(manifest: BackupManifest) -> dict[str, object]:
    description = manifest.description
    return {
        "backup": manifest.id,
        "taken_at": description.taken_at,
        "node": description.node,
        "store": description.store,
        "last_lsn": description.position.last_lsn,
        "size_bytes": sum(file.size_bytes for file in manifest.files),
        "lake": manifest.lake,
        "version": description.version,
    }


@backup.command("list")
@click.argument("dest", type=DIRECTORY)
@output_format
def list_backups(dest: Path, output: str) -> None:
    """List the backups in DEST, the oldest first."""
    from holdfast.backup.repository import Repository  # noqa: PLC0415

    repository = Repository.open(dest)
    rows = [_row(repository.manifest(name)) for name in repository.ids()]
    show_rows(output, ["backup", "taken_at", "node", "store", "last_lsn", "size_bytes", "lake"], rows)


@backup.command()
@click.argument("dest", type=DIRECTORY)
@backup_option
@quiet_option
@output_format
def verify(dest: Path, name: str, quiet: bool, output: str) -> None:
    """Read every file of the backups in DEST and compare its hash, and the lake's chain of hashes. Nothing is changed.

    Without --backup all of them are verified. Exit code 1 if something is damaged.
    """
    from holdfast.backup.repository import Flawed, Repository  # noqa: PLC0415
    from holdfast.errors import BackupDamaged  # noqa: PLC0415

    repository = Repository.open(dest)
    checked: dict[str, str] = {}
    rows: list[dict[str, object]] = []
    read_bytes = 0
    with _progress("Verifying", quiet) as progress:
        for each in [name] if name else repository.ids():
            flaws: list[Flawed] = []
            try:
                for found in repository.verify(repository.manifest(each), checked):
                    if isinstance(found, Flawed):
                        flaws.append(found)
                    else:
                        read_bytes += found
                        progress(None, read_bytes)
            except BackupDamaged as error:
                flaws.append(Flawed("manifest", str(error)))
            rows += [{"backup": each, "ok": False, **flaw._asdict()} for flaw in flaws]
            if not flaws:
                rows.append({"backup": each, "ok": True, "path": "", "problem": ""})
    show_rows(output, ["backup", "ok", "path", "problem"], rows)
    if not all(row["ok"] for row in rows):
        show_note("What is damaged cannot be restored. Make a new backup with --full, which relies on no earlier one.")
        raise click.exceptions.Exit(1)
    show_note(f"{plural(len(rows), 'backup')} whole, {format_size(read_bytes)} read.")


@backup.command()
@click.argument("dest", type=DIRECTORY)
@click.option("--keep", type=click.IntRange(1), required=True, help="How many of the newest backups stay.")
@output_format
def prune(dest: Path, keep: int, output: str) -> None:
    """Delete all but the newest backups in DEST, and the files that only those had. No backup may be made meanwhile."""
    from holdfast.backup.repository import Repository  # noqa: PLC0415

    dropped, freed = Repository.open(dest).prune(keep)
    show_one(output, {"deleted": dropped, "freed_bytes": freed})


@click.command()
@click.argument("source", type=DIRECTORY)
@backup_option
@click.option("--data-dir", type=DIRECTORY, help="Where to restore to. [default: the setting node.data_dir]")
@click.option("--node-id", type=click.IntRange(0, 1023), help="[default: the setting node.node_id]")
@click.option("--no-lake", is_flag=True, help="Do not restore the journal's segments.")
@click.option("--replace", is_flag=True, help="Replace what is there: files are moved aside, tables emptied.")
@quiet_option
@config_file
@output_format
def restore(
    source: Path,
    name: str,
    data_dir: Path | None,
    node_id: int | None,
    no_lake: bool,
    replace: bool,
    quiet: bool,
    config_path: Path | None,
    output: str,
) -> None:
    """Restore a backup from the directory SOURCE, for a server that is stopped.

    Every file is compared with its hash. Where store and lake go is configured as for the server. A lake that survived
    stays, with what it has of the time after the backup; then `holdfast pipeline reconcile` names every message that
    the restored server lacks, or has again. Rows of the journal from now on have numbers that were never used.
    """
    from holdfast.backup.repository import Repository  # noqa: PLC0415
    from holdfast.broker.node import wall_clock  # noqa: PLC0415
    from holdfast.broker.restoring import Restoring  # noqa: PLC0415

    repository = Repository.open(source)
    manifest = repository.manifest(name)
    config = _config(data_dir, config_path, **{"node.node_id": node_id})
    with _progress("Restoring", quiet) as progress, quiet_logs():
        done = Restoring(
            repository,
            manifest,
            config,
            lambda path: _open_unused(config, path),
            replace=replace,
            lake=not no_lake,
            now=wall_clock(),
            advance=lambda size_bytes: progress(None, size_bytes),
        ).run()
    show_one(
        output,
        {
            "backup": done.backup,
            "data_dir": str(config.node.data_dir),
            "last_lsn": done.last_lsn,
            "lake_lsn": done.lake_lsn,
            "next_lsn": done.next_lsn,
            "replaced": done.replaced,
        },
    )
    if output != "table":
        return
    for path in done.replaced:
        show_note(f"What was there is in {path} now. Delete it when you are sure.")
    if done.lake_lsn > done.last_lsn:
        rows = done.lake_lsn - done.last_lsn
        show_note(
            f"The lake has {plural(rows, 'row')} of after the backup. Start the server; then "
            "holdfast pipeline reconcile --live names the messages that it lacks or has again."
        )
