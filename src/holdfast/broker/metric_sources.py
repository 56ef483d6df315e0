"""Figures of fronts: what each counts, for whoever shows the figures of the node. Fronts do not know each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple


class MetricSpec(NamedTuple):
    """A metric: its name without the prefix, and what it says."""

    name: str
    kind: Literal["gauge", "counter"]
    text: str
    label: str = ""
    """The label that tells its parts from each other, besides queue and group."""


class MetricSample(NamedTuple):
    """A metric as it stands: by the value of its label, or one under an empty text."""

    series: MetricSpec
    values: dict[str, float]


MetricSource = Callable[[], Iterable[MetricSample]]
