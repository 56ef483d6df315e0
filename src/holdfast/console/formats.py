"""How numbers, sizes, durations and times are written on pages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from markupsafe import Markup

from holdfast.units import format_instant

SPARK_WIDTH: Final = 96
SPARK_HEIGHT: Final = 24

_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_DURATIONS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


def number(value: float) -> str:
    """A count: whole up to 9,999, then with three digits and a unit."""
    if value < 10_000:
        return f"{value:,.0f}"
    for unit, factor in (("k", 1e3), ("M", 1e6), ("G", 1e9)):
        if value < factor * 999.5 or unit == "G":
            return f"{value / factor:.3g}{unit}" if value / factor < 999.5 else f"{value / factor:,.0f}{unit}"
    raise AssertionError("the last unit takes all")


def rate(value: float) -> str:
    """By the second."""
    if value <= 0:
        return "0"
    if value < 0.05:
        return "<0.1"
    return f"{value:.1f}" if value < 100 else number(value)


def size(value: float) -> str:
    """Bytes."""
    amount, unit = float(value), 0
    while amount >= 1024 and unit < len(_SIZES) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} {_SIZES[unit]}" if unit == 0 or amount >= 100 else f"{amount:.1f} {_SIZES[unit]}"


def duration(seconds: float) -> str:
    """The largest unit, and the next if it says something."""
    if seconds < 0.0005:
        return "0 s"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for index, (factor, unit) in enumerate(_DURATIONS):
        if seconds >= factor:
            whole = int(seconds // factor)
            if index + 1 < len(_DURATIONS):
                lower_factor, lower = _DURATIONS[index + 1]
                rest = int((seconds - whole * factor) // lower_factor)
                if rest and whole < 10:
                    return f"{whole} {unit} {rest} {lower}"
            return f"{whole} {unit}"
    raise AssertionError("a second is the smallest unit")


def when(instant: int | str) -> Markup:
    """An instant, in UTC; a script shows it in the reader's time zone."""
    text = instant if isinstance(instant, str) else format_instant(instant)
    return Markup('<time datetime="{}">{}</time>').format(text, text[:19].replace("T", " ") + " UTC")


def plural(count: int, one: str, many: str = "") -> str:
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def spark(values: Iterable[float], label: str) -> Markup:
    """A line of a few samples."""
    points = [value for value in values if not math.isnan(value)]
    if len(points) < 2:
        return Markup("")
    top, low = max(points), min(*points, 0.0)
    span = (top - low) or 1.0
    step = SPARK_WIDTH / (len(points) - 1)
    path = " ".join(
        f"{at * step:.1f},{SPARK_HEIGHT - 2 - (value - low) / span * (SPARK_HEIGHT - 4):.1f}"
        for at, value in enumerate(points)
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{label}">'
        '<polyline points="{path}"/></svg>'
    ).format(w=SPARK_WIDTH, h=SPARK_HEIGHT, label=label, path=path)
