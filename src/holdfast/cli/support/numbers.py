"""Numbers as people read them."""

from __future__ import annotations


def count(number: int) -> str:
    return f"{number:,}"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def rate(per_second: float) -> str:
    return f"{per_second:,.0f}/s" if per_second >= 10 or per_second == 0 else f"{per_second:.1f}/s"


def age(seconds: float) -> str:
    """The two largest units: `3d 4h`, `2m 5s`, `0.4s`."""
    if seconds <= 0:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f}s"
    left = int(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if left >= length or parts:
            parts.append(f"{left // length}{unit}")
            left %= length
    return " ".join(parts[:2])


def size(size_bytes: int) -> str:
    number = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"


def shortened(text: str, width: int) -> str:
    """On one line, cut to `width` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def body_text(body: bytes, width: int) -> str:
    """A payload for a table."""
    try:
        return shortened(body.decode(), width)
    except UnicodeDecodeError:
        return f"({size(len(body))} of bytes)"
