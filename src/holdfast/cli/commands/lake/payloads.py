"""`holdfast pipeline drift` and `copy`: how payloads change over time, and tables for others, with fields hidden."""

from __future__ import annotations

import shutil
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
import msgspec

from holdfast.cli.support.numbers import count
from holdfast.cli.support.options import output_format
from holdfast.cli.support.output import show_json, show_note, show_rows, show_table
from holdfast.cli.support.pipeline_job import instant, running, show_time, spark_options
from holdfast.errors import InvalidArgument


@click.command()
@click.option("--queue", default="", help="Only this queue.")
@click.option("--since", help="Messages enqueued from this instant on, or so long ago, as 30d. [default: all]")
@click.option("--all", "everything", is_flag=True, help="Also fields that have not changed.")
@spark_options
@output_format
def drift(queue: str, since: str | None, everything: bool, output: str, **job_options: Any) -> None:
    """Show which fields payloads have, of which types, since when and until when: what is new, gone, or of two types.

    The queues' journals must have payloads.
    """
    first = instant("--since", since)
    with running("drift", job_options) as job:
        from holdfast.pipeline.jobs import schema_drift  # noqa: PLC0415 - Spark

        job.lake.require()
        files = [file for file in job.lake.events.files() if file.may_hold("at", first, None)]
        events = job.lake.events.read(job.spark, files)
        with job.stages.stage("count shapes"):
            fields = schema_drift.drift(events, queue, first)
            job.stages.explain("shapes", schema_drift.payload_shapes(events))
        job.stages.count_read("events", sum(file.rows for file in files))
    fields = fields if everything else [one for one in fields if one.changes]
    if output != "table":
        rows: list[dict[str, object]] = [msgspec.to_builtins(one, builtin_types=(datetime,)) for one in fields]
        show_rows(output, [], rows)
        return
    if not fields:
        show_note("No field has changed.")
        return
    show_table(
        ["queue", "field", "type", "messages", "of", "first seen", "last seen", "changes"],
        [
            [
                one.queue,
                one.field,
                one.type,
                count(one.messages),
                count(one.of),
                show_time(one.first_seen),
                show_time(one.last_seen),
                " ".join(one.changes) or "-",
            ]
            for one in fields
        ],
    )


@click.command()
@click.argument("table")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--mask",
    "policy",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A TOML file that says which fields are hidden, and how.",
)
@spark_options
@output_format
def copy(table: str, directory: Path, policy: Path | None, output: str, **job_options: Any) -> None:
    """Copy TABLE of the lake as Parquet files to DIRECTORY, with fields hidden as a policy says: for people who may
    read what happened, but not to whom."""
    rules = _policy(policy) if policy is not None else None
    if directory.exists():
        raise click.UsageError(f"{directory} is there already. Name a new directory.")
    with running("copy", job_options) as job:
        from holdfast.pipeline.jobs.masking import check_rules, masked  # noqa: PLC0415 - Spark
        from holdfast.pipeline.lake.delta import spark_path  # noqa: PLC0415
        from holdfast.pipeline.lake.tables import TABLES  # noqa: PLC0415

        if table not in TABLES:
            raise InvalidArgument(field="TABLE", problem=f"is one of {', '.join(TABLES)}, not {table!r}")
        job.lake.require()
        rows = job.lake.read(job.spark, table)
        if rules is not None:
            try:
                check_rules(rules)
            except ValueError as error:
                raise InvalidArgument(field="--mask", problem=f"cannot be followed: {error}") from error
            rows = masked(rows, rules)
        partial = directory.with_name(f".{directory.name}-{uuid4().hex}")
        with job.stages.stage("copy"):
            try:
                rows.write.parquet(spark_path(partial))
                partial.rename(directory)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        number = sum(file.rows for file in getattr(job.lake, TABLES[table].name).files())
        job.stages.count_written(table, number)
    show_note(f"Copied {number:,} rows of {table} to {directory}.")
    if output != "table":
        show_json({"table": table, "rows": number, "directory": str(directory), **job.stages.summary()})


def _policy(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidArgument(field="--mask", problem=f"cannot be read from {path}: {error}") from error
