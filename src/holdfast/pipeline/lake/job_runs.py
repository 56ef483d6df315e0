"""Records of redrives and replays in the lake: who ran what, when, with which selection and result.

    LAKE/runs/ID.json       a JobRun
    LAKE/runs/ID.parquet    the selection, so that a run that was killed continues with the same one

A run is written before it starts, and again when it ends. Its id is also in the broker and in every message that it
stored. No Spark here: listing runs is instant. Spark reads them too: `spark.read.json("LAKE/runs/*.json")`.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import InvalidArgument, RunNotFound
from holdfast.files import make_directory, sync_path

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
UNMOVED_MAX = 1_000
"""Dead letters or messages that were not moved and are named; the rest is counted."""


class Unmoved(msgspec.Struct, frozen=True, omit_defaults=True):
    """One that was not moved or not undone, and why."""

    id: int
    why: str
    problem: str = ""
    message: int = 0
    queue: str = ""


class JobRun(msgspec.Struct, kw_only=True):
    """A redrive or a replay."""

    id: str
    job: Literal["redrive", "replay"]
    state: Literal["running", "done", "stopped", "undone"] = "running"
    began_at: datetime
    ended_at: datetime | None = None
    by: str = ""
    """The identity of the caller at the server."""
    namespace: str = "default"
    queue: str = ""
    """The dead queue of a redrive; the queue whose messages a replay repeats."""
    to: str = ""
    where: str = ""
    since: datetime | None = None
    until: datetime | None = None
    sets: list[str] = []
    transform: str = ""
    speed: float = 0.0
    """Of a replay at the original pace: so many times as fast."""
    rate: float = 0.0
    """Of a replay at a rate: messages a second."""
    slices_done: int = 0
    """Of a paced replay: its progress."""
    canary: int = 0
    canary_passed: bool = False
    chosen: int = 0
    moved: int = 0
    """How many were moved under this id, in this and earlier attempts."""
    not_moved: dict[str, int] = {}
    """How many were not moved, by cause."""
    unmoved: list[Unmoved] = []
    """The first of those."""
    stopped: str = ""
    """Why it stopped before all were moved."""
    undone: int = 0
    not_undone: dict[str, int] = {}

    def skip(self, one: Unmoved) -> None:
        """Count one that is not moved, and name it if it is one of the first."""
        self.not_moved[one.why] = self.not_moved.get(one.why, 0) + 1
        if len(self.unmoved) < UNMOVED_MAX:
            self.unmoved.append(one)

    @property
    def note(self) -> str:
        """The selection as text, which the broker stores. The same for all attempts."""
        parts = (
            f"from {self.since:%Y-%m-%d %H:%M:%S}" if self.since else "",
            f"until {self.until:%Y-%m-%d %H:%M:%S}" if self.until else "",
            f"where {self.where}" if self.where else "",
            *(f"set {one}" for one in self.sets),
            f"transform {self.transform}" if self.transform else "",
        )
        return "; ".join([part for part in parts if part])

    def differs(self, other: JobRun) -> str:
        """The name of the first option that differs in another attempt under the same id."""
        for name in ("job", "queue", "to", "where", "since", "until", "sets", "transform", "speed", "rate"):
            if getattr(self, name) != getattr(other, name):
                return name
        return ""


class RunStore:
    """The runs of a lake."""

    def __init__(self, lake: Path) -> None:
        self._directory = lake / "runs"

    def new_id(self, job: str) -> str:
        return f"{job}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"

    def find(self, name: str) -> JobRun | None:
        path = self._path(name)
        return msgspec.json.decode(path.read_bytes(), type=JobRun) if path.exists() else None

    def get(self, name: str) -> JobRun:
        found = self.find(name)
        if found is None:
            raise RunNotFound(run=name, path=self._directory)
        return found

    def all(self) -> list[JobRun]:
        """Newest first."""
        found = [msgspec.json.decode(path.read_bytes(), type=JobRun) for path in self._directory.glob("*.json")]
        return sorted(found, key=lambda run: run.began_at, reverse=True)

    def begin(self, run: JobRun, chosen: pa.Table) -> None:
        """Store a run and its selection, before it starts."""
        self.begin_with(run, lambda path: pq.write_table(chosen, path))

    def begin_with(self, run: JobRun, write: Callable[[Path], object]) -> None:
        """The same for a selection that is already written: a file, or a directory of files."""
        make_directory(self._directory)
        path = self._parts(run.id)
        write(path)
        for file in (path, *path.glob("*.parquet")):
            sync_path(file)
        self.save(run)

    def chosen(self, run: JobRun) -> pa.Table:
        return pq.read_table(self._parts(run.id))

    def chosen_path(self, run: JobRun) -> Path:
        return self._parts(run.id)

    def save(self, run: JobRun) -> None:
        path = self._path(run.id)
        fresh = path.with_suffix(f".{os.getpid()}.new")
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(run)))
        sync_path(fresh)
        fresh.replace(path)
        sync_path(self._directory)

    def _path(self, name: str) -> Path:
        if not _ID.fullmatch(name):
            raise InvalidArgument(
                field="the id of a run", problem=f"is up to 100 letters, digits, '.', '_' and '-', not {name!r}"
            )
        return self._directory / f"{name}.json"

    def _parts(self, name: str) -> Path:
        return self._path(name).with_name(f"{name}.parquet")
