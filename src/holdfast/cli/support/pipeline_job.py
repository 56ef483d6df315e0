"""Shared by the commands of `holdfast pipeline`: options, Spark, progress, and the summary at the end.

Spark is imported only when a command runs that needs it; the rest of Holdfast works without it.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast.cli.support.connection import URL, connected, settings
from holdfast.cli.support.numbers import size
from holdfast.cli.support.output import show_note
from holdfast.errors import InvalidArgument, ServerUnreachable, SparkMissing
from holdfast.files import local_path
from holdfast.units import SECOND, parse_duration, parse_instant, parse_size

if TYPE_CHECKING:
    from holdfast.pipeline.lake.lake import Lake
    from holdfast.pipeline.spark.stages import Stages

Command = TypeVar("Command", bound=Callable[..., object])

EXIT_BROKEN = 1
DEFAULT_LAKE = Path("data/lake")


class LakePath(click.Path):
    """A lake's directory. A URL of object storage is refused; `click.Path` would make a directory of its name."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        try:
            return super().convert(local_path(os.fspath(value)), param, ctx)
        except ValueError as error:
            self.fail(str(error), param, ctx)


lake_option = click.option(
    "--lake",
    "lake_dir",
    type=LakePath(),
    default=DEFAULT_LAKE,
    show_default=True,
    help="The lake: the server's journal directory, DATA_DIR/lake unless journal.directory says otherwise.",
)
_OPTIONS = (
    lake_option,
    click.option("--master", help="Run on this Spark master, as spark://host:7077. [default: embedded, local[*,4]]"),
    click.option("--remote", help="Run on this Spark Connect server, as sc://host:15002."),
    click.option("--memory", help="Memory of the embedded Spark, as 4GiB. [default: a quarter of the machine's]"),
    click.option("--conf", "settings", multiple=True, metavar="NAME=VALUE", help="A Spark setting. May be repeated."),
    click.option("--explain", is_flag=True, help="Show Spark's plans on standard error."),
    click.option("--quiet", is_flag=True, help="No progress and no summary on standard error."),
)


def spark_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


class PipelineJob:
    """A running job: its Spark session, its lake, and what it has done."""

    def __init__(self, spark: Any, lake: Lake, stages: Stages, bar: Bar) -> None:
        self.spark = spark
        self.lake = lake
        self.stages = stages
        self._bar = bar

    def progress(self, done: int, total: int, what: str = "events") -> None:
        """Show the progress."""
        self._bar.advance(done, total, what)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the progress bar, while the user is asked to confirm."""
        self._bar.stop()
        try:
            yield
        finally:
            self._bar.start()


class Bar:
    """A progress bar on standard error, if that is a terminal: the stage, and the progress if that is known."""

    def __init__(self, name: str, *, hidden: bool) -> None:
        console = Console(file=sys.stderr)
        self._name = name
        self._progress: Progress | None = None
        if not hidden and console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}"))
            self._progress = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
            self._task = self._progress.add_task(name, total=None, done="")

    def start(self) -> None:
        if self._progress is not None:
            self._progress.start()

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def watch(self, stage: str) -> None:
        if self._progress is not None:
            self._progress.update(self._task, description=f"{self._name}: {stage}")

    def advance(self, done: int, total: int, what: str) -> None:
        if self._progress is not None:
            self._progress.update(self._task, completed=done, total=total, done=f"{done:,} of {total:,} {what}")


def require_spark() -> None:
    """Raise SparkMissing, which says what to install, if Spark is not installed."""
    for name in ("pyspark", "deltalake"):
        if importlib.util.find_spec(name) is None:
            raise SparkMissing(missing=name)


@contextmanager
def running(name: str, job_options: dict[str, Any]) -> Iterator[PipelineJob]:
    """Start Spark, show the job's progress, and at the end its summary."""
    require_spark()
    from holdfast.pipeline.lake.lake import Lake  # noqa: PLC0415
    from holdfast.pipeline.spark.failures import spark_errors  # noqa: PLC0415 - Spark takes seconds to import and start
    from holdfast.pipeline.spark.session import SparkTarget, check_reach, is_small, open_session  # noqa: PLC0415
    from holdfast.pipeline.spark.stages import Stages  # noqa: PLC0415

    pairs = [pair.partition("=") for pair in job_options["settings"]]
    if any(not equals for _, equals, _ in pairs):
        raise click.UsageError("A Spark setting is NAME=VALUE.")
    where = SparkTarget(
        master=job_options["master"],
        remote=job_options["remote"],
        memory=parsed("--memory", parse_size, job_options["memory"]) if job_options["memory"] else 0,
        quick=is_small(job_options["lake_dir"]),
        silent=job_options["quiet"],
        settings={key: value for key, _, value in pairs},
    )
    bar = Bar(name, hidden=job_options["quiet"])
    stages = Stages(bar.watch, explaining=job_options["explain"])
    bar.start()
    try:
        with spark_errors():
            with stages.stage("start Spark"):
                spark = open_session(where, f"holdfast {name}")
                check_reach(spark, where, job_options["lake_dir"])
            yield PipelineJob(spark, Lake(job_options["lake_dir"]), stages, bar)
    finally:
        bar.stop()
    for plan in stages.plans:
        show_note(plan)
    if not job_options["quiet"]:
        _summary(stages)


def namespace_of_server(dry_run: bool) -> str:
    """The namespace of the command's credentials. A dry run works without a server too."""
    wanted = settings()
    try:
        with connected() as client:
            return client.overview().namespace
    except ServerUnreachable:
        if not dry_run:
            raise
        return wanted.namespace or "default"


def location_options(lake: Path) -> str:
    """Options that give another command the same lake and server as this one, where those are not the defaults."""
    words = "" if lake == DEFAULT_LAKE else f" --lake {shlex.quote(str(lake))}"
    url = settings().url
    return words if url == URL else f"{words} --url {shlex.quote(url)}"


def parsed(field: str, parse: Callable[[object], int], value: object) -> int:
    try:
        return parse(value)
    except ValueError as error:
        raise InvalidArgument(field=field, problem=str(error)) from error


def _summary(stages: Stages) -> None:
    """What was read and written, and how long each stage took."""
    for what, counts in (("read", stages.read), ("wrote", stages.wrote)):
        if counts:
            parts = [size(number) if name == "bytes" else f"{number:,} {name}" for name, number in counts.items()]
            show_note(f"{what} {', '.join(parts)}")
    parts = [f"{stage.name} {stage.seconds:.1f} s" for stage in stages.stages]
    show_note(f"took {stages.seconds:.1f} s: {', '.join(parts)}")


def instant(field: str, value: str | None) -> datetime | None:
    """An instant, or a time ago as `2h`."""
    if value is None:
        return None
    try:
        return datetime.now(UTC) - timedelta(microseconds=parse_duration(value))
    except ValueError:
        return datetime.fromtimestamp(parsed(field, parse_instant, value) / SECOND, UTC)


def show_time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
