"""The commands of transcripts about schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.engine.schedules.records import CatchUp, Overlap, Rule, Schedule
from holdfast.units import parse_duration

if TYPE_CHECKING:
    from tests.transcripts.driver import Scene

NAMESPACE = "default"


def put(scene: Scene, arguments: list[str], options: dict[str, str]) -> Iterator[str]:
    """`schedule NAME QUEUE PAYLOAD every=1m`, or `cron="30 2 * * *" zone=Europe/Berlin`."""
    name, queue, payload = arguments
    rule = Rule(
        options.get("cron", ""),
        parse_duration(options["every"]) if "every" in options else 0,
        options.get("zone", "UTC"),
        jitter=parse_duration(options.get("jitter", 0)),
    )
    catch_up, overlap = CatchUp(options.get("catch_up", "skip")), Overlap(options.get("overlap", "queue"))
    stored = scene.engine.schedules.put(
        Schedule(NAMESPACE, name, queue, rule, payload.encode(), 128, -1, catch_up=catch_up, overlap=overlap),
        scene.now,
    )
    yield "next: " + ", ".join(map(scene.at, stored.next_ticks(3)))


def runs(scene: Scene, arguments: list[str], options: dict[str, str]) -> Iterator[str]:
    """`runs NAME`: what became of its ticks, newest first."""
    for run in scene.engine.schedules.runs((NAMESPACE, arguments[0])):
        tick = scene.at(run.tick) if run.tick else "asked for"
        message = f" {scene.name(run.message)}" if run.message else ""
        yield f"{run.number}: {tick} at {scene.at(run.at)}: {run.outcome}{message}"


def run_now(scene: Scene, arguments: list[str], options: dict[str, str]) -> Iterator[str]:
    """`run NAME`."""
    yield scene.engine.schedules.run((NAMESPACE, arguments[0]), scene.now).outcome.value


def delete(scene: Scene, arguments: list[str], options: dict[str, str]) -> Iterator[str]:
    """`unschedule NAME`."""
    scene.engine.schedules.delete((NAMESPACE, arguments[0]))
    yield "deleted"


def pause(scene: Scene, arguments: list[str], options: dict[str, str]) -> Iterator[str]:
    """`pause-schedule NAME yes`, or `no`."""
    name, paused = arguments
    found = scene.engine.schedules.pause((NAMESPACE, name), paused == "yes", scene.now)
    yield "next: " + (", ".join(map(scene.at, found.next_ticks(3))) or "none")
