"""Metrics of fronts, for the endpoint that exposes the metrics of the node. Fronts do not know each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple


class MetricSpec(NamedTuple):
    """A metric: its name without the prefix, and its description."""

    name: str
    kind: Literal["gauge", "counter"]
    text: str
    label: str = ""
    """The label that distinguishes its series, besides queue and group."""


class MetricSample(NamedTuple):
    """The current values of a metric: by the value of its label, or one value under an empty text."""

    series: MetricSpec
    values: dict[str, float]


MetricSource = Callable[[], Iterable[MetricSample]]
