"""What a job did and how long each stage took: for its summary, and for progress while it runs."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from pyspark.sql import DataFrame


class Stage(msgspec.Struct):
    name: str
    seconds: float = 0.0
    times: int = 0


class Stages:
    """The stages of a job by name, in the order in which they first started. `watch` is called when a stage starts."""

    def __init__(self, watch: Callable[[str], None] | None = None, explaining: bool = False) -> None:
        self._watch = watch
        self.explaining = explaining
        self._stages: dict[str, Stage] = {}
        self.read: dict[str, int] = {}
        self.wrote: dict[str, int] = {}
        self.plans: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A stage of the job. The times of stages of the same name add up."""
        if self._watch is not None:
            self._watch(name)
        began = time.perf_counter()
        try:
            yield
        finally:
            stage = self._stages.setdefault(name, Stage(name))
            stage.seconds += time.perf_counter() - began
            stage.times += 1

    def count_read(self, what: str, count: int) -> None:
        self.read[what] = self.read.get(what, 0) + count

    def count_written(self, what: str, count: int) -> None:
        self.wrote[what] = self.wrote.get(what, 0) + count

    def explain(self, name: str, frame: DataFrame) -> None:
        """Record Spark's plan for a frame, if plans were requested."""
        if self.explaining:
            plan_text = io.StringIO()
            with contextlib.redirect_stdout(plan_text):
                frame.explain("formatted")
            self.plans.append(f"{name}:\n{plan_text.getvalue()}")

    def summary(self) -> dict[str, object]:
        """For JSON."""
        return {
            "read": self.read,
            "wrote": self.wrote,
            "stages": [{"name": stage.name, "seconds": round(stage.seconds, 3)} for stage in self._stages.values()],
            "seconds": round(self.seconds, 3),
        }

    @property
    def stages(self) -> list[Stage]:
        return list(self._stages.values())

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self._stages.values())
