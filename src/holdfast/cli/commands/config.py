"""`holdfast config`: show and check the configuration of a server."""

from __future__ import annotations

import os
from pathlib import Path

import click

from holdfast.cli.support.extras import missing
from holdfast.cli.support.options import config_file, given, output_format, setting_flags
from holdfast.cli.support.output import show_json, show_note, show_rows, show_table
from holdfast.config import Config, Field, all_fields, load
from holdfast.config.kinds import Duration, Rates, Secret, Size


@click.group()
def config() -> None:
    """Show and check a server's configuration."""


@config.command()
@click.option("--origin", is_flag=True, help="Also show where each value comes from.")
@output_format
@setting_flags
@config_file
def show(origin: bool, output: str, config_path: Path | None, **flags: object) -> None:
    """Show every setting as `holdfast serve` would see it with the same file, environment and flags."""
    loaded = load(config_path, os.environ, given(flags))
    if output == "json":
        show_json(_as_json(loaded, origin))
        return
    if output == "jsonl":
        document = _as_json(loaded, origin=True)
        for field in all_fields():
            described = document[field.section][field.name]
            assert isinstance(described, dict)
            show_rows(output, [], [{"setting": field.dotted, **described}])
        return
    rows = [
        [field.dotted, field.kind.show(_value(loaded, field)), loaded.origins[field.dotted]] for field in all_fields()
    ]
    columns = ["setting", "value", "origin"]
    kept = slice(None) if origin else slice(2)
    show_table(columns[kept], [row[kept] for row in rows])


@config.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@config_file
def check(file: Path | None, config_path: Path | None) -> None:
    """Check FILE by itself, or without FILE the configuration as `holdfast serve` would find it now.

    With --config it is the configuration as `holdfast serve --config` would find it: the environment counts too.

    Says what is wrong and ends with exit code 2, or says how many settings differ from their defaults. Certificates
    are checked too, where the server's libraries are installed, and unless it is FILE by itself also whether the
    server may listen on its addresses.
    """
    if file is not None and config_path is not None:
        raise click.UsageError("Give the file once: as FILE, or with --config.")
    loaded = load(file or config_path, {} if file else os.environ)
    if not missing():
        from holdfast.auth import exposure, tls  # noqa: PLC0415 - they need them

        tls.server_context(loaded.tls)
        if file is None:  # otherwise the environment may have the credentials that the file lacks
            exposure.check_fronts(loaded)
    changed = sum(origin != "default" for origin in loaded.origins.values())
    show_note(
        f"The configuration is good: {changed} settings given, {len(loaded.origins) - changed} at their defaults."
    )


def _value(loaded: Config, field: Field) -> object:
    value: object = getattr(getattr(loaded, field.section), field.name)
    return value


def _as_json(loaded: Config, origin: bool) -> dict[str, dict[str, object]]:
    """By section. Durations and sizes are text with a unit, as in a file. Secrets are hidden."""
    document: dict[str, dict[str, object]] = {}
    for field in all_fields():
        value = _value(loaded, field)
        plain = field.kind.show(value) if isinstance(field.kind, Duration | Size | Secret | Rates) else value
        entry = {"value": plain, "origin": loaded.origins[field.dotted]} if origin else plain
        document.setdefault(field.section, {})[field.name] = entry
    return document
