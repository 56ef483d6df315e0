"""A lake that several tests only read, built once."""

from __future__ import annotations

from tests.pipeline.model import Model, Row
from tests.pipeline.traffic import Traffic


class Built:
    def __init__(self, traffic: Traffic, events: list[Row]) -> None:
        self.traffic, self.events, self.lake = traffic, events, traffic.lake
        self.model = Model()
        for event in events:
            self.model.take(event)
