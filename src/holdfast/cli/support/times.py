"""Durations and instants on the command line: an invalid one is refused before anything is sent."""

from __future__ import annotations

from collections.abc import Callable

import click

from holdfast.units import parse_duration, parse_instant


class _Time(click.ParamType[str]):
    """A text that can be parsed as a time; it is passed on as it was written."""

    def __init__(self, name: str, read: Callable[[object], int]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            self._read(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}.", param, ctx)
        return value


DURATION = _Time("duration", parse_duration)
INSTANT = _Time("instant", parse_instant)
