"""Plots as inline SVG: no script, no font, no file beside the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape

WIDTH, HEIGHT = 720, 200
LEFT, RIGHT, TOP, BOTTOM = 72, 12, 12, 26
TICKS = 4
TOOLTIPS = 60
"""Strips of a chart that say their values: as narrow as a pointer can aim."""

TIME_TICKS = 8
TIME_STEPS = (60, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
"""Seconds between two labels along the axis."""

UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
"""Milliseconds in a unit, the longest first."""

Curve = tuple[str, str, Sequence[float | None]]
"""Name, CSS class of its colour, and a value for each instant; None: nothing is known, and the curve has a gap."""


def line_chart(
    times: Sequence[datetime],
    series: Sequence[Curve],
    unit: str,
    *,
    filled: bool = False,
    say: Callable[[float], str] | None = None,
    end: Callable[[float], float] | None = None,
) -> str:
    """Curves over time, with a grid, a legend and the values as tooltips. `say` spells a value, `end` finds the end of
    the scale for the highest one. A single instant is drawn as a level over the whole width."""
    spell = say or show
    top = (end or nice)(
        max((value for _, _, values in series for value in values if value is not None), default=0) or 1
    )
    first, last = times[0].timestamp(), times[-1].timestamp()
    span = max(last - first, 1)

    def x(at: datetime) -> float:
        return LEFT + (at.timestamp() - first) / span * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    parts = [*_grid(top, y, spell), *_times(times, x)]
    for name, colour, values in series:
        high = max((value for value in values if value is not None), default=0.0)
        title = f"<title>{escape(name)}: at most {spell(high)}{' ' if unit else ''}{escape(unit)}</title>"
        for run in _runs(times, values):
            points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in run)
            if filled:
                base = f"{x(run[-1][0]):.1f},{y(0):.1f} {x(run[0][0]):.1f},{y(0):.1f}"
                parts.append(f'<polygon class="fill {colour}" points="{points} {base}"/>')
            if len(times) == 1:
                value = run[0][1]
                ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"'
                parts.append(f'<line class="line {colour}" {ends}>{title}</line>')
            elif len(run) == 1:
                at, value = run[0]
                parts.append(
                    f'<circle class="dot {colour}" cx="{x(at):.1f}" cy="{y(value):.1f}" r="2">{title}</circle>'
                )
            else:
                parts.append(f'<polyline class="line {colour}" points="{points}">{title}</polyline>')
    parts += _tooltips(times, series, spell, unit)
    legend = "".join(f'<span class="key {colour}">{escape(name)}</span>' for name, colour, _ in series)
    label = escape(", ".join(name for name, _, _ in series))
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    return f'<figure>{svg}<figcaption>{legend}<span class="unit">{escape(unit)}</span></figcaption></figure>'


def _tooltips(
    times: Sequence[datetime], series: Sequence[Curve], spell: Callable[[float], str], unit: str
) -> list[str]:
    """Strips over the chart, each with the values at its middle: there is no script that could follow the pointer."""
    count = min(len(times), TOOLTIPS)
    width = (WIDTH - LEFT - RIGHT) / count
    parts: list[str] = []
    for number in range(count):
        index = number * (len(times) - 1) // max(count - 1, 1)
        lines = [f"{times[index]:%d %b %H:%M}"]
        lines += [
            f"{name}: {spell(values[index] or 0)} {unit}".strip()
            for name, _, values in series
            if values[index] is not None
        ]
        x = LEFT + number * width
        place = f'x="{x:.1f}" y="{TOP}" width="{width:.1f}" height="{HEIGHT - TOP - BOTTOM}"'
        parts.append(f'<rect class="tip" {place}><title>{escape(chr(10).join(lines))}</title></rect>')
    return parts


def _runs(times: Sequence[datetime], values: Sequence[float | None]) -> list[list[tuple[datetime, float]]]:
    """The parts of a curve between its gaps."""
    runs: list[list[tuple[datetime, float]]] = [[]]
    for at, value in zip(times, values, strict=True):
        if value is not None:
            runs[-1].append((at, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _grid(top: float, y: Callable[[float], float], spell: Callable[[float], str]) -> list[str]:
    parts: list[str] = []
    for tick in range(TICKS + 1):
        value = top * tick / TICKS
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        place = f'x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end"'
        parts.append(f'<text class="tick" {place}>{spell(value) if value else 0}</text>')
    return parts


def _times(times: Sequence[datetime], x: Callable[[datetime], float]) -> list[str]:
    """Round times along the axis."""
    first, last = times[0].timestamp(), times[-1].timestamp()
    step = next((step for step in TIME_STEPS if (last - first) / step <= TIME_TICKS), TIME_STEPS[-1])
    step *= max(math.ceil((last - first) / step / TIME_TICKS), 1)
    chosen = [datetime.fromtimestamp(at, UTC) for at in range(math.ceil(first / step) * step, int(last) + 1, step)]
    form = "%d %b" if step >= 86_400 else "%H:%M"
    place = f'y="{HEIGHT - 8}"'
    return [  # in a narrow window every second one has to do
        f'<text class="tick{" odd" if number % 2 else ""}" x="{x(at):.1f}" {place} text-anchor="{_anchor(x(at))}">'
        f"{at.strftime(form)}</text>"
        for number, at in enumerate(chosen or times[:1])
    ]


def _anchor(x: float) -> str:
    """A text at the edge stays inside."""
    return "start" if x < LEFT + 16 else "end" if x > WIDTH - RIGHT - 16 else "middle"


def bar_chart(bars: Sequence[tuple[str, float, str]]) -> str:
    """Horizontal bars: label, value, CSS class."""
    top = max((value for _, value, _ in bars), default=0) or 1
    rows = "".join(
        f'<div class="bar"><span class="name" title="{escape(name)}">{escape(name)}</span>'
        f'<span class="track"><span class="{colour}" style="width:{max(value / top * 100, 0.5):.1f}%"></span></span>'
        f'<span class="number">{show(value)}</span></div>'
        for name, value, colour in bars
    )
    return f'<div class="bars">{rows}</div>'


def nice(value: float, steps: Sequence[float] = (1, 2, 4, 6, 8)) -> float:
    """The next round number: one of these times a power of ten. A quarter of it is round too."""
    power = math.pow(10, math.floor(math.log10(value)))
    return next((step * power for step in steps if step * power >= value), 10 * power)


def nice_count(value: float) -> float:
    """The same for what is counted: no part of the scale is a fraction."""
    step = math.ceil(value / TICKS)
    return TICKS * (step if step < 10 else nice(step, (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)))


def nice_ms(value: float) -> float:
    """The same for milliseconds: round in the unit in which they are shown."""
    for above, (size, _) in zip((math.inf, *(size for size, _ in UNITS)), UNITS, strict=False):
        if value >= size:
            return min(nice(value / size) * size, above)
    return min(nice(value), UNITS[-1][0])


def show(value: float) -> str:
    """A number as people read it: 950, 1.2k, 3.4M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            scaled = value / (1e3 if suffix == "k" else size)
            return f"{scaled:.0f}{suffix}" if scaled >= 100 else f"{scaled:.3g}{suffix}"
    if value == int(value):
        return f"{int(value):,}".replace(",", " ")
    return f"{value:.3g}"


def show_ms(milliseconds: float | None) -> str:
    """A duration as people read it."""
    if milliseconds is None:
        return "–"
    for size, unit in UNITS:
        if milliseconds >= size:
            return f"{milliseconds / size:.3g} {unit}"
    return f"{milliseconds:.3g} ms"
