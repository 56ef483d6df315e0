"""A lake that several tests only read, built once."""

from __future__ import annotations

from click.testing import CliRunner, Result

from holdfast.cli.main import main
from tests.pipeline.model import Model, Row
from tests.pipeline.traffic import Traffic


class Built:
    def __init__(self, traffic: Traffic, events: list[Row]) -> None:
        self.traffic, self.events, self.lake = traffic, events, traffic.lake
        self.model = Model()
        for event in events:
            self.model.take(event)


def ask(built: Built, *words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["pipeline", *words, "--lake", str(built.lake)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result
