"""Dead letters chosen by SQL come back, through a real broker, once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from holdfast.cli.main import main
from holdfast.client import SyncClient
from holdfast.config import Config
from holdfast.config.settings import HttpSettings, JournalSettings, NodeSettings
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.redrive import predicate
from holdfast.testing import Broker
from tests.pipeline.test_build import build


class Scene:
    """A broker with twelve dead letters, and the lake that knows of them."""

    def __init__(self, broker: Broker, client: SyncClient, directory: Path) -> None:
        self.broker, self.client, self.directory = broker, client, directory

    def waiting(self) -> set[int]:
        return {json.loads(letter.body())["order"] for letter in self.client.dead_letters("orders")}

    def ask(self, *words: str, code: int = 0) -> Result:
        lake = ["--lake", str(self.directory / "lake"), "--quiet"]
        command = ["--url", self.broker.url, "pipeline", "redrive", "--queue", "dlq/orders", *words, *lake]
        result = CliRunner().invoke(main, command, catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result


@pytest.fixture
def scene(spark: SparkSession, tmp_path: Path) -> Iterator[Scene]:
    config = Config(
        node=NodeSettings(data_dir=tmp_path),
        journal=JournalSettings(segment_age=3_600_000_000),
        http=HttpSettings(listen="127.0.0.1:0"),
    )
    with Broker(config=config) as broker, broker.sync_client() as client:
        client.create_queue("orders")
        for number in range(12):
            client.send("orders", {"order": number, "amount": number * 10, "who": {"name": "a" if number % 2 else "b"}})
        for message in client.receive("orders", limit=12):
            message.reject(error=f"timeout after {message.attempt} ms")
        assert broker._portal is not None
        broker._portal.run(broker.node.export())
        build(Lake(tmp_path / "lake"), spark)
        yield Scene(broker, client, tmp_path)


def test_letters_are_chosen_by_their_payload_and_brought_back_once(scene: Scene) -> None:
    where = ["--where", "payload.amount >= 60 AND payload.who.name = 'a' AND reason = 'rejected'"]
    dry = json.loads(scene.ask(*where, "--dry-run", "-o", "json").stdout)
    assert dry["chosen"] == 3
    assert scene.waiting() == set(range(12)), "a dry run changes nothing"
    moved = json.loads(scene.ask(*where, "--yes", "-o", "json").stdout)
    assert (moved["moved"], moved["skipped"]) == (3, 0)
    assert scene.waiting() == set(range(12)) - {7, 9, 11}
    assert {json.loads(one.body())["order"] for one in scene.client.lease("orders", limit=20)} == {7, 9, 11}
    again = json.loads(scene.ask(*where, "--yes", "-o", "json", code=1).stdout)
    assert again["moved"] == 0, "they are gone from the dead queue: the lake is only behind"
    assert "--where" in scene.ask("--where", "no_such_column = 1", code=1).stderr


def test_a_canary_that_dies_again_keeps_the_rest_where_it_is(scene: Scene) -> None:
    done = json.loads(scene.ask("--yes", "--canary", "2", "--canary-wait", "100ms", "-o", "json", code=1).stdout)
    assert (done["chosen"], done["moved"]) == (12, 2)
    assert "2 were not done" in done["stopped"]
    assert len(scene.waiting()) == 10


def test_fields_of_the_payload_are_found_outside_of_quotes_only() -> None:
    assert (
        predicate("payload.a.b > 1 AND error = 'payload.x'")
        == "get_json_object(text, '$.a.b') > 1 AND error = 'payload.x'"
    )
    assert (
        predicate("payload.items[0].id = 'it''s payload.y'")
        == "get_json_object(text, '$.items[0].id') = 'it''s payload.y'"
    )
    assert predicate("length(payload) > 3") == "length(payload) > 3"
