"""A lake on disk: the journal that the broker writes, and beside it the tables that the pipeline builds.

LAKE/journal/     segments and manifests; only the broker writes here
LAKE/tables/      events, messages, queue_minutes, dead_letters, groups: Delta tables
LAKE/tables/quarantine  rows that fail an expectation, if there are any
LAKE/tables/_lock held by the process that builds
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import InvalidArgument, LakeBusy, TablesDamaged, TablesIrreplaceable
from holdfast.files import local_path, make_directory
from holdfast.pipeline.lake.delta import LakeTable
from holdfast.pipeline.lake.quarantine import Quarantine
from holdfast.pipeline.lake.segments import Cursor, Segment, read_manifests
from holdfast.pipeline.lake.tables import DEAD_LETTERS, EVENTS, GROUPS, MESSAGES, QUARANTINE, QUEUE_MINUTES, TABLES


class Lake:
    """See the module. The journal need not exist before it is read."""

    def __init__(self, path: Path) -> None:
        try:
            self.path = path = local_path(str(path))
        except ValueError as error:
            raise InvalidArgument(field="lake", problem=str(error)) from error
        self.tables_dir = path / "tables"
        self.events = LakeTable(self.tables_dir / "events", EVENTS)
        self.messages = LakeTable(self.tables_dir / "messages", MESSAGES)
        self.queue_minutes = LakeTable(self.tables_dir / "queue_minutes", QUEUE_MINUTES)
        self.dead_letters = LakeTable(self.tables_dir / "dead_letters", DEAD_LETTERS)
        self.groups = LakeTable(self.tables_dir / "groups", GROUPS)
        self.quarantine = Quarantine(LakeTable(self.tables_dir / "quarantine", QUARANTINE))

    @property
    def tables(self) -> list[LakeTable]:
        """In the order in which a batch is committed: `messages` last, because the others need its old rows."""
        return [self.events, self.groups, self.queue_minutes, self.dead_letters, self.messages]

    def segments(self) -> dict[int, list[Segment]]:
        return read_manifests(self.path)

    def read(self, spark: SparkSession, name: str) -> DataFrame:
        """A table as it is now."""
        table = getattr(self, TABLES[name].name)
        table.load()
        frame: DataFrame = table.read(spark)
        return frame

    def require(self) -> None:
        """Check that the tables were built, for jobs that read them."""
        missing = [table.spec.name for table in self.tables if not table.exists]
        if missing:
            raise TablesDamaged(
                path=self.tables_dir, problem=f"{', '.join(missing)} not built yet; run `holdfast pipeline build` first"
            )
        for table in self.tables:
            table.load()

    def prepare(self) -> None:
        """Create the tables that are missing. Under the lock, because it repairs what lost power has left."""
        for table in self.tables:
            table.log.repair()
        made = [table.exists for table in self.tables]
        if any(made) and not all(made):
            here = [table.spec.name for table, there in zip(self.tables, made, strict=True) if there]
            if any(table.load().version() for table in self.tables if table.spec.name in here):
                raise TablesDamaged(path=self.tables_dir, problem=f"only {', '.join(here)} are there")
        for table in self.tables:
            if table.exists:
                table.load()
            else:
                table.create()

    def cursors(self, nodes: list[int]) -> dict[str, Cursor]:
        return {table.spec.name: table.cursor(nodes) for table in self.tables}

    def check_complete(self) -> None:
        """Refuse to build the tables anew from a journal that lacks what they are made of."""
        for node, chain in self.segments().items():
            removed = chain[0].removed if chain else None
            if removed is not None:
                raise TablesIrreplaceable(node=node, removed_to=removed.removed_to)

    def forget_tables(self) -> None:
        """Delete all tables, to rebuild them. The journal stays."""
        (self.tables_dir / "_built.json").unlink(missing_ok=True)
        for name in (*TABLES, QUARANTINE.name):
            shutil.rmtree(self.tables_dir / name, ignore_errors=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the lake: only one process builds at a time. The operating system releases the lock when the process
        ends."""
        make_directory(self.tables_dir)
        with (self.tables_dir / "_lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                raise LakeBusy(path=self.tables_dir, holder=f"process {file.read().strip() or 'unknown'}") from error
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield
